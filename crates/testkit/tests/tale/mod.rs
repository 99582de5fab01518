//! Histories in words. A record is its session's letter and its offset, `a0`; `_3` has no session. A step is
//! `<instance> <verb> …`; one partition, limits as [`Tale::rules`] says.

use std::collections::HashMap;
use std::time::Duration;

use seriatim_engine::budget::Flow;
use seriatim_engine::record::{Offset, PartitionId, RecordId};
use seriatim_runtime::ports::DeadLetterReason;
use seriatim_testkit::history::{AckMap, Ended, Entry, EpochNumber, What};
use seriatim_testkit::judge::{Judgement, PartitionTruth, RecordTruth, Rules, Truth, judge};

pub(crate) struct Tale {
    entries: Vec<Entry>,
    truth: Truth,
    now: Duration,
    epochs: usize,
    owned: HashMap<u32, EpochNumber>,
    lease: bool,
    loss_slack: Duration,
    settled: bool,
}

fn chat() -> PartitionId {
    PartitionId::new("chat", 0)
}

fn offset(text: &str) -> Offset {
    Offset::new(text.parse().expect("an offset"))
}

fn ack_map(words: &[&str]) -> AckMap {
    let ranges = words.iter().skip(1).filter_map(|word| word.split_once('-'));
    ranges.map(|(first, last)| offset(first)..=offset(last)).collect()
}

fn attempts(words: &[&str]) -> Vec<(Offset, u32)> {
    let failed = words.iter().filter_map(|word| word.split_once('x'));
    failed
        .map(|(place, times)| (offset(place), times.parse().expect("a number")))
        .collect()
}

fn record(text: &str) -> RecordId {
    RecordId {
        partition: chat(),
        offset: offset(&text[1..]),
    }
}

impl Tale {
    pub(crate) fn of(records: &str) -> Self {
        let records: Vec<RecordTruth> = records
            .split_whitespace()
            .map(|text| RecordTruth {
                offset: offset(&text[1..]),
                session: (!text.starts_with('_')).then(|| text.as_bytes()[..1].to_vec()),
                fingerprint: 7,
            })
            .collect();
        let end = records.last().map_or(0, |last| last.offset.get() + 1);
        let partition = PartitionTruth {
            records,
            end,
            committed: None,
            settled: AckMap::new(),
        };
        Self {
            entries: Vec::new(),
            truth: Truth {
                partitions: [(chat(), partition)].into(),
                ..Truth::default()
            },
            now: Duration::ZERO,
            epochs: 0,
            owned: HashMap::new(),
            lease: false,
            loss_slack: Duration::ZERO,
            settled: true,
        }
    }

    pub(crate) fn leased(mut self) -> Self {
        self.lease = true;
        self
    }

    /// Workers hear of losses so many milliseconds later.
    pub(crate) fn slack(mut self, millis: u64) -> Self {
        self.loss_slack = Duration::from_millis(millis);
        self
    }

    pub(crate) fn unfinished(mut self) -> Self {
        self.settled = false;
        self
    }

    pub(crate) fn tell(mut self, steps: &str) -> Self {
        for step in steps.split(';') {
            let words: Vec<&str> = step.split_whitespace().collect();
            self.step(words[0].parse().expect("an instance"), words[1], &words[2..]);
        }
        self
    }

