//! The ack map: which offsets above the commit watermark are settled, as text to commit beside it.
//!
//! After a crash or a handover the next owner skips what the map says, so that only what was unsettled is repeated. A
//! broker keeps at most 4,096 bytes of metadata a partition by default; a map that does not fit keeps its lowest offsets.
//!
//! The text is `s1:` and, in unpadded URL-safe base64, a CRC-32 (4 bytes, little-endian, over the watermark and what
//! follows), a byte that tells the form, and the body. Of two forms the shorter is used: *runs*, the lengths of gap and
//! settled run in turn from the watermark on, as LEB128; and *bits*, one bit an offset from the watermark on.
//!
//! The [trail] may follow it, separated by `;`, which no part has in it.
//!
//! Whatever is not such a text is refused as a whole: a record is never skipped on doubt.

use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::record::Offset;
use crate::trail;

/// Tells our text from any other, and its version.
const PREFIX: &str = "s1:";

const FORM_RUNS: u8 = 0;
const FORM_BITS: u8 = 1;

/// Bytes before the body: checksum and form.
const HEAD_LEN: usize = 5;

/// A map ready to commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// ASCII; empty when nothing is settled above the watermark.
    pub text: String,
    /// Whether some settled offsets found no room: they may be repeated after a crash.
    pub truncated: bool,
}

/// Encodes the settled ranges above `watermark`, which rise and do not touch, into at most `text_len_max` bytes.
pub fn encode(watermark: Offset, ranges: impl IntoIterator<Item = (Offset, Offset)>, text_len_max: usize) -> Encoded {
    let body_len_max = (text_len_max.saturating_sub(PREFIX.len()) * 3 / 4).saturating_sub(HEAD_LEN);
    let mut runs = Runs::new(body_len_max);
    let mut bits = Bits::new(body_len_max);
    let mut any = false;
    for (first, last) in ranges {
        any = true;
        let (first, last) = (
            (first.get() - watermark.get()) as u64,
            (last.get() - watermark.get()) as u64,
        );
        runs.push(first, last);
        bits.push(first, last);
        if runs.full && bits.full {
            break;
        }
    }
    if !any {
        return Encoded::default();
    }
    let use_bits = match (runs.full, bits.full) {
        (false, false) => bits.body.len() < runs.body.len(),
        (true, true) => bits.end > runs.end,
        (runs_full, _) => runs_full,
    };
    let (form, body, truncated) = if use_bits {
        (FORM_BITS, bits.body, bits.full)
    } else {
        (FORM_RUNS, runs.body, runs.full)
    };
    if body.is_empty() {
        return Encoded {
            text: String::new(),
            truncated: true,
        };
    }
    let mut bytes = Vec::with_capacity(HEAD_LEN + body.len());
    bytes.extend_from_slice(&checksum(watermark, form, &body).to_le_bytes());
    bytes.push(form);
    bytes.extend_from_slice(&body);
    let mut text = PREFIX.to_owned();
    URL_SAFE_NO_PAD.encode_string(bytes, &mut text);
    Encoded { text, truncated }
}

/// Why a committed text is no ack map of this commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckMapError {
    /// Something else was committed there: another program's metadata, or a later version's.
    Foreign,
    /// It is damaged, or belongs to another watermark.
    Corrupt,
    /// It speaks of records that the log does not have: the log was truncated, or is another one.
    BeyondEnd,
}

impl std::fmt::Display for AckMapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AckMapError::Foreign => "the commit's metadata was written by another program or version",
            AckMapError::Corrupt => "the commit's metadata is damaged, or was written for another offset",
            AckMapError::BeyondEnd => "the commit's metadata speaks of records beyond the log's end",
        })
    }
}

impl std::error::Error for AckMapError {}

