//! Handlers that block.

use std::sync::Arc;

use seriatim_runtime::context::Context;
use seriatim_runtime::failure::Failure;
use seriatim_runtime::ports::Handler;
use seriatim_runtime::record::Record;

/// A handler that blocks or computes for long, run on a pool of threads.
pub struct Blocking<F>(Arc<F>);

/// Makes a handler of a function that blocks or computes for long:
///
/// ```no_run
/// # use seriatim::prelude::*;
/// # async fn example() -> seriatim::Result {
/// Seriatim::group("thumbnails")
///     .brokers("localhost:9092")
///     .topic("images")
///     .run(blocking(|record: Record, cx: Context| {
///         for row in record.payload().chunks(1024) {
///             if cx.is_cancelled() {
///                 return Err("cancelled".into());
///             }
///             std::hint::black_box(row);
///         }
///         Ok(())
///     }))
///     .await
/// # }
/// ```
///
/// A thread cannot be cancelled. When the attempt runs out of time or its partition leaves, the function is told by
/// [`Context::is_cancelled`], and its session waits until it returns.
pub fn blocking<F>(handle: F) -> Blocking<F>
where
    F: Fn(Record, Context) -> Result<(), Failure> + Send + Sync + 'static,
{
    Blocking(Arc::new(handle))
}

impl<F> Handler for Blocking<F>
where
    F: Fn(Record, Context) -> Result<(), Failure> + Send + Sync + 'static,
{
    async fn handle(&self, record: Record, cx: Context) -> Result<(), Failure> {
        let handle = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || handle(record, cx)).await {
            Ok(handled) => handled,
            Err(error) => match error.try_into_panic() {
                // Raised again here, where a handler's panic is caught and told with its message.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => Err(Failure::transient(error)),
            },
        }
    }
}
