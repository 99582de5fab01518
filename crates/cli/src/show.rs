//! Keys and values as people read them.

use std::fmt::Write as _;

/// Of a key or value that is shown, this many characters at most: some lines of a terminal.
pub(crate) const SHOWN_CHARS_MAX: usize = 1_000;

/// Appends `bytes` in a form that fits a line and a terminal: text with its control characters escaped, or else
/// hexadecimal digits; the beginning of it, if it is long.
pub(crate) fn show(bytes: Option<&[u8]>, text: &mut String) {
    let Some(bytes) = bytes else {
        return text.push_str("(null)");
    };
    // The border of a character is at most three bytes away.
    let begin = &bytes[..bytes.len().min(4 * SHOWN_CHARS_MAX)];
    let valid = match std::str::from_utf8(begin) {
        Ok(valid) => Some(valid),
        Err(error) if error.error_len().is_none() && begin.len() < bytes.len() => {
            std::str::from_utf8(&begin[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    let shown = match valid {
        Some(valid) => show_text(valid, text),
        None => show_hexadecimal(begin, text),
    };
    if shown < bytes.len() {
        let _ = write!(text, "… ({} bytes)", bytes.len());
    }
}

/// Returns how many bytes are shown.
fn show_text(valid: &str, text: &mut String) -> usize {
    let mut shown = 0;
    for c in valid.chars().take(SHOWN_CHARS_MAX) {
        shown += c.len_utf8();
        match c {
            c if c.is_control() => text.extend(c.escape_default()),
            c => text.push(c),
        }
    }
    shown
}

/// Returns how many bytes are shown.
fn show_hexadecimal(bytes: &[u8], text: &mut String) -> usize {
    let shown = &bytes[..bytes.len().min(SHOWN_CHARS_MAX / 2)];
    text.push_str("0x");
    for byte in shown {
        let _ = write!(text, "{byte:02x}");
    }
    shown.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        let mut text = String::new();
        show(Some(bytes), &mut text);
        text
    }

    #[test]
    fn what_is_shown_fits_a_line() {
        assert_eq!(shown("né".as_bytes()), "né");
        assert_eq!(shown(b"a\nb\tc\\\x1b[31m"), r"a\nb\tc\\u{1b}[31m");
        assert_eq!(shown(b"\xff\x00"), "0xff00");
        assert_eq!(shown(b""), "");
        let mut null = String::new();
        show(None, &mut null);
        assert_eq!(null, "(null)");
    }

    #[test]
    fn what_is_long_is_cut_at_a_character() {
        let long = "é".repeat(5_000);
        assert_eq!(shown(long.as_bytes()), format!("{}… (10000 bytes)", "é".repeat(1_000)));
        // The look at the beginning ends within a character of three bytes.
        let long = format!("a{}", "€".repeat(5_000));
        assert!(shown(long.as_bytes()).starts_with("a€€"));
        assert!(shown(&[0xff; 5_000]).ends_with("ff… (5000 bytes)"));
    }
}
