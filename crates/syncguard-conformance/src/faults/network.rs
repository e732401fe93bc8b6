//! [`Network`]: a path between clients and the server that can fail.

use std::marker::PhantomData;

use syncguard_core::LocksBuilder;
use syncguard_testkit::{FaultProxy, Faults};

use crate::faults::Target;
use crate::faults::client::Client;

/// A path from some clients to the server.
#[derive(Debug)]
pub(crate) struct Network<T> {
    proxy: FaultProxy,
    target: PhantomData<T>,
}

impl<T: Target> Network<T> {
    pub(crate) fn to(port: u16) -> Self {
        Self {
            proxy: FaultProxy::start(port).expect("the proxy does not start"),
            target: PhantomData,
        }
    }

    /// A client that connects through this network.
    pub(crate) async fn client(&self) -> Client<T> {
        Client::connect(self.proxy.port()).await
    }

    /// A client that connects through this network. `configure` configures its `Locks`.
    pub(crate) async fn client_with(
        &self,
        configure: impl FnOnce(LocksBuilder) -> LocksBuilder,
    ) -> Client<T> {
        Client::connect_with(self.proxy.port(), configure).await
    }

    /// Replaces the current faults.
    pub(crate) fn set(&self, faults: Faults) {
        self.proxy.set(faults);
    }

    /// Breaks the connections that exist now.
    pub(crate) fn break_connections(&self) {
        self.proxy.reset_all();
    }

    /// Forwards new connections to another server.
    pub(crate) fn lead_to(&self, port: u16) {
        self.proxy.lead_to(port);
    }

    /// Makes a call, and loses its reply after the store has applied it; `applied` checks that over another
    /// connection. `loss` stays in force until the next [`set`](Self::set).
    ///
    /// Returns `None` if the call ended before the loss: an operation of several requests has to send
    /// them all within its deadline, and a busy machine may be too slow for that.
    pub(crate) async fn without_reply<R>(
        &self,
        call: impl Future<Output = R>,
        applied: impl AsyncFn() -> bool,
        loss: Faults,
    ) -> Option<R> {
        self.set(Faults::HOLD_REPLIES);
        let losing = async {
            loop {
                let held = self.proxy.struck().held;
                if applied().await {
                    break;
                }
                // Replies held before this point belong to requests that prepare the change.
                self.proxy.let_through(held);
            }
            self.set(loss);
        };
        let mut call = std::pin::pin!(call);
        tokio::select! {
            biased;
            _ = &mut call => {
                self.set(Faults::NONE);
                None
            }
            () = losing => Some(call.await),
        }
    }
}
