//! Commits of groups, made as a member makes them.

use std::time::{Duration, Instant};

use seriatim_engine::assignment::Assignments;
use seriatim_engine::record::Offset;
use seriatim_kafka::config::Properties;
use seriatim_kafka::source::{KafkaSource, SourceSettings, StartAt};
use seriatim_runtime::ports::{Commit, CommitMode, Source, SourceEvent, Start};
use seriatim_testkit::broker::shared;

use crate::command::PATIENCE;

/// Commits as another program would.
pub(crate) fn commit(topic: &str, group: &str, watermark: i64, metadata: &str) {
    let (mut source, _waker) = KafkaSource::connect(SourceSettings {
        brokers: shared().bootstrap().to_owned(),
        group: group.to_owned(),
        topics: vec![topic.to_owned()],
        start_at: StartAt::Earliest,
        out_of_range: Default::default(),
        growth: Default::default(),
        properties: Properties::default(),
    })
    .unwrap();
    let deadline = Instant::now() + PATIENCE;
    let granted = loop {
        assert!(Instant::now() < deadline, "the group gives no partition");
        if let Some(SourceEvent::Assigned(granted)) = source.poll(Duration::from_millis(100), None).unwrap() {
            break granted;
        }
    };
    let epoch = Assignments::default().open(());
    source.start(&[Start {
        partition: granted[0].partition.clone(),
        epoch,
        from: granted[0].first_wanted(),
    }]);
    let commit = Commit {
        epoch,
        watermark: Offset::new(watermark),
        metadata: metadata.to_owned(),
    };
    source
        .commit(&[commit], CommitMode::Wait(Duration::from_secs(5)))
        .unwrap();
    source.relinquish(&[epoch]);
    source.close();
}