/// Decodes a text that was committed beside `watermark`, for a log that ends at `end` (the offset after its last record).
///
/// # Errors
/// When the text, a trail behind it included, is not wholly to be believed. The empty text is an empty map.
pub fn decode(text: &str, watermark: Offset, end: Option<Offset>) -> Result<Vec<RangeInclusive<Offset>>, AckMapError> {
    trail::decode(text, watermark)?;
    let (text, _) = trail::split(text);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let encoded = text.strip_prefix(PREFIX).ok_or(AckMapError::Foreign)?;
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| AckMapError::Corrupt)?;
    let (head, body) = bytes.split_at_checked(HEAD_LEN).ok_or(AckMapError::Corrupt)?;
    let form = head[4];
    if checksum(watermark, form, body).to_le_bytes() != head[..4] {
        return Err(AckMapError::Corrupt);
    }
    let ranges = match form {
        FORM_RUNS => decode_runs(body),
        FORM_BITS => Some(decode_bits(body)),
        _ => return Err(AckMapError::Foreign),
    };
    let at = |index: u64| {
        let index = i64::try_from(index).ok()?;
        watermark.get().checked_add(index).map(Offset::new)
    };
    let ranges: Option<Vec<_>> = ranges
        .ok_or(AckMapError::Corrupt)?
        .into_iter()
        .map(|(first, last)| Some(at(first)?..=at(last)?))
        .collect();
    let ranges = ranges.ok_or(AckMapError::Corrupt)?;
    // A log whose end is not known is not known to have them.
    let known = |last: &Offset| end.is_some_and(|end| *last < end);
    match ranges.last() {
        Some(range) if !known(range.end()) => Err(AckMapError::BeyondEnd),
        _ => Ok(ranges),
    }
}

fn checksum(watermark: Offset, form: u8, body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&watermark.get().to_le_bytes());
    crc.update(&[form]);
    crc.update(body);
    crc.finalize()
}

/// Lengths of gap and settled run in turn.
struct Runs {
    body: Vec<u8>,
    len_max: usize,
    /// The offset, from the watermark, after the last run.
    end: u64,
    full: bool,
}

impl Runs {
    fn new(len_max: usize) -> Self {
        Self {
            body: Vec::new(),
            len_max,
            end: 0,
            full: false,
        }
    }

    fn push(&mut self, first: u64, last: u64) {
        if self.full {
            return;
        }
        let len = self.body.len();
        push_leb128(&mut self.body, first - self.end);
        push_leb128(&mut self.body, last - first + 1);
        if self.body.len() > self.len_max {
            self.body.truncate(len);
            self.full = true;
        } else {
            self.end = last + 1;
        }
    }
}

fn decode_runs(mut body: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut end: u64 = 0;
    while !body.is_empty() {
        let first = end.checked_add(take_leb128(&mut body)?)?;
        let len = take_leb128(&mut body)?;
        let last = first.checked_add(len.checked_sub(1)?)?;
        ranges.push((first, last));
        end = last.checked_add(1)?;
    }
    Some(ranges)
}

/// One bit an offset, the lowest first in each byte.
struct Bits {
    body: Vec<u8>,
    len_max: usize,
    /// The offset, from the watermark, after the last bit.
    end: u64,
    full: bool,
}

impl Bits {
    fn new(len_max: usize) -> Self {
        Self {
            body: Vec::new(),
            len_max,
            end: 0,
            full: false,
        }
    }

    fn push(&mut self, first: u64, last: u64) {
        if self.full {
            return;
        }
        let room = self.len_max as u64 * 8;
        self.full = last >= room;
        let until = (last + 1).min(room);
        if first >= until {
            return;
        }
        self.body.resize(until.div_ceil(8) as usize, 0);
        for index in first..until {
            self.body[(index / 8) as usize] |= 1 << (index % 8);
        }
        self.end = until;
    }
}

