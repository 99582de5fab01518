//! What is delivered of each partition, and what is kept back.

use std::collections::{HashMap, VecDeque};

use seriatim_engine::assignment::AssignmentEpoch;
use seriatim_engine::budget::Flow;
use seriatim_engine::growth::Gates;
use seriatim_engine::record::{Offset, PartitionId};

/// Before all offsets.
const NO_PLACE: i64 = -1;

/// Beyond all offsets.
const NO_FENCE: i64 = i64::MAX;

/// The partitions that are delivered, by name.
#[derive(Debug)]
pub(crate) struct Deliveries<M> {
    topics: HashMap<String, HashMap<i32, Delivery<M>>>,
    /// Partitions that flow again, and whose stash has to be delivered first. Some may be held anew, or gone.
    releases: VecDeque<PartitionId>,
    all_held: bool,
    /// At which places partitions were out of their logs, as was said when they were not delivered. One each.
    outlived: HashMap<PartitionId, Offset>,
}

/// One partition in one period of ownership.
///
/// Records that librdkafka has delivered cannot be put back. So those of a held partition that are on their way already
/// are stashed, and when the first has come the partition's queue is diverted, to keep the rest itself: the stash is
/// bounded by what was prefetched. Released, the stash is delivered first, then the queue is led back.
#[derive(Debug)]
pub(crate) struct Delivery<M> {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: AssignmentEpoch,
    /// What is delivered next is at this offset or beyond; negative while no place is known, and whatever comes is taken.
    next: i64,
    /// Nothing is delivered from this offset on: it cannot be read, and what follows must not overtake it.
    end: Option<i64>,
    /// Nothing is delivered from this offset on before it is fetched anew.
    fence: i64,
    flow: Flow,
    /// Nothing is delivered before it is opened, whatever the flow.
    barred: bool,
    /// What is fetched from now on may be of another topic of the same name: the queue keeps it.
    doubted: bool,
    diverted: bool,
    stash: VecDeque<M>,
}

impl<M> Default for Deliveries<M> {
    fn default() -> Self {
        Self {
            topics: HashMap::new(),
            releases: VecDeque::new(),
            all_held: false,
            outlived: HashMap::new(),
        }
    }
}

impl<M> Deliveries<M> {
    /// Begins the delivery of a partition.
    pub(crate) fn begin(&mut self, partition: PartitionId, epoch: AssignmentEpoch, from: Option<Offset>) {
        let delivery = Delivery {
            epoch,
            next: from.map_or(NO_PLACE, Offset::get),
            end: None,
            fence: NO_FENCE,
            flow: Flow::Flowing,
            barred: false,
            doubted: false,
            diverted: false,
            stash: VecDeque::new(),
            partition,
        };
        let topic = self.topics.entry(delivery.partition.topic().to_owned()).or_default();
        topic.insert(delivery.partition.number(), delivery);
        self.note_flow();
    }

    /// Ends it; the stash is dropped.
    pub(crate) fn end(&mut self, partition: &PartitionId) {
        if let Some(topic) = self.topics.get_mut(partition.topic()) {
            topic.remove(&partition.number());
        }
        self.note_flow();
    }

