//! How much may be unsettled before intake is held.
//!
//! Each partition has its own usage and its own limits; the usage of the whole is the sum of the partitions', derived
//! when it is asked for rather than counted a second time. Intake is held when a limit is passed and flows again only
//! when a fair part of it is free, so that a usage that hovers at its limit does not switch the source at every step.

use std::iter::Sum;

/// Where usage must fall for a held intake to flow again, as a fraction of the limit. A quarter of the limit is enough
/// room for several fetches, and leaves three quarters of the work for the workers while intake starts again.
const RESUME: (u128, u128) = (3, 4);

/// How much a consumer may hold that is not settled.
///
/// A limit of the whole is passed by one record at most. A partition's is looked at between batches, so it may be passed by
/// what one batch brings of it. Bytes are those of keys and values, and a few for each record; headers are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all unsettled records. 256 MiB: beside the client's own buffers this
    /// leaves room in a container of 1 GiB.
    pub unsettled_bytes_max: usize,
    /// Number of all unsettled records. 1,000,000: small records cost more in lanes and ledgers than in bytes, at most
    /// some 300 bytes each, so this bounds what the limit in bytes does not see.
    pub unsettled_records_max: usize,
    /// Bytes of the unsettled records of one partition. 64 MiB, a quarter of the whole: three stuck partitions still
    /// leave room for the others.
    pub partition_bytes_max: usize,
    /// Number of unsettled records of one partition. 200,000, a fifth of the whole: at 100,000 records a second this
    /// is two seconds of work, and a crash repeats at most as many.
    pub partition_records_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unsettled_bytes_max: 256 << 20,
            unsettled_records_max: 1_000_000,
            partition_bytes_max: 64 << 20,
            partition_records_max: 200_000,
        }
    }
}

/// How much is unsettled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of records.
    pub records: usize,
    /// Bytes of their keys, headers and payloads.
    pub bytes: usize,
}

impl Usage {
    /// The usage of nothing.
    pub const ZERO: Usage = Usage { records: 0, bytes: 0 };

    /// The usage of one record of `bytes` bytes.
    #[inline]
    pub const fn record(bytes: usize) -> Self {
        Self { records: 1, bytes }
    }

    /// Counts what was admitted.
    ///
    /// # Panics
    /// On overflow: no memory holds that much.
    #[inline]
    pub fn add(&mut self, admitted: Usage) {
        *self = self
            .checked_add(admitted)
            .unwrap_or_else(|| panic!("usage overflows: {self:?} and {admitted:?}"));
    }

    /// Counts what was settled, or went away with its partition.
    ///
    /// # Panics
    /// When more goes than came: something was counted twice.
    #[inline]
    pub fn sub(&mut self, settled: Usage) {
        *self = self
            .checked_sub(settled)
            .unwrap_or_else(|| panic!("more goes than came: {settled:?} of {self:?}"));
    }

    /// Whether there is more than either limit allows.
    #[inline]
    pub fn exceeds(&self, records_max: usize, bytes_max: usize) -> bool {
        self.records > records_max || self.bytes > bytes_max
    }

    /// Whether usage has fallen far enough below both limits, to three quarters, for a held intake to flow again.
    #[inline]
    pub fn below_resume(&self, records_max: usize, bytes_max: usize) -> bool {
        self.records <= resume(records_max) && self.bytes <= resume(bytes_max)
    }

    fn checked_add(self, other: Usage) -> Option<Usage> {
        Some(Usage {
            records: self.records.checked_add(other.records)?,
            bytes: self.bytes.checked_add(other.bytes)?,
        })
    }

    fn checked_sub(self, other: Usage) -> Option<Usage> {
        Some(Usage {
            records: self.records.checked_sub(other.records)?,
            bytes: self.bytes.checked_sub(other.bytes)?,
        })
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(usages: I) -> Usage {
        usages.fold(Usage::ZERO, |mut total, usage| {
            total.add(usage);
            total
        })
    }
}

fn resume(max: usize) -> usize {
    (max as u128 * RESUME.0 / RESUME.1) as usize
}

/// Whether intake of a partition, or of the whole, goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Records are read.
    #[default]
    Flowing,
    /// Nothing is read until enough is settled (backpressure).
    Held,
}

