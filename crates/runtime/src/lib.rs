//! The ports, and the two tiers that drive the engine on tokio. No Kafka.
//!
//! Read the modules in this order: [`message`], [`record`], [`session_by`], [`failure`], [`context`], [`ports`]: what the
//! tiers are given. Then the tiers: [`dispatcher`], [`worker`]; both are state machines that are stepped. Last
//! [`drive`]: the loops that step them on threads and on tokio.

pub mod message;
pub mod record;
pub mod session_by;
pub mod failure;
pub mod context;
pub mod clock;
pub mod ports;
pub mod backend;

pub mod dispatcher;
mod lease;
mod mailbox;
mod mail;
pub mod worker;
mod pins;
mod slots;
mod letter;

pub mod drive;
