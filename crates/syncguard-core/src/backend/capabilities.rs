//! [`Capabilities`]: what a backend is and can do.

use serde::Serialize;

/// Whose clock decides when a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TimeAuthority {
    /// The store's: clients' clocks do not matter.
    Server,
    /// Each client's own: clients' clocks must be synchronized.
    Client,
}

impl TimeAuthority {
    /// `server` or `client`, as the specification spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// What a backend is and can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, such as `redis`, for labels and reports.
    pub backend: &'static str,
    /// Whose clock decides.
    pub time_authority: TimeAuthority,
}

impl Capabilities {
    /// Describes a backend. The backend's fence type says whether it supports fencing.
    #[must_use]
    pub const fn new(backend: &'static str, time_authority: TimeAuthority) -> Self {
        Self {
            backend,
            time_authority,
        }
    }
}