    /// Ends everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn get(&self, partition: &PartitionId) -> Option<&Delivery<M>> {
        self.topics.get(partition.topic())?.get(&partition.number())
    }

    pub(crate) fn get_mut(&mut self, topic: &str, number: i32) -> Option<&mut Delivery<M>> {
        self.topics.get_mut(topic)?.get_mut(&number)
    }

    /// Holds or releases a partition.
    pub(crate) fn set_flow(&mut self, partition: &PartitionId, flow: Flow) {
        if let Some(delivery) = self.get_mut(partition.topic(), partition.number()) {
            delivery.flow = flow;
            if delivery.is_released() {
                self.releases.push_back(partition.clone());
            }
        }
        self.note_flow();
    }

    /// Lets a partition that has just begun deliver nothing before it is [opened](Self::open): its queue is to be held.
    pub(crate) fn bar(&mut self, partition: &PartitionId) {
        if let Some(delivery) = self.get_mut(partition.topic(), partition.number()) {
            (delivery.barred, delivery.diverted) = (true, true);
        }
        self.note_flow();
    }

    /// Whether a partition's queue is led away, to keep its records itself.
    pub(crate) fn is_diverted(&self, partition: &PartitionId) -> bool {
        self.get(partition).is_some_and(|delivery| delivery.diverted)
    }

    /// Opens the barred partitions that are behind none of these gates.
    pub(crate) fn open(&mut self, gates: &Gates) {
        let deliveries = self.topics.values_mut().flat_map(HashMap::values_mut);
        let barred = deliveries.filter(|delivery| delivery.barred);
        for delivery in barred.filter(|delivery| !gates.bars(delivery.partition.topic(), delivery.partition.number())) {
            delivery.barred = false;
            if delivery.is_released() {
                self.releases.push_back(delivery.partition.clone());
            }
        }
        self.note_flow();
    }

    /// Lets the partitions of a topic keep in their queues, which are to be held, what is fetched from now on, until it is
    /// [trusted](Self::trust). Returns whether there are any.
    pub(crate) fn doubt(&mut self, topic: &str, mut hold: impl FnMut(&PartitionId)) -> bool {
        let deliveries = self.topics.get_mut(topic).into_iter().flat_map(HashMap::values_mut);
        let mut any = false;
        for delivery in deliveries {
            (any, delivery.doubted) = (true, true);
            if !delivery.diverted {
                delivery.diverted = true;
                hold(&delivery.partition);
            }
        }
        any
    }

    /// Lets the doubted partitions of a topic go on.
    pub(crate) fn trust(&mut self, topic: &str) {
        let deliveries = self.topics.get_mut(topic).into_iter().flat_map(HashMap::values_mut);
        for delivery in deliveries.filter(|delivery| delivery.doubted) {
            delivery.doubted = false;
            if delivery.is_released() {
                self.releases.push_back(delivery.partition.clone());
            }
        }
    }

    /// Whether nothing would be delivered, whatever came: then nothing need be read, and nothing be stashed.
    pub(crate) fn all_held(&self) -> bool {
        self.all_held
    }

    /// Whether the client fetches the partition: its queue is not left to fill up.
    pub(crate) fn is_fetched(&self, partition: &PartitionId) -> bool {
        self.get(partition)
            .is_some_and(|delivery| delivery.flows() && !delivery.doubted)
    }

    // Derived from what is there rather than counted along: a count that leaks would hold the intake for ever.
    fn note_flow(&mut self) {
        let mut all = self.topics.values().flat_map(HashMap::values).peekable();
        self.all_held = all.peek().is_some() && all.all(|delivery| !delivery.flows());
    }

    /// A partition that was released and still keeps something back.
    pub(crate) fn released(&mut self) -> Option<&mut Delivery<M>> {
        loop {
            let partition = self.releases.front()?.clone();
            let (topic, number) = (partition.topic(), partition.number());
            if self
                .get_mut(topic, number)
                .is_some_and(|delivery| delivery.is_released())
            {
                return self.get_mut(topic, number);
            }
            self.releases.pop_front();
        }
    }

    /// Lets a partition go on at an offset beyond all that was delivered.
    pub(crate) fn skip_to(&mut self, partition: &PartitionId, to: Offset) {
        if let Some(delivery) = self.get_mut(partition.topic(), partition.number()) {
            delivery.next = delivery.next.max(to.get());
        }
    }

    /// Where a partition goes on if the client fetches it anew; `None` while that is where it began, and nothing has come.
    pub(crate) fn position(&self, partition: &PartitionId) -> Option<Offset> {
        let next = self.get(partition)?.next;
        (next > NO_PLACE).then(|| Offset::new(next))
    }

    /// Lets a partition deliver nothing from the place on that is said to be out of its log, before it is [fetched
    /// anew](Self::unfence). If that was said of an earlier period, the client still fetches; but it takes the place for
    /// consumed, and goes on behind it after a rebalance, whatever lies before (`rd_kafka_q_serve_rkmessages`,
    /// `rd_kafka_toppar_pause_resume`).
    pub(crate) fn fence(&mut self, partition: &PartitionId, from: Option<Offset>) {
        if let Some(from) = from.map(Offset::get)
            && let Some(delivery) = self.get_mut(partition.topic(), partition.number())
            && from >= delivery.next
        {
            delivery.fence = delivery.fence.min(from);
        }
    }

    /// The client fetches the partition anew, from its [position](Self::position).
    pub(crate) fn unfence(&mut self, partition: &PartitionId) {
        if let Some(delivery) = self.get_mut(partition.topic(), partition.number()) {
            delivery.fence = NO_FENCE;
        }
    }

    /// Keeps for its next period what is said of a partition that is not delivered: the client [takes it for
    /// consumed](Self::fence).
    pub(crate) fn note_outlived(&mut self, partition: PartitionId, place: Option<Offset>) {
        self.outlived.extend(place.map(|place| (partition, place)));
    }

    /// What was kept.
    pub(crate) fn take_outlived(&mut self, partition: &PartitionId) -> Option<Offset> {
        self.outlived.remove(partition)
    }

    /// The period of ownership in which a partition is delivered.
    pub(crate) fn epoch(&self, partition: &PartitionId) -> Option<AssignmentEpoch> {
        Some(self.get(partition)?.epoch)
    }

    /// Lets a partition stand still at an offset, or where it is, for the rest of its period of ownership.
    pub(crate) fn stop(&mut self, partition: &PartitionId, at: Option<Offset>) {
        if let Some(delivery) = self.get_mut(partition.topic(), partition.number()) {
            delivery.end = Some(at.map_or(delivery.next, Offset::get));
        }
        self.note_flow();
    }
}

