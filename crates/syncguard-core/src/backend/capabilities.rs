//! [`Capabilities`]: what a backend is and can do.

use serde::Serialize;

use crate::backend::FenceToken;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, such as `redis`, for labels and reports.
    pub backend: &'static str,
    /// Whether grants carry fences.
    pub supports_fencing: bool,
    /// Whose clock decides.
    pub time_authority: TimeAuthority,
}

impl Capabilities {
    /// Describes a backend with fence type `F`.
    #[must_use]
    pub const fn new<F: FenceToken>(backend: &'static str, time_authority: TimeAuthority) -> Self {
        Self {
            backend,
            supports_fencing: F::SUPPORTED,
            time_authority,
        }
    }
}