fn decode_bits(body: &[u8]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for index in 0..body.len() as u64 * 8 {
        if body[(index / 8) as usize] & (1 << (index % 8)) == 0 {
            continue;
        }
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    ranges
}

pub(crate) fn push_leb128(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(crate) fn take_leb128(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if (part << shift) >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const END: Option<Offset> = None;

    fn offsets(ranges: &[(i64, i64)]) -> Vec<(Offset, Offset)> {
        let range = |(first, last): &(i64, i64)| (Offset::new(*first), Offset::new(*last));
        ranges.iter().map(range).collect()
    }

    fn end(offset: i64) -> Option<Offset> {
        Some(Offset::new(offset))
    }

    #[test]
    fn nothing_settled_above_is_the_empty_text() {
        assert_eq!(encode(Offset::new(7), [], 4096), Encoded::default());
        assert_eq!(decode("", Offset::new(7), None), Ok(Vec::new()));
    }

    #[test]
    fn ten_million_settled_above_one_take_a_few_bytes() {
        let encoded = encode(Offset::ZERO, offsets(&[(1, 10_000_000)]), 4096);
        assert!(encoded.text.len() < 24 && encoded.text.is_ascii() && !encoded.truncated);
        let decoded = decode(&encoded.text, Offset::ZERO, end(10_000_001)).unwrap();
        assert_eq!(decoded, [Offset::new(1)..=Offset::new(10_000_000)]);
    }

    #[test]
    fn a_map_that_does_not_fit_keeps_its_lowest_offsets() {
        // Every fifth of 100,000 is unsettled, with jitter: neither form has room for all.
        let ranges: Vec<_> = (0..20_000)
            .map(|index| (index * 5 + 1, index * 5 + 3 + index % 2))
            .collect();
        let encoded = encode(Offset::ZERO, offsets(&ranges), 4096);
        assert!(encoded.truncated && encoded.text.len() <= 4096);
        let decoded = decode(&encoded.text, Offset::ZERO, end(200_000)).unwrap();
        assert!(decoded.len() > 4000, "{} ranges fit", decoded.len());
        for (decoded, (first, _)) in decoded.iter().zip(&ranges) {
            assert_eq!(decoded.start().get(), *first);
        }
    }

    #[test]
    fn what_is_not_ours_is_refused_whole() {
        let mark = Offset::new(100);
        let text = encode(mark, offsets(&[(102, 105), (109, 109)]), 4096).text;
        assert!(decode(&text, mark, end(110)).is_ok());
        assert_eq!(decode(&text, mark, end(109)), Err(AckMapError::BeyondEnd));
        assert_eq!(decode(&text, mark, None), Err(AckMapError::BeyondEnd));
        assert_eq!(decode(&text, Offset::new(101), end(200)), Err(AckMapError::Corrupt));
        assert_eq!(decode("checkpoint=7", mark, END), Err(AckMapError::Foreign));
        assert_eq!(decode("s2:abcd", mark, END), Err(AckMapError::Foreign));
        assert_eq!(decode("s1:", mark, END), Err(AckMapError::Corrupt));
        assert_eq!(decode("s1:äöü", mark, END), Err(AckMapError::Corrupt));
    }

    #[test]
    fn no_room_is_no_map() {
        let encoded = encode(Offset::ZERO, offsets(&[(1, 1)]), 8);
        assert_eq!(encoded.text, "");
        assert!(encoded.truncated);
    }

    /// Rising ranges that do not touch, from the watermark on.
    fn any_ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((1u64..60, 1u64..60), 0..400).prop_map(|lengths| {
            let mut next = 0;
            let ranges = lengths.into_iter().map(|(gap, len)| {
                let first = next + gap;
                next = first + len;
                (first, next - 1)
            });
            ranges.collect()
        })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(watermark in 0i64..1 << 50, ranges in any_ranges(), room in 0usize..4096) {
            let mark = Offset::new(watermark);
            let at = |index: u64| Offset::new(watermark + index as i64);
            let settled: Vec<_> = ranges.iter().map(|(first, last)| (at(*first), at(*last))).collect();
            let encoded = encode(mark, settled.iter().copied(), room);
            prop_assert!(encoded.text.len() <= room && encoded.text.is_ascii());
            let decoded = decode(&encoded.text, mark, Some(at(1 << 20))).unwrap();
            if encoded.truncated {
                // Each decoded offset is settled, and none below the last one is missing.
                let (mut known, mut told) = (Vec::new(), Vec::new());
                settled.iter().for_each(|(first, last)| known.extend(first.get()..=last.get()));
                decoded.iter().for_each(|range| told.extend(range.start().get()..=range.end().get()));
                prop_assert_eq!(&known[..told.len()], &told[..]);
            } else {
                let decoded: Vec<_> = decoded.into_iter().map(RangeInclusive::into_inner).collect();
                prop_assert_eq!(decoded, settled);
            }
        }

        #[test]
        fn no_text_panics_and_no_damage_is_believed(text in "(s1:)?[ -~]{0,80}", flip in any::<(usize, u8)>()) {
            let _ = decode(&text, Offset::ZERO, end(1 << 40));
            let mut good = encode(Offset::ZERO, offsets(&[(3, 9), (12, 400)]), 4096).text.into_bytes();
            let (place, to) = (flip.0 % good.len(), flip.1 & 0x7f);
            if good[place] != to {
                good[place] = to;
                prop_assert!(decode(std::str::from_utf8(&good).unwrap(), Offset::ZERO, end(1000)).is_err());
            }
        }
    }
}
