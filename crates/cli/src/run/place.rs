//! Where a partition goes on whose next offset is not in its log, as it is said on the command line.

use std::str::FromStr;

use seriatim::prelude::*;

/// A policy, for one topic or for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeRule {
    topic: Option<String>,
    policy: OutOfRange,
}

impl RangeRule {
    pub(super) fn apply(&self, cluster: Cluster) -> Cluster {
        match &self.topic {
            Some(topic) => cluster.topic_out_of_range(topic, self.policy),
            None => cluster.out_of_range(self.policy),
        }
    }
}

impl FromStr for RangeRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (topic, policy) = match text.split_once('=') {
            Some((topic, policy)) => (Some(topic), policy),
            None => (None, text),
        };
        let policy = match policy {
            "stop" => OutOfRange::Stop,
            "earliest" | "start" => OutOfRange::Earliest,
            "latest" | "end" => OutOfRange::Latest,
            other => return Err(format!("`{other}` is no policy: say `stop`, `earliest` or `latest`")),
        };
        match topic {
            Some("") => Err("no topic is named before `=`".to_owned()),
            topic => Ok(Self {
                topic: topic.map(str::to_owned),
                policy,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_for_one_topic_or_for_all() {
        let rule = |text: &str| text.parse::<RangeRule>();
        let expected = |topic: Option<&str>, policy| RangeRule {
            topic: topic.map(str::to_owned),
            policy,
        };
        assert_eq!(rule("stop"), Ok(expected(None, OutOfRange::Stop)));
        assert_eq!(rule("earliest"), Ok(expected(None, OutOfRange::Earliest)));
        assert_eq!(rule("chat=latest"), Ok(expected(Some("chat"), OutOfRange::Latest)));
        assert!(rule("chat=newest").unwrap_err().contains("`newest` is no policy"));
        assert!(rule("chat").unwrap_err().contains("`chat` is no policy"));
        assert!(rule("=stop").unwrap_err().contains("no topic"));
    }
}
