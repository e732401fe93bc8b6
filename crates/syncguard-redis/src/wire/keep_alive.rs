//! [`keep_alive`]: notices a connection that was dropped silently.

use std::time::Duration;

use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike as _;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};

/// Longest pause between two commands on an idle connection. Firewalls and load balancers forget
/// connections that were idle for longer, most after minutes, and notify neither side.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Sends a command from time to time, and reconnects if there is no reply.
///
/// fred's own check does not see a dead connection that is written to all the time: it counts from the
/// last write.
pub(crate) async fn keep_alive(client: Client, mut options: Options, timeout: Duration) {
    options.timeout = Some(timeout);
    let asking = client.with_options(&options);
    loop {
        tokio::time::sleep(timeout.clamp(SHORTEST_PAUSE, LONGEST_PAUSE)).await;
        // Not PING: users need no permission for it otherwise.
        let command = CustomCommand::new_static("TIME", ClusterHash::FirstKey, false);
        let reply: Result<Value, _> = asking.custom(command, Vec::<Value>::new()).await;
        if reply.is_err_and(|error| matches!(error.kind(), ErrorKind::Timeout)) {
            tracing::warn!("no reply on a connection to Redis; reconnecting");
            let _ = tokio::time::timeout(timeout, client.force_reconnection()).await;
        }
    }
}
