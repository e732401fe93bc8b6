//! The address of the store leads to another server.

use syncguard_testkit::Server as _;

use crate::faults::client::Client;
use crate::faults::steps::{LONG, acquire, eventually, is_held, is_outage, release};
use crate::faults::{Fixture, Target};

/// After a failover, an existing client finds the new server behind the old address. The old server still runs.
pub async fn an_address_that_leads_to_another_server_works_again_by_itself<T: Target>(
    fixture: Fixture<T>,
) {
    let network = fixture.network();
    let (client, other) = (network.client().await, fixture.another_server().await);
    release(acquire(&client.locks, &fixture.key("before"), LONG).await).await;
    network.lead_to(other.port());
    network.break_connections();
    let key = fixture.key("after");
    let attempt = async || match client.locks.try_lock(&key).ttl(LONG).await {
        Ok(guard) => guard,
        // The client has yet to notice that its connections are broken.
        Err(error) => {
            is_outage(&error);
            None
        }
    };
    let guard = eventually("a grant of the other server", attempt).await;
    let direct = Client::<T>::connect(other.port()).await;
    assert!(
        is_held(&direct.locks, &key).await,
        "the old server granted it"
    );
    release(guard).await;
}
