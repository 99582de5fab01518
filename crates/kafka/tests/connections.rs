//! The ways to a broker that asks who is there: TLS, certificates of clients, passwords. Each way works, and each
//! mistake is told within seconds: which broker, why, and what to check.

mod member;

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use seriatim_kafka::config::Properties;
use seriatim_kafka::producer::{ProduceError, SessionProducer, SessionRecord};
use seriatim_kafka::reader::{LogReader, ReadError};
use seriatim_runtime::ports::{Source, SourceTrouble};
use seriatim_testkit::broker::{Authority, Broker, BrokerOptions, Identity, Listener, Security};

use self::member::{Member, WAIT, named_at, until};

const PASSWORD: &str = "through-the-looking-glass";
const WRONG_PASSWORD: &str = "off-with-her-head";

/// A broker that listens in every way, and who may come.
struct World {
    broker: Broker,
    authority: Authority,
    client: Identity,
    /// Of another authority.
    stranger: Identity,
    strangers: Authority,
}

impl World {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<World> = OnceLock::new();
        SHARED.get_or_init(|| {
            let (authority, strangers) = (Authority::new().unwrap(), Authority::new().unwrap());
            let security = Security::new(&authority, &[("alice", PASSWORD)]).unwrap();
            let options = BrokerOptions {
                security: Some(security),
                ..BrokerOptions::default()
            };
            Self {
                broker: Broker::start_with(&options).unwrap(),
                client: authority.issue("client").unwrap(),
                stranger: strangers.issue("stranger").unwrap(),
                authority,
                strangers,
            }
        })
    }

    /// A way that trusts the brokers' authority, if it is one with TLS.
    fn way(&'static self, listener: Listener) -> Way {
        let (protocol, tls) = match listener {
            Listener::Tls | Listener::MutualTls => ("ssl", true),
            Listener::Sasl => ("sasl_plaintext", false),
            Listener::SaslTls => ("sasl_ssl", true),
        };
        let way = Way {
            bootstrap: self.broker.bootstrap_of(listener),
            properties: format!("security.protocol={protocol}\n"),
        };
        if tls { way.trusting(&self.authority) } else { way }
    }
}

/// Where to go, and as whom.
struct Way {
    bootstrap: String,
    properties: String,
}

impl Way {
    fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        writeln!(self.properties, "{name}={value}").unwrap();
        self
    }

    fn trusting(self, authority: &Authority) -> Self {
        self.with("ssl.ca.location", authority.certificate().display())
    }

    fn showing(self, identity: &Identity) -> Self {
        self.with("ssl.certificate.location", identity.certificate.display())
            .with("ssl.key.pem", format!("file:{}", identity.key.display()))
    }

    fn with_password(self, mechanism: &str, password: &str) -> Self {
        self.with("sasl.mechanism", mechanism)
            .with("sasl.username", "alice")
            .with("sasl.password", password)
    }

    fn properties(&self) -> Properties {
        self.properties.parse().unwrap()
    }

    fn member(&self, topic: &str, group: &str) -> Member {
        let properties: Vec<&str> = self.properties.lines().collect();
        Member::join(&self.bootstrap, topic, group, &properties)
    }

    /// What is sent there arrives from there, and can be committed.
    fn works(self, name: &str) {
        let (topic, group) = named_at(&World::shared().broker, name, 1);
        on_a_runtime(async {
            let producer = SessionProducer::connect(&self.bootstrap, &self.properties()).unwrap();
            for value in [b"1", b"2"] {
                let record = SessionRecord {
                    value: Some(value),
                    ..SessionRecord::new(&topic, b"s1")
                };
                producer.send(record).await.unwrap().await.unwrap();
            }
        });
        let reader = LogReader::connect(&self.bootstrap, None, &self.properties()).unwrap();
        assert_eq!(reader.extents(&topic).unwrap()[0].offsets, 0..2);

        let mut member = self.member(&topic, &group);
        until([&mut member], "both records", |[member]| member.seen() == 2);
        let commit = member.commit_of(0, "");
        member.source.commit(&[commit], WAIT).unwrap();
        assert_eq!(member.troubles, []);
    }

    /// Source, producer and reader say within seconds that they are not let in, why, and what to check.
    fn tells_why(self, because: &str, check: &str) {
        let tells = |text: &str| {
            assert!(
                text.contains(&self.bootstrap) && text.contains(because) && text.contains(check),
                "{text}"
            );
            assert!(!text.contains(PASSWORD) && !text.contains(WRONG_PASSWORD), "{text}");
        };
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| self.source_tells(tells));
            scope.spawn(|| on_a_runtime(self.producer_tells(tells)));
            scope.spawn(|| self.reader_tells(tells));
        });
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    fn source_tells(&self, tells: impl Fn(&str)) {
        let mut member = self.member("any", "any");
        until([&mut member], "the trouble", |[member]| {
            let unreachable = |trouble: &SourceTrouble| matches!(trouble, SourceTrouble::Unreachable(_));
            member.troubles.iter().any(unreachable)
        });
        for trouble in &member.troubles {
            tells(&trouble.to_string());
        }
        let begun = Instant::now();
        member.source.close();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    }

    async fn producer_tells(&self, tells: impl Fn(&str)) {
        let producer = SessionProducer::connect(&self.bootstrap, &self.properties()).unwrap();
        match producer.send(SessionRecord::new("any", b"s1")).await {
            Err(ProduceError::Unreachable { reason }) => tells(&reason),
            other => panic!("{other:?}"),
        }
    }

    fn reader_tells(&self, tells: impl Fn(&str)) {
        let reader = LogReader::connect(&self.bootstrap, None, &self.properties()).unwrap();
        match reader.reach("any", Duration::from_secs(5)) {
            Err(ReadError::Unreachable { reason }) => tells(&reason),
            other => panic!("{other:?}"),
        }
    }
}