    fn step(&mut self, instance: u32, verb: &str, words: &[&str]) {
        let number = |at: usize, default: u32| words.get(at).map_or(default, |word| word.parse().expect("a number"));
        let what = match verb {
            "assign" => self.assign(instance, words),
            "revoke" => What::RevokeBegin(self.owned[&instance]),
            "give-back" => What::RevokeEnd(self.owned[&instance]),
            "lost" => What::Lost(self.owned[&instance]),
            "deliver" => What::Delivered(self.owned[&instance], number(0, 1) as usize, Offset::ZERO),
            "hold" => What::FlowSet(self.owned[&instance], Flow::Held),
            "start" => What::Start {
                record: record(words[0]),
                attempt: number(1, 1),
                fingerprint: 7,
            },
            "ok" => What::End(record(words[0]), number(1, 1), Ended::Handled),
            "fail" => What::End(record(words[0]), number(1, 1), Ended::Transient),
            "reject" => What::End(record(words[0]), number(1, 1), Ended::Permanent),
            "drop" => What::End(record(words[0]), number(1, 1), Ended::Cancelled),
            "keep" => What::Kept(record(words[0]), number(1, 1)),
            "retry" => What::Retry(
                record(words[0]),
                1,
                self.now + Duration::from_millis(number(1, 0).into()),
            ),
            "letter" => What::LetterSent(record(words[0]), reason(words[1]), number(2, 0)),
            "letter-ok" => self.letter(record(words[0]), Some(7)),
            "letter-garbled" => self.letter(record(words[0]), Some(8)),
            "letter-lost" => self.letter(record(words[0]), None),
            "commit" => return self.commit(instance, words),
            "recorded" => return self.record(words),
            "send" => What::CommitSent(self.owned[&instance], offset(words[0]), ack_map(words)),
            "refused" => What::CommitAnswered(self.owned[&instance], false),
            "map-cut" => What::MapCut(chat()),
            "expire" => What::Expired,
            "crash" => What::Crashed,
            "pause" => What::Paused,
            "resume" => What::Resumed,
            "wait" => return self.now += Duration::from_millis(number(0, 0).into()),
            _ => panic!("{verb}: no such verb"),
        };
        self.note(instance, what);
    }

    fn note(&mut self, instance: u32, what: What) {
        let at = self.now;
        self.entries.push(Entry { at, instance, what });
    }

    /// `assign`, `assign 4`, with an ack map `assign 4 6-7`, or with attempts `assign 4 5x2`.
    fn assign(&mut self, instance: u32, words: &[&str]) -> What {
        let epoch = EpochNumber(self.epochs);
        self.epochs += 1;
        self.owned.insert(instance, epoch);
        What::Assign {
            epoch,
            partition: chat(),
            committed: words.first().map(|word| offset(word)),
            settled: ack_map(words),
            attempts: attempts(words),
        }
    }

    fn letter(&mut self, record: RecordId, fingerprint: Option<u64>) -> What {
        self.truth
            .letters
            .entry(record.clone())
            .or_default()
            .extend(fingerprint);
        What::LetterAcked(record)
    }

    fn commit(&mut self, instance: u32, words: &[&str]) {
        let watermark = offset(words[0]);
        let epoch = self.owned[&instance];
        self.note(instance, What::CommitSent(epoch, watermark, ack_map(words)));
        self.note(instance, What::CommitAnswered(epoch, true));
        self.truth.commits.push((chat(), watermark, true));
        self.record(words);
    }

    /// What the group has on record in the end.
    fn record(&mut self, words: &[&str]) {
        let partition = self.truth.partitions.get_mut(&chat()).expect("it is there");
        (partition.committed, partition.settled) = (Some(offset(words[0])), ack_map(words));
    }

    /// Three attempts, three handlers, ten records, drains of 100 ms, two starts for a look at the clock.
    fn rules(&self) -> Rules {
        Rules {
            attempts_max: 3,
            in_flight_max: 3,
            unsettled_max: 10,
            drain_max: Duration::from_millis(100),
            lease: self.lease,
            starts_per_look: 2,
            loss_slack: self.loss_slack,
            settled: self.settled,
            ..Rules::default()
        }
    }

    fn judge(&self) -> Judgement {
        judge(&self.entries, &self.truth, &self.rules())
    }

    pub(crate) fn assert_good(self) {
        self.judge().assert_clean();
    }

    /// The first thing that the judge finds is this.
    #[track_caller]
    pub(crate) fn assert_breaks(self, property: &str) {
        let judgement = self.judge();
        let first = judgement.violations.first().map(|violation| violation.property);
        assert_eq!(first, Some(property), "{:#?}", judgement.violations);
    }
}

fn reason(word: &str) -> DeadLetterReason {
    match word {
        "permanent" => DeadLetterReason::Permanent,
        "exhausted" => DeadLetterReason::Exhausted,
        "undecodable" => DeadLetterReason::Undecodable,
        _ => panic!("{word}: no such reason"),
    }
}
