//! [`Refusals`]: when a store that gives no wake-ups is asked for them again.

use std::time::Duration;

use tokio::time::Instant;

/// For how long a store that refuses wake-ups, or cannot be reached, is not asked for them again.
const REFUSED_FOR: Duration = Duration::from_secs(60);
const UNREACHABLE_FOR: Duration = Duration::from_secs(2);

/// When a store that refused wake-ups is asked for them again. Until then
/// [`watch`](crate::backend::LockBackend::watch) returns `None`: else every caller that waits would try.
///
/// ```
/// use syncguard_core::backend::Refusals;
///
/// let mut refusals = Refusals::default();
/// assert!(!refusals.in_force());
/// refusals.refused("my-store");
/// assert!(refusals.in_force());
/// ```
#[derive(Debug, Default)]
pub struct Refusals {
    until: Option<Instant>,
    was_said: bool,
}

impl Refusals {
    /// Whether the store is not to be asked now.
    #[must_use]
    pub fn in_force(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// The store refuses: it is not asked again for a minute. The first time is logged.
    pub fn refused(&mut self, backend: &str) {
        self.until = Some(Instant::now() + REFUSED_FOR);
        if !std::mem::replace(&mut self.was_said, true) {
            tracing::info!(
                backend,
                "the store gives no wake-ups; callers that wait poll"
            );
        }
    }

    /// The store could not be reached: it is not asked again for two seconds.
    pub fn unreachable(&mut self) {
        self.until = Some(Instant::now() + UNREACHABLE_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_is_asked_again_after_a_while() {
        let mut refusals = Refusals::default();
        for (set, lasts) in [
            (Refusals::unreachable as fn(&mut Refusals), UNREACHABLE_FOR),
            (|it| it.refused("store"), REFUSED_FOR),
        ] {
            assert!(!refusals.in_force());
            set(&mut refusals);
            tokio::time::advance(lasts - Duration::from_millis(1)).await;
            assert!(refusals.in_force());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(!refusals.in_force());
    }
}