/// What becomes of the flow at this usage: it is held when a limit is exceeded, and released below the resume mark.
#[inline]
pub fn flow(current: Flow, usage: Usage, records_max: usize, bytes_max: usize) -> Flow {
    match current {
        Flow::Flowing if usage.exceeds(records_max, bytes_max) => Flow::Held,
        Flow::Held if usage.below_resume(records_max, bytes_max) => Flow::Flowing,
        unchanged => unchanged,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A flow under limits of 100 records and 1,000 bytes.
    fn after(current: Flow, records: usize, bytes: usize) -> Flow {
        flow(current, Usage { records, bytes }, 100, 1_000)
    }

    #[test]
    fn intake_is_held_beyond_a_limit_and_flows_again_at_three_quarters_of_both() {
        let flowing = after(Flow::Flowing, 100, 1_000);
        assert_eq!(flowing, Flow::Flowing, "a limit of 100 lets 100 in");

        let held = after(flowing, 101, 500);
        assert_eq!(held, Flow::Held);
        assert_eq!(after(held, 76, 500), Flow::Held, "still above three quarters");
        assert_eq!(
            after(held, 75, 751),
            Flow::Held,
            "the bytes are still above, whatever the records"
        );
        assert_eq!(after(held, 75, 750), Flow::Flowing);
        assert_eq!(after(Flow::Flowing, 1, 1_001), Flow::Held, "one huge record is enough");
    }

    #[test]
    fn usage_of_the_whole_is_the_sum_of_the_partitions() {
        let mut orders = Usage::ZERO;
        orders.add(Usage::record(30));
        orders.add(Usage::record(12));
        let invoices = Usage::record(8);
        assert_eq!(
            [orders, invoices].into_iter().sum::<Usage>(),
            Usage { records: 3, bytes: 50 }
        );

        orders.sub(Usage::record(30));
        orders.sub(Usage::record(12));
        assert_eq!(orders, Usage::ZERO);
    }

    #[test]
    #[should_panic(expected = "more goes than came")]
    fn a_record_that_is_given_back_twice_is_a_bug() {
        let mut usage = Usage::record(30);
        usage.sub(Usage::record(20));
        usage.sub(Usage::record(0));
    }

    #[test]
    fn one_partition_cannot_use_up_the_whole() {
        let limits = Limits::default();
        assert!(limits.partition_bytes_max * 2 <= limits.unsettled_bytes_max);
        assert!(limits.partition_records_max * 2 <= limits.unsettled_records_max);
    }

    /// Limits of every size, with the small and the extreme among them.
    fn max() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..10, 0usize..1_000_000, Just(usize::MAX - 1), Just(usize::MAX)]
    }

    fn any_flow() -> impl Strategy<Value = Flow> {
        prop_oneof![Just(Flow::Flowing), Just(Flow::Held)]
    }

    proptest! {
        #[test]
        fn nothing_flaps(
            current in any_flow(),
            (records_max, bytes_max) in (max(), max()),
            (records, bytes) in (max(), max()),
        ) {
            let usage = Usage { records, bytes };
            let next = flow(current, usage, records_max, bytes_max);
            prop_assert_eq!(flow(next, usage, records_max, bytes_max), next, "an unchanged usage changes nothing");

            let in_band = !usage.exceeds(records_max, bytes_max) && !usage.below_resume(records_max, bytes_max);
            if in_band {
                prop_assert_eq!(next, current, "inside the band the flow stays as it is");
            }
        }

        #[test]
        fn held_always_ends_when_all_is_settled(records_max in max(), bytes_max in max()) {
            prop_assert_eq!(flow(Flow::Held, Usage::ZERO, records_max, bytes_max), Flow::Flowing);
        }

        #[test]
        fn a_walk_changes_the_flow_only_after_it_crossed_the_band(
            records_max in 4usize..200,
            walk in prop::collection::vec(-3isize..=3, 0..500),
        ) {
            let (mut usage, mut current) = (Usage::ZERO, Flow::Flowing);
            let mut turned_at = 0;
            for step in walk {
                usage.records = usage.records.saturating_add_signed(step);
                let next = flow(current, usage, records_max, usize::MAX);
                if next != current {
                    let crossed = usage.records.abs_diff(turned_at);
                    prop_assert!(crossed > records_max / 4, "turned after {} of a limit of {}", crossed, records_max);
                    (current, turned_at) = (next, usage.records);
                }
            }
        }

        #[test]
        fn what_comes_and_goes_leaves_nothing(sizes in prop::collection::vec(0usize..10_000, 0..50)) {
            let mut usage = sizes.iter().copied().map(Usage::record).sum::<Usage>();
            prop_assert_eq!(usage, Usage { records: sizes.len(), bytes: sizes.iter().sum() });
            for size in sizes {
                usage.sub(Usage::record(size));
            }
            prop_assert_eq!(usage, Usage::ZERO);
        }
    }
}
