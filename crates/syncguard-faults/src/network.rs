//! [`Network`]: the way between a client and the server, which can fail.

use std::marker::PhantomData;

use syncguard_core::Policy;
use syncguard_testkit::{FaultProxy, Faults};

use crate::fixture::client;
use crate::{Client, Target};

/// The way from some clients to the server.
#[derive(Debug)]
pub(crate) struct Network<T> {
    proxy: FaultProxy,
    target: PhantomData<T>,
}

impl<T: Target> Network<T> {
    pub(crate) fn to(port: u16) -> Self {
        Self {
            proxy: FaultProxy::start(port).expect("a free port"),
            target: PhantomData,
        }
    }

    /// A client whose requests go this way.
    pub(crate) async fn client(&self, policy: Policy) -> Client<T> {
        client::<T>(self.proxy.port(), policy).await
    }

    /// Puts these faults in force, in place of all others.
    pub(crate) fn set(&self, faults: Faults) {
        self.proxy.set(faults);
    }

    /// Makes a call of which the reply is lost after the store has carried it out, as `applied`
    /// sees by other ways. From then on `loss` is in force, until it is told otherwise.
    ///
    /// `None` if the call ended before: an operation of several requests has to make them all
    /// within its deadline, and a busy machine may be too slow for that.
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
                // What was held before are replies to requests that prepare the change.
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
