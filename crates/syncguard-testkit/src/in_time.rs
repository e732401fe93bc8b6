//! [`in_time`]: whether a call ends by its timeout, on a busy machine too.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// The output of a call that ends by `timeout`: before a timer that is set to 200 ms more. A machine that is busy delays
/// both.
///
/// # Errors
/// If the timer is first.
pub async fn in_time<C: IntoFuture>(timeout: Duration, call: C) -> Result<C::Output> {
    let ended = tokio::time::timeout(timeout + Duration::from_millis(200), call).await;
    ended.with_context(|| format!("the call outlasts its timeout of {timeout:?}"))
}
