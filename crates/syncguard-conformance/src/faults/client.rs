//! [`Client`]: `Locks` over one connection to the store, and notes of its calls.

use std::convert::identity;
use std::sync::Arc;

use syncguard_core::{Locks, LocksBuilder};

use crate::faults::Target;
use crate::faults::steps::patiently;
use crate::faults::watched::Watched;

/// One client of the store.
#[derive(Debug)]
pub(crate) struct Client<T: Target> {
    /// What a case uses, as an application does.
    pub(crate) locks: Locks,
    /// The backend below: notes of its calls, and faults of single operations.
    pub(crate) watched: Arc<Watched<T::Backend>>,
}

impl<T: Target> Client<T> {
    /// Connects to a port, with the default configuration of `Locks`.
    pub(crate) async fn connect(port: u16) -> Self {
        Self::connect_with(port, identity).await
    }

    /// Connects to a port. `configure` configures the `Locks`.
    pub(crate) async fn connect_with(
        port: u16,
        configure: impl FnOnce(LocksBuilder) -> LocksBuilder,
    ) -> Self {
        // Boxed: a test has a small stack, and a driver's futures are large.
        let connect = async || Box::pin(T::connect(port)).await;
        let backend = patiently("the client cannot connect", connect).await;
        let watched = Arc::new(Watched::new(backend));
        let locks = configure(Locks::builder(Arc::clone(&watched))).build();
        Self { locks, watched }
    }
}
