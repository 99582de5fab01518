//! Ports for nodes.

use std::net::{Ipv4Addr, TcpListener};

use super::{BrokerOptions, Listener};

/// Where a node listens.
#[derive(Debug, Clone)]
pub(super) struct NodePorts {
    pub(super) client: u16,
    pub(super) controller: u16,
    pub(super) secured: Vec<(Listener, u16)>,
}

impl NodePorts {
    /// For each node.
    pub(super) fn choose(options: &BrokerOptions) -> Vec<Self> {
        let secured: &[Listener] = match options.security {
            Some(_) => &Listener::ALL,
            None => &[],
        };
        let each = 2 + secured.len();
        let ports = free_ports(each * options.nodes as usize);
        let of_node = |ports: &[u16]| Self {
            client: ports[0],
            controller: ports[1],
            secured: secured.iter().copied().zip(ports[2..].iter().copied()).collect(),
        };
        ports.chunks(each).map(of_node).collect()
    }
}

/// Ports that are free now, below those that the kernel gives to outgoing connections. Of those, one could go to a
/// client that retries a killed node: its connection would then reach itself, and hold the port against a restart.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    const PORTS: std::ops::Range<u64> = 20_000..32_000;
    use std::hash::{BuildHasher, RandomState};

    let start = RandomState::new().hash_one(std::process::id()) % (PORTS.end - PORTS.start);
    let candidates = PORTS
        .cycle()
        .skip(start as usize)
        .take((PORTS.end - PORTS.start) as usize);
    // Bound until all are found, so that none is chosen twice.
    let bound: Vec<TcpListener> = candidates
        .filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port as u16)).ok())
        .take(count)
        .collect();
    bound
        .iter()
        .map(|listener| listener.local_addr().expect("a bound listener has an address").port())
        .collect()
}
