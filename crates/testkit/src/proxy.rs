//! A wire that can be broken: a proxy between clients and a broker, for faults that no broker can be asked for.
//!
//! Of a connection each direction can be *held*, so that nothing passes until it is released, or *cut*, so that what is
//! sent is lost; a commit whose answer is held, and whose connection is then reset, has taken effect unseen. With both
//! directions held a connection is half open: each end believes in the other.
//!
//! A broker tells its clients where to connect, so it must name the proxy: see [`Proxy::broker_properties`].

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::broker::ports::free_ports;

/// What a pump reads at a time.
const BUFFER_LEN: usize = 16 * 1024;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the broker.
    Requests,
    /// From the broker to the client.
    Answers,
}

/// A proxy that runs. Dropping it closes all its connections, and it takes no more.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    target_port: u16,
    wire: Arc<Wire>,
}

/// What all connections share.
#[derive(Debug, Default)]
struct Wire {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Of requests, and of answers.
    gates: [Gate; 2],
    /// Both ends of each connection, by its number.
    connections: Vec<(u64, [TcpStream; 2])>,
    /// Connections so far.
    count: u64,
    over: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Held,
    Cut,
}

impl Proxy {
    /// Listens on loopback, for a broker that will listen on [`target_port`](Self::target_port).
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let target_port = *free_ports(1)
            .first()
            .ok_or_else(|| io::Error::other("no port is free"))?;
        let proxy = Self {
            port: listener.local_addr()?.port(),
            target_port,
            wire: Arc::default(),
        };
        let wire = Arc::clone(&proxy.wire);
        thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || wire.take_connections(&listener, target_port))?;
        Ok(proxy)
    }

    /// What clients take as `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where the broker is to listen for what comes by the proxy.
    pub fn target_port(&self) -> u16 {
        self.target_port
    }

    /// What a broker of one node needs in its [`properties`](crate::broker::BrokerOptions::properties), so that it listens
    /// for the proxy too, and sends those who come by it there again.
    pub fn broker_properties(&self) -> Vec<(String, String)> {
        let (client, controller) = (
            "CLIENT://127.0.0.1:{client_port}",
            "CONTROLLER://127.0.0.1:{controller_port}",
        );
        let (port, target) = (self.port, self.target_port);
        [
            ("listeners", format!("{client},PROXY://127.0.0.1:{target},{controller}")),
            ("advertised.listeners", format!("{client},PROXY://127.0.0.1:{port}")),
            (
                "listener.security.protocol.map",
                "CLIENT:PLAINTEXT,PROXY:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Lets nothing pass in this direction, in any connection, until it is released. What is sent waits.
    pub fn hold(&self, direction: Direction) {
        self.set(direction, Gate::Held);
    }

    /// Throws away what is sent in this direction. The connections are of no use after that: [`reset`](Self::reset) them.
    pub fn cut(&self, direction: Direction) {
        self.set(direction, Gate::Cut);
    }

    /// Lets everything pass again in both directions.
    pub fn release(&self) {
        self.wire.state().gates = [Gate::Open; 2];
        self.wire.changed.notify_all();
    }

    /// Breaks all connections off, with whatever is held in them. New ones are taken.
    pub fn reset(&self) {
        self.wire.break_off(&mut self.wire.state());
    }

    fn set(&self, direction: Direction, gate: Gate) {
        self.wire.state().gates[direction as usize] = gate;
        self.wire.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.wire.state();
        state.over = true;
        self.wire.break_off(&mut state);
        drop(state);
        // The listener's thread is woken by a last connection.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_connections(self: &Arc<Self>, listener: &TcpListener, target_port: u16) {
        for client in listener.incoming() {
            if self.state().over {
                return;
            }
            // A broker that is down takes no connection: then neither does its proxy.
            let Ok(client) = client else { continue };
            if let Ok(broker) = TcpStream::connect((Ipv4Addr::LOCALHOST, target_port)) {
                let _ = self.connect(client, broker);
            }
        }
    }

    /// Begins to pass on what comes between the two.
    fn connect(self: &Arc<Self>, client: TcpStream, broker: TcpStream) -> io::Result<()> {
        for end in [&client, &broker] {
            end.set_nodelay(true)?;
        }
        let ways = [
            (Direction::Requests, client.try_clone()?, broker.try_clone()?),
            (Direction::Answers, broker.try_clone()?, client.try_clone()?),
        ];
        let mut state = self.state();
        state.count += 1;
        let number = state.count;
        state.connections.push((number, [client, broker]));
        drop(state);
        for (direction, from, to) in ways {
            let wire = Arc::clone(self);
            thread::Builder::new().name("proxy".to_owned()).spawn(move || {
                // An error is an end: of one of the two, or by a reset.
                let _ = wire.pump(number, direction, from, to);
                wire.forget(number);
            })?;
        }
        Ok(())
    }

    fn pump(&self, number: u64, direction: Direction, mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let read = from.read(&mut buffer)?;
            if read == 0 || !self.pass(number, direction, &mut to, &buffer[..read])? {
                return Ok(());
            }
        }
    }

    /// Passes `bytes` on as the gate says. False when the connection was broken off while they were held.
    fn pass(&self, number: u64, direction: Direction, to: &mut TcpStream, bytes: &[u8]) -> io::Result<bool> {
        let mut state = self.state();
        loop {
            if !state.connections.iter().any(|(known, _)| *known == number) {
                return Ok(false);
            }
            match state.gates[direction as usize] {
                Gate::Held => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Gate::Cut => return Ok(true),
                Gate::Open => break,
            }
        }
        drop(state);
        to.write_all(bytes)?;
        Ok(true)
    }

    /// One end has closed, so both have.
    fn forget(&self, number: u64) {
        let mut state = self.state();
        let (over, kept) = std::mem::take(&mut state.connections)
            .into_iter()
            .partition(|(known, _)| *known == number);
        state.connections = kept;
        close(over);
        self.changed.notify_all();
    }

    fn break_off(&self, state: &mut State) {
        close(std::mem::take(&mut state.connections));
        self.changed.notify_all();
    }
}

fn close(connections: Vec<(u64, [TcpStream; 2])>) {
    for end in connections.iter().flat_map(|(_, ends)| ends) {
        // It may have been closed from the other side.
        let _ = end.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A client that is connected to a broker by a proxy.
    fn connected() -> (Proxy, TcpListener, TcpStream, TcpStream) {
        let proxy = Proxy::start().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, proxy.target_port())).unwrap();
        let client = TcpStream::connect(proxy.bootstrap()).unwrap();
        let (broker, _) = listener.accept().unwrap();
        for end in [&client, &broker] {
            end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        (proxy, listener, client, broker)
    }

    fn read(mut from: &TcpStream) -> u8 {
        let mut byte = [0];
        from.read_exact(&mut byte).unwrap();
        byte[0]
    }

    fn is_silent(mut from: &TcpStream) -> bool {
        from.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let read = from.read(&mut [0]);
        from.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        read.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }

    #[test]
    fn what_is_held_arrives_when_it_is_released() {
        let (proxy, _listener, mut client, mut broker) = connected();
        client.write_all(b"a").unwrap();
        assert_eq!(read(&broker), b'a');
        proxy.hold(Direction::Answers);
        client.write_all(b"b").unwrap();
        assert_eq!(read(&broker), b'b');
        broker.write_all(b"c").unwrap();
        assert!(is_silent(&client));
        proxy.release();
        assert_eq!(read(&client), b'c');
    }

    #[test]
    fn what_is_cut_is_lost() {
        let (proxy, _listener, mut client, mut broker) = connected();
        proxy.cut(Direction::Requests);
        client.write_all(b"a").unwrap();
        broker.write_all(b"b").unwrap();
        assert_eq!(read(&client), b'b');
        assert!(is_silent(&broker));
        proxy.release();
        client.write_all(b"c").unwrap();
        assert_eq!(read(&broker), b'c');
    }

    #[test]
    fn a_reset_ends_what_is_connected_and_what_is_held() {
        let (proxy, listener, client, mut broker) = connected();
        proxy.hold(Direction::Answers);
        broker.write_all(b"a").unwrap();
        assert!(is_silent(&client));
        proxy.reset();
        assert_eq!((&client).read(&mut [0]).unwrap(), 0);
        assert_eq!(broker.read(&mut [0]).unwrap(), 0);
        proxy.release();
        let mut again = TcpStream::connect(proxy.bootstrap()).unwrap();
        let (broker, _) = listener.accept().unwrap();
        again.write_all(b"b").unwrap();
        assert_eq!(read(&broker), b'b');
    }

    #[test]
    fn a_broker_that_is_down_takes_no_connection() {
        let (proxy, listener, _client, broker) = connected();
        drop((listener, broker));
        let refused = TcpStream::connect(proxy.bootstrap()).unwrap();
        refused.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!((&refused).read(&mut [0]).unwrap(), 0);
    }
}
