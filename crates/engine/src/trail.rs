//! The trail: what a commit says of the records that are not settled, so that a crash of the process cannot wipe it out.
//!
//! Two things are told beside the ack map: how many attempts of the oldest failing records have failed, and whether the
//! partition was given back. A period of ownership that was not is a *crash*, and whatever was with a worker then may be
//! what killed the process. Only its own process can know that it merely lost the partition and lives: then it is none. What
//! is known narrows from crash to crash:
//!
//! | Crashes | What may be with workers until the suspects are settled | What the next crash says |
//! |---|---|---|
//! | 0 | anything | the suspects lie below a bound that is guessed generously |
//! | 1 | a few, each named by a commit before it is handed over | the suspects are those few |
//! | 2 | one in the whole process, named as above | it is poison |
//! | 3 | nothing until the poison record has become a dead letter; then anything | the same, until the letter is settled |
//!
//! A period that ends well neither counts nor acquits: only a suspect that is settled is none any more.
//!
//! And it tells of which incarnation of its topic it speaks, if that is known: a topic that was deleted and created again
//! has the same name and other records, and of a commit for the former neither watermark nor ack map means anything.
//!
//! The text is `;t1:` behind the ack map's and, in unpadded URL-safe base64, a CRC-32 (4 bytes, little-endian, over the
//! watermark and what follows), a byte with the number of crashes, whether the period is open and whether the incarnation is
//! told, the process (4 bytes, little-endian), the incarnation if it is told (8 bytes, little-endian), and as LEB128 from the
//! watermark on: up to where records were handed over, up to where the suspects lie, and for each failing record its
//! distance from the one before it and its attempts.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::ack_map::{AckMapError, push_leb128, take_leb128};
use crate::record::Offset;

/// Crashes in a row with the same record in flight after which it is poison.
pub const CRASHES_MAX: u8 = 3;

/// Failing records whose attempts are told.
pub const ATTEMPTS_TOLD_MAX: usize = 16;

/// How far above what was last known to be handed over a suspect of the first crash may lie: more than is usually received
/// between two commits. A poison record beyond it costs further crashes, each of which begins closer to it.
const UNTOLD_SPAN: i64 = 10_000;

/// Begins our part of the text, and tells its version.
const PREFIX: &str = ";t1:";

/// Set when the period is open, beside the number of crashes.
const OPEN: u8 = 0x80;

/// Set when the incarnation is told.
const INCARNATION: u8 = 0x40;

/// What is told of a period of ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// Whether the partition has not been given back.
    pub open: bool,
    /// Tells the process that owned it from others.
    pub process: u32,
    /// Tells the topic from others that had its name before or will have it after; `None` when that is not known.
    pub incarnation: Option<u64>,
    /// How many periods in a row have ended in a crash, up to [`CRASHES_MAX`].
    pub crashes: u8,
    /// Nothing from this offset on was with a worker yet; at or below the watermark when nothing was at all.
    pub handed_to: Offset,
    /// The suspects lie below this offset.
    pub suspects_to: Offset,
    /// How many attempts have failed, of the oldest failing records, by rising offset.
    pub attempts: Vec<(Offset, u32)>,
}

/// What the crashes so far are laid to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suspicion {
    /// Nothing.
    #[default]
    None,
    /// What is unsettled below `to`, after one crash or two.
    Below {
        /// 1 or 2.
        crashes: u8,
        /// The offset after the last suspect.
        to: Offset,
    },
    /// This record.
    Poison(Offset),
}