impl<M> Delivery<M> {
    /// Returns `message` if it is to be delivered now. One that was delivered before is dropped: librdkafka fetches
    /// anew from the last place that it knows to be consumed, and a batch that was under way at a rebalance may be
    /// beyond (`rd_kafka_toppar_pause_resume`, `rd_kafka_q_serve_rkmessages`).
    #[inline]
    pub(crate) fn pass(&mut self, offset: i64, message: M) -> Option<M> {
        if offset < self.next || offset >= self.fence || self.end.is_some_and(|end| offset >= end) {
            return None;
        }
        self.next = offset + 1;
        if self.flow == Flow::Flowing && !self.barred && self.stash.is_empty() {
            return Some(message);
        }
        self.stash.push_back(message);
        None
    }

    /// Whether anything is wanted of it.
    pub(crate) fn flows(&self) -> bool {
        self.flow == Flow::Flowing && !self.barred && self.end.is_none()
    }

    /// Whether the queue has to be diverted: it delivers, and nothing is wanted. Says so once.
    pub(crate) fn divert(&mut self) -> bool {
        let divert = !self.flows() && !self.diverted;
        self.diverted |= divert;
        divert
    }

    /// Whether the queue has to be led back: it was diverted, and what came before has been delivered. Says so once.
    pub(crate) fn lead_back(&mut self) -> bool {
        let lead_back = self.flows() && !self.doubted && self.stash.is_empty() && self.diverted;
        self.diverted &= !lead_back;
        lead_back
    }

    /// The first of the stash, at most `max`.
    pub(crate) fn unstash(&mut self, max: usize) -> impl ExactSizeIterator<Item = M> {
        let len = self.stash.len().min(max);
        self.stash.drain(..len)
    }

    /// Whether it may deliver, and something of it is kept back.
    fn is_released(&self) -> bool {
        let may_flow_again = self.flows() && !self.doubted && self.diverted;
        self.flow == Flow::Flowing && !self.barred && !self.stash.is_empty() || may_flow_again
    }
}

#[cfg(test)]
mod tests {
    use seriatim_engine::assignment::Assignments;

    use super::*;

