//! What tests do to topics that are read: records deleted from the front, topics deleted and created anew.

// Each test binary uses its part of this.
#![allow(dead_code)]

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::topic_partition_list::{Offset as Place, TopicPartitionList};
use seriatim_testkit::broker;
use tokio::runtime::{Builder, Runtime};

use crate::member::{brokers, produce};

pub(crate) struct Admin {
    client: AdminClient<DefaultClientContext>,
    runtime: Runtime,
}

impl Admin {
    pub(crate) fn new() -> Self {
        Self {
            client: ClientConfig::new()
                .set("bootstrap.servers", brokers())
                .create()
                .unwrap(),
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
        }
    }

    /// Deletes the records of partition 0 below an offset.
    pub(crate) fn delete_records(&self, topic: &str, below: i64) {
        self.delete_records_of(topic, [0], below);
    }

    pub(crate) fn delete_records_of(&self, topic: &str, partitions: impl IntoIterator<Item = i32>, below: i64) {
        let mut places = TopicPartitionList::new();
        for partition in partitions {
            let place = Place::Offset(below);
            places.add_partition_offset(topic, partition, place).unwrap();
        }
        let deleted = self.client.delete_records(&places, &AdminOptions::new());
        self.runtime.block_on(deleted).unwrap();
    }

    /// Deletes a topic, and creates it anew with so many records in each partition.
    pub(crate) fn recreate(&self, topic: &str, partitions: i32, count: usize) {
        self.delete(topic);
        self.create(topic, partitions, count);
    }

    pub(crate) fn delete(&self, topic: &str) {
        let deleted = self.client.delete_topics(&[topic], &AdminOptions::new());
        for topic in self.runtime.block_on(deleted).unwrap() {
            topic.unwrap();
        }
    }

    pub(crate) fn create(&self, topic: &str, partitions: i32, count: usize) {
        broker::shared().create_topic(topic, partitions as u32, &[]).unwrap();
        produce(topic, 0..partitions, count);
    }
}