impl Trail {
    /// What `process`, the next owner, has to think of the records from `watermark` on, in a log that ends at `end`.
    pub fn suspicion(&self, process: u32, watermark: Offset, end: Option<Offset>) -> Suspicion {
        let crashed = self.open && self.process != process;
        let handed = self.handed_to > watermark;
        let to_end = |to: Offset| end.map_or(to, |end| to.min(end));
        let (crashes, to) = match (self.crashes, crashed) {
            (0, false) => return Suspicion::None,
            (0, true) => {
                let known = self.handed_to.max(watermark).get();
                (1, to_end(Offset::new(known.saturating_add(UNTOLD_SPAN))))
            }
            (1, true) if handed => (2, self.handed_to),
            (2, true) if handed => return Suspicion::Poison(watermark),
            (crashes @ (1 | 2), _) => (crashes, self.suspects_to),
            // Settled by its dead letter, it is below the watermark.
            _ if handed => return Suspicion::Poison(watermark),
            _ => return Suspicion::None,
        };
        match to > watermark {
            true => Suspicion::Below { crashes, to },
            false => Suspicion::None,
        }
    }

    /// The text to put behind the ack map's; empty when there is nothing to tell, or no room to tell it. Without room for
    /// the attempts, the crashes are told alone.
    pub fn encode(&self, watermark: Offset, text_len_max: usize) -> String {
        if !self.open && self.crashes == 0 && self.attempts.is_empty() && self.incarnation.is_none() {
            return String::new();
        }
        let text = self.encode_with(&self.attempts, watermark);
        if text.len() <= text_len_max {
            return text;
        }
        let text = self.encode_with(&[], watermark);
        if text.len() <= text_len_max {
            text
        } else {
            String::new()
        }
    }

    fn encode_with(&self, attempts: &[(Offset, u32)], watermark: Offset) -> String {
        let above = |offset: Offset| offset.get().saturating_sub(watermark.get()).max(0) as u64;
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let told = flag(self.open, OPEN) | flag(self.incarnation.is_some(), INCARNATION);
        let mut body = vec![self.crashes | told];
        body.extend_from_slice(&self.process.to_le_bytes());
        body.extend(
            self.incarnation
                .iter()
                .flat_map(|incarnation| incarnation.to_le_bytes()),
        );
        push_leb128(&mut body, above(self.handed_to));
        push_leb128(&mut body, above(self.suspects_to));
        let mut before = 0;
        for (offset, attempts) in attempts
            .iter()
            .filter(|(offset, _)| *offset >= watermark)
            .take(ATTEMPTS_TOLD_MAX)
        {
            push_leb128(&mut body, above(*offset) - before);
            push_leb128(&mut body, u64::from(*attempts));
            before = above(*offset);
        }
        let mut bytes = checksum(watermark, &body).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        let mut text = PREFIX.to_owned();
        URL_SAFE_NO_PAD.encode_string(bytes, &mut text);
        text
    }
}

/// Cuts a commit's metadata into the ack map's text and ours; the latter is empty when nothing is told.
pub(crate) fn split(metadata: &str) -> (&str, &str) {
    metadata.split_at(metadata.find(';').unwrap_or(metadata.len()))
}

/// What a commit's metadata tells, committed beside `watermark`.
///
/// # Errors
/// When our part of it is not wholly to be believed. Where there is none, nothing is told.
pub fn decode(metadata: &str, watermark: Offset) -> Result<Trail, AckMapError> {
    let (_, text) = split(metadata);
    if text.is_empty() {
        return Ok(Trail::default());
    }
    let encoded = text.strip_prefix(PREFIX).ok_or(AckMapError::Foreign)?;
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| AckMapError::Corrupt)?;
    let (sum, body) = bytes.split_at_checked(4).ok_or(AckMapError::Corrupt)?;
    if checksum(watermark, body).to_le_bytes() != sum {
        return Err(AckMapError::Corrupt);
    }
    decode_body(body, watermark).ok_or(AckMapError::Corrupt)
}