    fn one_partition() -> (Deliveries<i64>, PartitionId) {
        let partition = PartitionId::new("orders", 3);
        let mut deliveries = Deliveries::default();
        let epoch = Assignments::default().open(());
        deliveries.begin(partition.clone(), epoch, Some(Offset::new(10)));
        (deliveries, partition)
    }

    const NOTHING: [i64; 0] = [];

    fn pass(deliveries: &mut Deliveries<i64>, offsets: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let delivery = deliveries.get_mut("orders", 3).unwrap();
        offsets
            .into_iter()
            .filter_map(|offset| delivery.pass(offset, offset))
            .collect()
    }

    #[test]
    fn what_was_delivered_is_not_delivered_again() {
        let (mut deliveries, _) = one_partition();
        assert_eq!(pass(&mut deliveries, [10, 11, 14]), [10, 11, 14], "gaps are the log's");
        assert_eq!(pass(&mut deliveries, [11, 14, 15, -7]), [15]);
    }

    #[test]
    fn a_held_partition_delivers_nothing_and_loses_nothing() {
        let (mut deliveries, partition) = one_partition();
        assert_eq!(pass(&mut deliveries, [10]), [10]);
        deliveries.set_flow(&partition, Flow::Held);
        assert!(deliveries.all_held());
        assert_eq!(pass(&mut deliveries, [11, 12, 13]), NOTHING);
        assert!(deliveries.get_mut("orders", 3).unwrap().divert());
        assert!(!deliveries.get_mut("orders", 3).unwrap().divert(), "once is enough");
        assert!(deliveries.released().is_none());

        deliveries.set_flow(&partition, Flow::Flowing);
        assert!(!deliveries.all_held());
        let delivery = deliveries.released().unwrap();
        assert!(!delivery.lead_back(), "not before the stash is out");
        assert_eq!(delivery.unstash(2).collect::<Vec<_>>(), [11, 12]);
        assert_eq!(pass(&mut deliveries, [14]), NOTHING, "it waits behind the stash");
        let delivery = deliveries.released().unwrap();
        assert_eq!(delivery.unstash(9).collect::<Vec<_>>(), [13, 14]);
        assert!(delivery.lead_back());
        assert!(deliveries.released().is_none());
        assert_eq!(pass(&mut deliveries, [15]), [15]);
    }

    #[test]
    fn held_again_before_its_stash_is_out_it_stays_in_order() {
        let (mut deliveries, partition) = one_partition();
        deliveries.set_flow(&partition, Flow::Held);
        pass(&mut deliveries, [10, 11]);
        deliveries.set_flow(&partition, Flow::Flowing);
        assert_eq!(deliveries.released().unwrap().unstash(1).collect::<Vec<_>>(), [10]);

        deliveries.set_flow(&partition, Flow::Held);
        assert!(deliveries.released().is_none());
        deliveries.set_flow(&partition, Flow::Flowing);
        assert_eq!(deliveries.released().unwrap().unstash(9).collect::<Vec<_>>(), [11]);
        assert!(deliveries.released().is_none());
    }

    #[test]
    fn a_stopped_partition_delivers_what_is_before_and_nothing_beyond() {
        let (mut deliveries, partition) = one_partition();
        deliveries.set_flow(&partition, Flow::Held);
        assert_eq!(pass(&mut deliveries, [10]), NOTHING);
        deliveries.stop(&partition, Some(Offset::new(12)));
        assert_eq!(pass(&mut deliveries, [11, 12, 13]), NOTHING);
        assert!(deliveries.get_mut("orders", 3).unwrap().divert());

        deliveries.set_flow(&partition, Flow::Flowing);
        let delivery = deliveries.released().unwrap();
        assert_eq!(delivery.unstash(9).collect::<Vec<_>>(), [10, 11]);
        assert!(!delivery.lead_back(), "nothing more is wanted of it");
        assert!(deliveries.released().is_none());
        assert!(deliveries.all_held());
        assert_eq!(pass(&mut deliveries, [14]), NOTHING);
    }

