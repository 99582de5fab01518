//! librdkafka's names, as its CONFIGURATION.md lists them. A test asks librdkafka for each.

/// Read by consumers only: left out of a producer's configuration, where librdkafka would warn.
pub(super) const CONSUMER: &str = "
    auto.commit.interval.ms auto.offset.reset check.crcs coordinator.query.interval.ms enable.auto.commit
    enable.auto.offset.store enable.partition.eof fetch.error.backoff.ms fetch.max.bytes fetch.min.bytes
    fetch.queue.backoff.ms fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type
    group.remote.assignor heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms
    offset.store.method partition.assignment.strategy queued.max.messages.kbytes queued.min.messages
    session.timeout.ms";

/// Read by producers only.
pub(super) const PRODUCER: &str = "
    acks batch.num.messages batch.size compression.level compression.type delivery.report.only.error
    delivery.timeout.ms enable.gapless.guarantee enable.idempotence linger.ms partitioner
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages
    queuing.strategy request.timeout.ms retries sticky.partitioning.linger.ms transaction.timeout.ms
    transactional.id";

/// Read by both.
pub(super) const COMMON: &str = "
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    bootstrap.servers broker.address.family broker.address.ttl broker.version.fallback client.dns.lookup client.id
    client.rack connections.max.idle.ms debug enable.metrics.push enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification enabled_events https.ca.location https.ca.pem log.connection.close log.queue
    log.thread.name log_level max.in.flight.requests.per.connection message.copy.max.bytes message.max.bytes
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy plugin.library.paths
    receive.message.max.bytes reconnect.backoff.max.ms reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms
    sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location
    ssl.keystore.password ssl.providers ssl.sigalgs.list statistics.interval.ms topic.blacklist
    topic.metadata.propagation.max.ms topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse";

pub(super) fn all() -> impl Iterator<Item = &'static str> {
    [COMMON, CONSUMER, PRODUCER]
        .into_iter()
        .flat_map(str::split_ascii_whitespace)
}

pub(super) fn is_in(list: &str, name: &str) -> bool {
    list.split_ascii_whitespace().any(|known| known == name)
}

/// The one spelling that is kept: a property set under two names would be set in no certain order.
pub(super) fn canonical(name: &str) -> &str {
    match name {
        "auto.commit.enable" => "enable.auto.commit",
        "compression.codec" => "compression.type",
        "fetch.message.max.bytes" => "max.partition.fetch.bytes",
        "max.in.flight" => "max.in.flight.requests.per.connection",
        "message.send.max.retries" => "retries",
        "message.timeout.ms" => "delivery.timeout.ms",
        "metadata.broker.list" => "bootstrap.servers",
        "queue.buffering.max.ms" => "linger.ms",
        "request.required.acks" => "acks",
        "sasl.mechanisms" => "sasl.mechanism",
        "sasl.oauthbearer.client.credentials.client.id" => "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.credentials.client.secret" => "sasl.oauthbearer.client.secret",
        other => other,
    }
}

/// For names of the Java client that librdkafka does not know: what serves here.
pub(super) fn instead_of_java(name: &str) -> Option<&'static str> {
    match name {
        "buffer.memory" => Some("set `queue.buffering.max.kbytes`"),
        "key.deserializer" | "key.serializer" | "value.deserializer" | "value.serializer" => {
            Some("remove it: keys and values are bytes here")
        }
        "max.block.ms" => Some("remove it: a producer that is full waits"),
        "max.poll.records" => Some("remove it: Seriatim's limits bound the records in work"),
        "max.request.size" => Some("set `message.max.bytes`"),
        "sasl.jaas.config" => Some("set `sasl.username` and `sasl.password`"),
        "ssl.truststore.location" => Some("set `ssl.ca.location` to a PEM file"),
        _ => None,
    }
}