fn decode_body(body: &[u8], watermark: Offset) -> Option<Trail> {
    let (state, body) = body.split_first()?;
    let (process, mut body) = body.split_first_chunk()?;
    let mut incarnation = None;
    if state & INCARNATION != 0 {
        let (told, rest) = body.split_first_chunk()?;
        (incarnation, body) = (Some(u64::from_le_bytes(*told)), rest);
    }
    let at = |from: Offset, distance: u64| {
        let offset = from.get().checked_add(i64::try_from(distance).ok()?)?;
        // The offset after it is one too.
        (offset < i64::MAX).then(|| Offset::new(offset))
    };
    let crashes = state & !(OPEN | INCARNATION);
    let handed_to = at(watermark, take_leb128(&mut body)?)?;
    let suspects_to = at(watermark, take_leb128(&mut body)?)?;
    let (mut attempts, mut last) = (Vec::new(), watermark);
    while !body.is_empty() {
        last = at(last, take_leb128(&mut body)?)?;
        attempts.push((last, u32::try_from(take_leb128(&mut body)?).ok()?));
    }
    (crashes <= CRASHES_MAX).then_some(Trail {
        open: state & OPEN != 0,
        process: u32::from_le_bytes(*process),
        incarnation,
        crashes,
        handed_to,
        suspects_to,
        attempts,
    })
}

