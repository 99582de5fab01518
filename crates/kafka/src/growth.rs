//! Partitions that are added to a topic while it is read. The rule is the engine's; the [`source`](crate::source) applies it.

pub use seriatim_engine::growth::Growth;
