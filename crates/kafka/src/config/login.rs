//! How the client shows who it is: mistakes that librdkafka would explain badly, or wait over without a word.

use std::fs::File;

use rdkafka::ClientConfig;

use super::ConfigError;

/// Files that librdkafka reads by itself, and names badly when it cannot.
const FILES: &[&str] = &[
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
];

/// Where librdkafka looks for the system's authorities by itself.
const PROBE: &str = "probe";

/// Refuses what can let nobody in; `features` are those that librdkafka is built with.
pub(super) fn check(config: &ClientConfig, features: &str) -> Result<(), ConfigError> {
    for name in FILES {
        match config.get(name) {
            None | Some("" | PROBE) => {}
            Some(path) => drop(File::open(path).map_err(|error| ConfigError::Unreadable {
                name: (*name).to_owned(),
                reference: path.to_owned(),
                source: error.into(),
            })?),
        }
    }

    let protocol = config.get("security.protocol").unwrap_or_default();
    if !protocol.to_ascii_lowercase().starts_with("sasl_") {
        return Ok(());
    }
    let has = |feature| features.split(',').any(|built| built.trim() == feature);
    let reason = match config.get("sasl.mechanism") {
        // It is librdkafka's default.
        None if !has("sasl_gssapi") => "it is not set, and `security.protocol` asks for a login",
        Some("GSSAPI") if !has("sasl_gssapi") => "this build has no Kerberos",
        // librdkafka would wait for somebody to give it one.
        Some("OAUTHBEARER") if !has("oidc") => "this build can fetch no token",
        _ => return Ok(()),
    };
    Err(ConfigError::Invalid {
        name: "sasl.mechanism".to_owned(),
        reason: format!("{reason}; set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(pairs: &[(&str, &str)]) -> String {
        let mut config = ClientConfig::new();
        for (name, value) in pairs {
            config.set(*name, *value);
        }
        check(&config, "ssl,sasl,sasl_plain").map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_login_without_a_way_is_refused_with_the_ways_there_are() {
        let sasl = ("security.protocol", "SASL_SSL");
        assert_eq!(
            refused(&[sasl]),
            "`sasl.mechanism` is wrong: it is not set, and `security.protocol` asks for a login; set PLAIN, \
             SCRAM-SHA-256 or SCRAM-SHA-512"
        );
        assert!(refused(&[sasl, ("sasl.mechanism", "OAUTHBEARER")]).contains("no token"));
        assert_eq!(refused(&[sasl, ("sasl.mechanism", "PLAIN")]), "");
        assert_eq!(
            refused(&[("security.protocol", "ssl"), ("sasl.mechanism", "GSSAPI")]),
            ""
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        assert_eq!(
            refused(&[("ssl.ca.location", "/nowhere.pem")]),
            "the value of `ssl.ca.location` cannot be read from /nowhere.pem"
        );
        assert_eq!(refused(&[("ssl.ca.location", "probe")]), "");
    }
}