fn on_a_runtime(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.unwrap().block_on(work);
}

// --- ways that work -----------------------------------------------------------------------------------------------

#[test]
fn tls_works() {
    World::shared().way(Listener::Tls).works("tls");
}

#[test]
fn a_client_with_a_certificate_is_let_in() {
    let world = World::shared();
    world
        .way(Listener::MutualTls)
        .showing(&world.client)
        .works("mutual-tls");
}

#[test]
fn each_mechanism_of_passwords_works_with_and_without_tls() {
    for listener in [Listener::Sasl, Listener::SaslTls] {
        for mechanism in ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] {
            let way = World::shared().way(listener).with_password(mechanism, PASSWORD);
            way.works(&format!("{listener:?}-{mechanism}"));
        }
    }
}

// --- mistakes -----------------------------------------------------------------------------------------------------

/// For brokers that close the connection: whether their word, if they have one, comes before the end of it is a race.
const LOST_OR_REFUSED: &str = "";

#[test]
fn a_wrong_password_is_told() {
    let way = || World::shared().way(Listener::Sasl);
    let (because, check) = (
        "Invalid username or password",
        "check `sasl.username` and `sasl.password`",
    );
    way().with_password("PLAIN", WRONG_PASSWORD).tells_why(because, check);
    let because = "invalid credentials with SASL mechanism SCRAM-SHA-512";
    way()
        .with_password("SCRAM-SHA-512", WRONG_PASSWORD)
        .tells_why(because, check);
}

#[test]
fn a_broker_of_an_unknown_authority_is_told() {
    let world = World::shared();
    let way = world.way(Listener::Tls).trusting(&world.strangers);
    way.tells_why("certificate could not be verified", "check that `ssl.ca.location`");
}

#[test]
fn a_missing_certificate_of_the_client_is_told() {
    let way = World::shared().way(Listener::MutualTls);
    way.tells_why(LOST_OR_REFUSED, "`ssl.certificate.location`");
}

#[test]
fn a_certificate_that_the_broker_does_not_know_is_told() {
    let world = World::shared();
    let way = world.way(Listener::MutualTls).showing(&world.stranger);
    way.tells_why(LOST_OR_REFUSED, "`ssl.certificate.location`");
}

#[test]
fn a_forgotten_protocol_is_told() {
    for listener in [Listener::Tls, Listener::Sasl] {
        let way = Way {
            bootstrap: World::shared().broker.bootstrap_of(listener),
            properties: String::new(),
        };
        way.tells_why(LOST_OR_REFUSED, "check `security.protocol`");
    }
}

#[test]
fn tls_and_passwords_where_none_is_spoken_are_told() {
    let world = World::shared();
    let plain = |way: Way| Way {
        bootstrap: world.broker.bootstrap().to_owned(),
        ..way
    };
    plain(world.way(Listener::Tls)).tells_why(LOST_OR_REFUSED, "`security.protocol`");
    let with_password = plain(world.way(Listener::Sasl)).with_password("PLAIN", PASSWORD);
    with_password.tells_why("handshake failed", "`security.protocol`");
}
