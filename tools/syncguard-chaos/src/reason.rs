//! Why a call is impossible.

/// Why a call cannot come next.
pub(crate) type Reason = &'static str;

pub(crate) const TOO_LATE: Reason = "what it saw was over before it was made";
pub(crate) const STILL_LIVE: Reason = "granted while another lease was live";
pub(crate) const STALE_FENCE: Reason = "its fence is not above that of an earlier grant";
pub(crate) const OTHER_FENCE: Reason = "the fence of a lock changed while it was held";
pub(crate) const OTHER_ACQUIRED: Reason =
    "the time of acquisition of a lock changed while it was held";
pub(crate) const OTHER_EXPIRY: Reason =
    "the lease ends at another time than the one that it was given";
pub(crate) const OTHER_KEY: Reason =
    "the lock of an id was found on a key that it was not acquired for";
pub(crate) const NOT_COUNTED: Reason = "its lease does not count from a moment within the call";
pub(crate) const NOBODY_HELD: Reason = "refused, although the key was free";
pub(crate) const REFUSED_OWNER: Reason = "the holder of the key was refused its own lock";
pub(crate) const NOT_OWNER: Reason = "done by an id that did not hold the key";
pub(crate) const EXPIRED: Reason = "done although the lease had ended, beyond the tolerance";
pub(crate) const HELD: Reason = "found free or not held, although it was held";
pub(crate) const PHANTOM: Reason = "found a lock that was never granted";
pub(crate) const MISMATCH: Reason = "an outcome that this operation does not have";
