//! Durations and sizes, as people write them on a command line.

use std::time::Duration;

/// Reads a duration: a number and its unit, e.g. `100ms`, `1.5s`, `10m`, `2h`.
///
/// # Errors
/// What is wrong with `text`, in words for the user.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: &[(&str, f64)] = &[("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];
    let seconds = scaled(text, UNITS).ok_or("write a number and its unit: 100ms, 60s, 10m, 2h")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "this is too long".to_owned())
}

/// As [`duration`], for one that must not be zero.
///
/// # Errors
/// As [`duration`].
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must not be zero".to_owned()),
        duration => Ok(duration),
    }
}

/// Reads a size in bytes: a number, or one with a unit, e.g. `4096`, `64KiB`, `256MiB`, `1GB`. It must not be zero.
///
/// # Errors
/// What is wrong with `text`, in words for the user.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    const UNITS: &[(&str, f64)] = &[
        ("", 1.0),
        ("B", 1.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
    ];
    match scaled(text, UNITS) {
        Some(bytes) if (1.0..1e15).contains(&bytes) => Ok(bytes as usize),
        Some(_) => Err("it must be at least one byte, and less than a petabyte".to_owned()),
        None => Err("write a number and its unit: 64KiB, 256MiB, 1GiB".to_owned()),
    }
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let number_len = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_len);
    let (_, scale) = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit.trim_start()))?;
    Some(number.parse::<f64>().ok()? * scale)
}

/// A number in groups of three digits, e.g. `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `count` and its noun, in the singular or plural: `1 record`, `1,200 records`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let plural = match noun.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{noun}s"),
    };
    let noun = if count == 1 { noun } else { &plural };
    format!("{} {noun}", grouped(count))
}

/// How many in a second, e.g. `12,345/s`.
pub(crate) fn rate(count: u64, took: Duration) -> String {
    let seconds = took.as_secs_f64().max(0.001);
    format!("{}/s", grouped((count as f64 / seconds).round() as u64))
}

/// A duration to read: milliseconds below ten seconds, else tenths of a second.
pub(crate) fn took(took: Duration) -> String {
    if took < Duration::from_secs(10) {
        format!("{:.3} s", took.as_secs_f64())
    } else {
        format!("{:.1} s", took.as_secs_f64())
    }
}

/// How long ago something was, in its two largest units: `42s`, `3m12s`, `5h0m`, `12d4h`.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (1.., ..) => format!("{days}d{}h", hours % 24),
        (_, 1.., _) => format!("{hours}h{}m", minutes % 60),
        (.., 1..) => format!("{minutes}m{}s", seconds % 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("2 h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for wrong in ["", "60", "s", "1.2.3s", "-1s", "1 fortnight", "99999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn sizes_are_binary_or_decimal_as_written() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        assert_eq!(bytes("1gb"), Ok(1_000_000_000));
        for wrong in ["", "0", "MiB", "1 mile", "-1", "9999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "retry"), "1 retry");
        assert_eq!(counted(1200, "retry"), "1,200 retries");
        assert_eq!(counted(0, "record"), "0 records");
        let ages = [0, 59, 60, 3_599, 7_260, 90_000].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(ages, ["0s", "59s", "1m0s", "59m59s", "2h1m", "1d1h"]);
        assert_eq!(rate(3_000, Duration::from_millis(1500)), "2,000/s");
    }
}
