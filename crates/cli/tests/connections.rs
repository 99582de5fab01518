//! The command and a broker that asks who is there: properties, where their secrets come from, and that these appear
//! nowhere.

mod command;

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use command::{Done, Running, file, seriatim_alone, unique, until};
use seriatim_testkit::broker::{Authority, Broker, BrokerOptions, Listener, Security};

const PASSWORD: &str = "through-the-looking-glass";
const WRONG_PASSWORD: &str = "off-with-her-head";

/// A broker that listens in every way to alice.
struct World {
    broker: Broker,
    authority: Authority,
}

impl World {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<World> = OnceLock::new();
        SHARED.get_or_init(|| {
            let authority = Authority::new().unwrap();
            let security = Security::new(&authority, &[("alice", PASSWORD)]).unwrap();
            let options = BrokerOptions {
                security: Some(security),
                ..BrokerOptions::default()
            };
            let broker = Broker::start_with(&options).unwrap();
            Self { broker, authority }
        })
    }

    fn topic(&self) -> String {
        let topic = unique("secured");
        self.broker.create_topic(&topic, 1, &[]).unwrap();
        topic
    }

    /// A properties file for `mechanism` within TLS. It is the test's to remove.
    fn properties(&self, mechanism: &str) -> String {
        let path = file("properties");
        let text = format!(
            "security.protocol=sasl_ssl\nssl.ca.location={}\nsasl.mechanism={mechanism}\nsasl.username=alice\n",
            self.authority.certificate().display()
        );
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// Runs `seriatim ARGS` with `input`, to its end, and sees that no secret is said.
#[track_caller]
fn run(variables: &[(&str, &str)], input: &[u8], args: &[&str]) -> Done {
    let mut running = Running::start_in(variables, args);
    running.write(input);
    without_secrets(running.finish())
}

#[track_caller]
fn without_secrets(done: Done) -> Done {
    for secret in [PASSWORD, WRONG_PASSWORD] {
        assert!(!done.out.contains(secret) && !done.err.contains(secret), "{done:?}");
    }
    done
}

#[test]
fn passwords_come_from_files_and_variables_and_are_never_said() {
    let world = World::shared();
    let (topic, bootstrap) = (world.topic(), world.broker.bootstrap_of(Listener::SaslTls));
    let password = file("password");
    fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let from_file = format!("sasl.password=file:{}", password.display());
    let scram = world.properties("SCRAM-SHA-512");

    let args = [
        "produce", &topic, "-K", ":", "-b", &bootstrap, "-F", &scram, "-X", &from_file,
    ];
    run(&[], b"a:1\na:2\n", &args).fine();

    // Everything that can be said is said, by us and by the client.
    let all = ["-b", &bootstrap, "-vv", "-X", "debug=all"];
    let plain = world.properties("PLAIN");
    let text = fs::read_to_string(&plain).unwrap() + "sasl.password = env:ALICES_PASSWORD\n";
    fs::write(&plain, text).unwrap();
    let variables = [("ALICES_PASSWORD", PASSWORD)];
    let args = [&["run", "-t", &topic, "-g", &topic, "-n", "2", "-F", &plain][..], &all].concat();
    let done = run(&variables, b"", &args);
    assert!(done.err.contains("SASLMECHS"), "the client logs nothing: {}", done.err);
    assert_eq!(done.fine().lines().count(), 2);

    // Also if it stands in the command line itself, where other users of the machine see it.
    let given = format!("sasl.password={PASSWORD}");
    let args = [&["consume", &topic, "-e", "-F", &scram, "-X", &given][..], &all].concat();
    assert_eq!(run(&[], b"", &args).fine().lines().count(), 2);
    for path in [&scram, &plain] {
        fs::remove_file(path).unwrap();
    }
    fs::remove_file(password).unwrap();
}

#[test]
fn a_secret_that_cannot_be_read_is_bad_configuration_and_named_with_its_source() {
    let refused = |pair: &str, parts: &[&str]| {
        for command in [
            &["run", "-t", "t", "-g", "g"][..],
            &["consume", "t"],
            &["produce", "t", "-K", ":"],
        ] {
            let done = seriatim_alone(&[command, &["-b", "127.0.0.1:1", "-X", pair]].concat());
            assert_eq!(done.code, 78, "{}", done.err);
            for part in parts {
                assert!(done.err.contains(part), "{}", done.err);
            }
        }
    };
    refused(
        "sasl.password=file:/nowhere/password",
        &["`sasl.password`", "file:/nowhere/password", "No such file"],
    );
    refused(
        "ssl.key.password=env:SERIATIM_NO_SUCH",
        &["`ssl.key.password`", "env:SERIATIM_NO_SUCH", "not found"],
    );
    refused(
        "ssl.ca.location=/nowhere/ca.pem",
        &["`ssl.ca.location`", "/nowhere/ca.pem", "No such file"],
    );
    refused("security.protocol=sasl_ssl", &["`sasl.mechanism`", "SCRAM-SHA-512"]);
}

#[test]
fn a_wrong_secret_is_never_said_whatever_is_wrong_with_it() {
    for pair in [
        "sasl.pasword=off-with-her-head",
        "ssl.key.pem=off-with-her-head",
        "sasl.oauthbearer.client.secret=off-with-her-head",
        "off-with-her-head",
    ] {
        let args = [
            "consume",
            "t",
            "-b",
            "127.0.0.1:1",
            "-X",
            "security.protocol=ssl",
            "-X",
            pair,
        ];
        let done = run(&[], b"", &args);
        assert_eq!(done.code, 78, "{}", done.err);
    }
}

#[test]
fn a_wrong_password_is_told_with_what_to_check_and_a_run_can_still_be_stopped() {
    let world = World::shared();
    let bootstrap = world.broker.bootstrap_of(Listener::SaslTls);
    let properties = world.properties("SCRAM-SHA-256");
    let wrong = format!("sasl.password={WRONG_PASSWORD}");
    let given = ["-b", &bootstrap, "-F", &properties, "-X", &wrong];
    let tells = |said: &str| {
        let parts = [
            &bootstrap,
            "invalid credentials",
            "check `sasl.username` and `sasl.password`",
        ];
        parts.iter().all(|part| said.contains(part))
    };

    let began = Instant::now();
    let running = Running::start_alone(&[&["run", "-t", "any", "-g", "any"][..], &given].concat());
    until("it is told", || tells(&running.said()));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    running.signal("TERM");
    let stopped = Instant::now();
    without_secrets(running.finish()).fine();
    assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());

    let given_up = ["run", "-t", "any", "-g", "any", "--give-up-after", "2s"];
    for command in [&given_up[..], &["consume", "any"], &["produce", "any", "-K", ":"]] {
        let done = run(&[], b"a:1\n", &[command, &given].concat());
        assert!(tells(&done.err), "{}", done.err);
        assert_eq!(done.code, 69, "{}", done.err);
    }
    fs::remove_file(properties).unwrap();
}
