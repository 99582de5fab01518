//! The Kafka adapter: source, dead letter sink and session producer over librdkafka.
