//! What can go wrong with a consumer as a whole. What goes wrong with one record is a
//! [`Failure`](seriatim_runtime::failure::Failure).

use seriatim_runtime::dispatcher::RunError;

/// The result of running a consumer.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Why a consumer did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is missing or wrong.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The backend refused its configuration.
    #[error("{0}")]
    Backend(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The consumer could not go on. Nothing unsettled was committed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A second signal ended the consumer before its drain was over. What was settled since the last commit will be
    /// handled again.
    #[error("the drain was cut short by a second signal")]
    CutShort,
}

/// Which call of the builder is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// There is no topic.
    #[error("there is no topic to read: call `.topic(\"name\")`")]
    NoTopic,
    /// The group's name is empty.
    #[error("the group has no name: call `Seriatim::group(\"name\")`")]
    NoGroup,
    /// A number that must be positive is zero.
    #[error("`.{0}(..)` must not be zero")]
    Zero(&'static str),
}
