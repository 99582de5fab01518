//! Where a benchmark runs: brokers of the user's, or one of its own.

use seriatim_testkit::broker::{BROKERS_VARIABLE, Broker, BrokerError, BrokerOptions, Cluster};

/// A cluster to measure on.
pub struct Venue {
    pub cluster: Cluster,
    /// It ends with the benchmark; `None` where brokers were named.
    own: Option<Broker>,
}

impl Venue {
    /// The brokers that were named, here or in the environment, or else a broker that is started for it.
    pub fn find(named: Option<&str>) -> Result<Self, BrokerError> {
        let named = named
            .map(str::to_owned)
            .or_else(|| std::env::var(BROKERS_VARIABLE).ok());
        if let Some(brokers) = named.filter(|brokers| !brokers.is_empty()) {
            return Ok(Self {
                cluster: Cluster::at(&brokers),
                own: None,
            });
        }
        eprintln!("starting a broker");
        let broker = Broker::start_with(&BrokerOptions {
            heap_mib: 1024,
            ..BrokerOptions::default()
        })?;
        Ok(Self {
            cluster: Cluster::at(broker.bootstrap()),
            own: Some(broker),
        })
    }

    /// Whether the broker was started by the benchmark, on this machine.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }
}
