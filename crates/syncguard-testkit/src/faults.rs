//! [`Faults`]: the faults of a [`FaultProxy`](crate::FaultProxy).

use std::time::Duration;

/// What happens to the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// They arrive.
    #[default]
    Pass,
    /// They arrive this much later.
    Delay(Duration),
    /// They wait until the fault ends, or until
    /// [`let_through`](crate::FaultProxy::let_through). A fault that replaces this one applies to
    /// them.
    Hold,
    /// The first ones are lost, and the connection is reset to both sides.
    Reset,
    /// They are lost. The connection hangs until the fault ends, and is then reset: after lost bytes, a
    /// stream cannot continue.
    Swallow,
    /// A script for Redis (`EVAL`, `EVALSHA`) reaches the server twice before it is answered, as if
    /// a driver had retried it over another connection. Everything else passes, replies and other
    /// protocols included: a second copy of those would break the stream.
    Duplicate,
}

/// What happens to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connections {
    /// They are accepted and forwarded.
    #[default]
    Forward,
    /// The port is closed: existing connections are reset, new ones are refused.
    Refuse,
    /// They are accepted, and nothing is forwarded in either direction.
    HalfOpen,
}

/// The current faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Faults {
    /// On connections as such.
    pub connections: Connections,
    /// On bytes to the server.
    pub requests: Flow,
    /// On bytes back to the client.
    pub replies: Flow,
}

impl Faults {
    /// Everything passes.
    pub const NONE: Self = Self {
        connections: Connections::Forward,
        requests: Flow::Pass,
        replies: Flow::Pass,
    };
    /// The port is closed.
    pub const REFUSE: Self = Self {
        connections: Connections::Refuse,
        ..Self::NONE
    };
    /// Connections are accepted, and nothing is forwarded.
    pub const HALF_OPEN: Self = Self {
        connections: Connections::HalfOpen,
        ..Self::NONE
    };
    /// Requests wait.
    pub const HOLD_REQUESTS: Self = Self {
        requests: Flow::Hold,
        ..Self::NONE
    };
    /// Requests reach the server, the replies wait.
    pub const HOLD_REPLIES: Self = Self {
        replies: Flow::Hold,
        ..Self::NONE
    };
    /// Requests reach the server, the replies are lost, the connection hangs.
    pub const DROP_REPLY: Self = Self {
        replies: Flow::Swallow,
        ..Self::NONE
    };
    /// Requests reach the server, the replies are lost, the connection is reset.
    pub const CUT_AT_REPLY: Self = Self {
        replies: Flow::Reset,
        ..Self::NONE
    };
    /// Requests are lost and the connection is reset.
    pub const RESET: Self = Self {
        requests: Flow::Reset,
        ..Self::NONE
    };
    /// Scripts reach the server twice.
    pub const DUPLICATE: Self = Self {
        requests: Flow::Duplicate,
        ..Self::NONE
    };

    /// Both directions are delayed by this much.
    #[must_use]
    pub const fn delay(by: Duration) -> Self {
        Self {
            requests: Flow::Delay(by),
            replies: Flow::Delay(by),
            ..Self::NONE
        }
    }
}
