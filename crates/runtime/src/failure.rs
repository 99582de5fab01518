//! How a handler says that an attempt failed.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// A failed attempt: transient, so tried again in place, or permanent, so dead-lettered at once.
///
/// Any error becomes a transient failure by `?`. What can never succeed is said to be permanent:
///
/// ```
/// # use seriatim_runtime::{failure::Failure, record::Record};
/// # fn decode(record: &Record) -> Result<u64, Failure> {
/// let amount: u64 = record.json().map_err(Failure::permanent)?;
/// # Ok(amount)
/// # }
/// ```
pub struct Failure {
    class: FailureClass,
    error: Box<dyn Error + Send + Sync>,
    retry_after: Option<Duration>,
}

/// Whether another attempt can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// Another attempt may succeed.
    Transient,
    /// No attempt will succeed.
    Permanent,
}

impl Failure {
    /// A failure that another attempt may cure.
    pub fn transient(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            class: FailureClass::Transient,
            error: error.into(),
            retry_after: None,
        }
    }

    /// A failure that no attempt will cure: the record becomes a dead letter.
    pub fn permanent(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            class: FailureClass::Permanent,
            error: error.into(),
            retry_after: None,
        }
    }

    /// Asks that the next attempt not start before `delay` has passed, as a service's `Retry-After` does.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Transient or permanent.
    pub fn class(&self) -> FailureClass {
        self.class
    }

    /// The delay asked for by [`retry_after`](Self::retry_after).
    pub fn delay(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The error behind the failure.
    pub fn error(&self) -> &(dyn Error + Send + Sync) {
        &*self.error
    }
}

// Failure is no `Error` itself, so that every error converts into it.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::transient(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({:?})", self.class, self.error)
    }
}