    #[test]
    fn a_fenced_partition_delivers_what_is_before_and_the_rest_when_it_is_fetched_anew() {
        let (mut deliveries, partition) = one_partition();
        deliveries.fence(&partition, Some(Offset::new(14)));
        deliveries.fence(&partition, Some(Offset::new(12)));
        deliveries.fence(&partition, None);
        deliveries.fence(&partition, Some(Offset::new(9)));
        assert_eq!(pass(&mut deliveries, [10, 12, 13, 14]), [10]);
        assert_eq!(deliveries.position(&partition), Some(Offset::new(11)));
        deliveries.unfence(&partition);
        assert_eq!(pass(&mut deliveries, [11, 12, 13]), [11, 12, 13]);
    }

    #[test]
    fn a_partition_that_is_stopped_at_no_known_place_stops_where_it_is() {
        let (mut deliveries, partition) = one_partition();
        assert_eq!(pass(&mut deliveries, [10]), [10]);
        deliveries.stop(&partition, None);
        assert_eq!(pass(&mut deliveries, [11]), NOTHING);
    }

    #[test]
    fn a_barred_partition_delivers_nothing_before_it_is_opened() {
        let (mut deliveries, partition) = one_partition();
        deliveries.bar(&partition);
        assert!(deliveries.all_held() && deliveries.is_diverted(&partition) && !deliveries.is_fetched(&partition));
        deliveries.set_flow(&partition, Flow::Flowing);
        assert!(deliveries.released().is_none());
        assert_eq!(
            pass(&mut deliveries, [10]),
            NOTHING,
            "its queue is led away; what comes all the same is kept"
        );

        deliveries.open(&Gates::default());
        assert!(!deliveries.all_held());
        let delivery = deliveries.released().unwrap();
        assert_eq!(delivery.unstash(9).collect::<Vec<_>>(), [10]);
        assert!(delivery.lead_back());
        assert_eq!(pass(&mut deliveries, [11]), [11]);
    }

    #[test]
    fn a_doubted_partition_delivers_what_has_come_and_its_queue_keeps_the_rest() {
        let (mut deliveries, partition) = one_partition();
        let mut held = Vec::new();
        assert!(deliveries.doubt("orders", |partition| held.push(partition.clone())));
        assert!(deliveries.doubt("orders", |_| panic!("once is enough")));
        assert!(!deliveries.doubt("others", |_| panic!("there is none")));
        assert_eq!(held, std::slice::from_ref(&partition));
        assert!(deliveries.is_diverted(&partition) && !deliveries.is_fetched(&partition));
        assert_eq!(pass(&mut deliveries, [10, 11]), [10, 11], "it was fetched before");
        assert!(!deliveries.all_held() && deliveries.released().is_none());

        deliveries.set_flow(&partition, Flow::Held);
        assert_eq!(pass(&mut deliveries, [12]), NOTHING);
        deliveries.set_flow(&partition, Flow::Flowing);
        let delivery = deliveries.released().unwrap();
        assert_eq!(delivery.unstash(9).collect::<Vec<_>>(), [12]);
        assert!(!delivery.lead_back(), "it is doubted still");
        assert!(deliveries.released().is_none());

        deliveries.trust("orders");
        assert!(deliveries.released().unwrap().lead_back());
        assert!(deliveries.released().is_none());
    }

    #[test]
    fn what_is_held_back_goes_with_its_period_of_ownership() {
        let (mut deliveries, partition) = one_partition();
        deliveries.set_flow(&partition, Flow::Held);
        pass(&mut deliveries, [10, 11]);
        deliveries.set_flow(&partition, Flow::Flowing);
        deliveries.end(&partition);
        assert!(deliveries.released().is_none());
        assert!(
            !deliveries.all_held(),
            "with nothing to deliver, events of the queue are still read"
        );

        deliveries.begin(partition, Assignments::default().open(()), Some(Offset::new(10)));
        assert_eq!(pass(&mut deliveries, [10]), [10]);
    }
}