fn checksum(watermark: Offset, body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&watermark.get().to_le_bytes());
    crc.update(body);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ack_map;

    const MARK: Offset = Offset::ZERO;

    // The process that owned it, and the one that owns it next.
    const BEFORE: u32 = 1;
    const NEXT: u32 = 2;

    fn at(offset: i64) -> Offset {
        Offset::new(offset)
    }

    fn open(crashes: u8, handed_to: i64, suspects_to: i64) -> Trail {
        Trail {
            open: true,
            process: BEFORE,
            incarnation: None,
            crashes,
            handed_to: at(handed_to),
            suspects_to: at(suspects_to),
            attempts: Vec::new(),
        }
    }

    fn closed(trail: Trail) -> Trail {
        Trail { open: false, ..trail }
    }

    fn below(crashes: u8, to: i64) -> Suspicion {
        Suspicion::Below { crashes, to: at(to) }
    }

    #[test]
    fn three_crashes_in_a_row_convict_the_record_that_was_alone() {
        let end = Some(at(500));
        assert_eq!(open(0, 0, 0).suspicion(NEXT, MARK, end), below(1, 500));
        assert_eq!(open(1, 64, 500).suspicion(NEXT, MARK, end), below(2, 64));
        assert_eq!(open(2, 8, 64).suspicion(NEXT, at(7), end), Suspicion::Poison(at(7)));
        assert_eq!(open(3, 8, 8).suspicion(NEXT, at(7), end), Suspicion::Poison(at(7)));
        assert_eq!(open(3, 8, 8).suspicion(NEXT, at(8), end), Suspicion::None);
    }

    #[test]
    fn a_crash_with_nothing_in_flight_does_not_count() {
        assert_eq!(open(0, 500, 0).suspicion(NEXT, at(500), Some(at(500))), Suspicion::None);
        assert_eq!(open(1, 0, 500).suspicion(NEXT, MARK, None), below(1, 500));
        assert_eq!(open(2, 7, 64).suspicion(NEXT, at(7), None), below(2, 64));
        assert_eq!(open(2, 64, 64).suspicion(NEXT, at(64), None), Suspicion::None);
    }

    #[test]
    fn a_clean_end_neither_counts_nor_acquits() {
        assert_eq!(closed(open(0, 9, 0)).suspicion(NEXT, MARK, None), Suspicion::None);
        assert_eq!(closed(open(1, 64, 500)).suspicion(NEXT, MARK, None), below(1, 500));
        assert_eq!(closed(open(2, 8, 64)).suspicion(NEXT, at(7), None), below(2, 64));
        assert_eq!(
            closed(open(3, 8, 64)).suspicion(NEXT, at(7), None),
            Suspicion::Poison(at(7))
        );
    }

    #[test]
    fn a_process_that_lost_the_partition_and_lives_has_not_crashed() {
        for (told, then) in [
            (open(0, 9, 0), Suspicion::None),
            (open(1, 64, 500), below(1, 500)),
            (open(2, 8, 64), below(2, 64)),
        ] {
            assert_eq!(told.suspicion(BEFORE, MARK, None), then);
        }
    }

    #[test]
    fn nothing_to_tell_is_the_empty_text_and_no_room_tells_less() {
        assert_eq!(Trail::default().encode(MARK, 4096), "");
        let failing = Trail {
            attempts: (0..40).map(|offset| (at(offset), 2)).collect(),
            ..open(0, 90, 0)
        };
        let told = |room| decode(&failing.encode(MARK, room), MARK).unwrap();
        assert_eq!(told(4096).attempts, failing.attempts[..ATTEMPTS_TOLD_MAX]);
        assert_eq!(told(36), open(0, 90, 0));
        assert_eq!(told(10), Trail::default());
    }

    #[test]
    fn a_topic_is_told_from_its_namesakes_also_when_there_is_nothing_else_to_tell() {
        let told = Trail {
            incarnation: Some(7),
            ..Trail::default()
        };
        assert_eq!(decode(&told.encode(MARK, 4096), MARK), Ok(told.clone()));
        assert_eq!(told.suspicion(NEXT, MARK, None), Suspicion::None);
        assert_eq!(told.encode(MARK, 10), "", "without room it is not known");
    }

    #[test]
    fn a_text_without_a_trail_tells_nothing() {
        let map = ack_map::encode(MARK, [(at(3), at(9))], 4096).text;
        assert_eq!(decode(&map, MARK), Ok(Trail::default()));
        assert_eq!(decode("", MARK), Ok(Trail::default()));
        assert_eq!(decode(&format!("{map};t2:abcd"), MARK), Err(AckMapError::Foreign));
    }

    fn any_trail() -> impl Strategy<Value = (Offset, Trail)> {
        let attempts = proptest::collection::btree_map(0i64..1 << 40, 1u32.., 0..=ATTEMPTS_TOLD_MAX);
        let told = (
            any::<(bool, u32, Option<u64>)>(),
            0..=CRASHES_MAX,
            0i64..1 << 40,
            0i64..1 << 40,
            attempts,
        );
        (0i64..1 << 50, told).prop_map(
            |(mark, ((open, process, incarnation), crashes, handed, suspects, attempts))| {
                let trail = Trail {
                    open,
                    process,
                    incarnation,
                    crashes,
                    handed_to: at(mark + handed),
                    suspects_to: at(mark + suspects),
                    attempts: attempts
                        .into_iter()
                        .map(|(offset, made)| (at(mark + offset), made))
                        .collect(),
                };
                (at(mark), trail)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_told_is_heard_beside_any_ack_map((mark, trail) in any_trail(), above in 1i64..400) {
            // Else there is nothing to tell.
            let trail = Trail { open: trail.open || trail.crashes == 0, ..trail };
            let settled = at(mark.get() + above);
            let map = ack_map::encode(mark, [(settled, settled)], 4096).text;
            let metadata = format!("{map}{}", trail.encode(mark, 4096));
            prop_assert!(metadata.is_ascii() && metadata.len() < 600);
            prop_assert_eq!(decode(&metadata, mark), Ok(trail));
            let ranges = ack_map::decode(&metadata, mark, Some(at(mark.get() + 500)));
            prop_assert_eq!(ranges, Ok(vec![settled..=settled]));
        }

        #[test]
        fn no_text_panics_and_no_damage_is_believed(
            (mark, trail) in any_trail(), text in "(;t1:)?[ -~]{0,80}", (place, to) in any::<(usize, u8)>(),
        ) {
            if let Ok(trail) = decode(&text, mark) {
                let _ = trail.suspicion(NEXT, mark, None);
            }
            let mut damaged = trail.encode(mark, 4096).into_bytes();
            if damaged.is_empty() {
                return Ok(());
            }
            let (place, to) = (place % damaged.len(), to & 0x7f);
            if damaged[place] != to {
                damaged[place] = to;
                prop_assert!(ack_map::decode(std::str::from_utf8(&damaged).unwrap(), mark, Some(at(i64::MAX))).is_err());
            }
        }

        #[test]
        fn bytes_of_any_kind_are_read_or_refused(mark in 0i64.., body in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(trail) = decode_body(&body, at(mark)) {
                let _ = trail.suspicion(NEXT, at(mark), None);
            }
        }
    }
}
