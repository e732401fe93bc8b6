//! [`Connection`]: the channel to Firestore, and the requests in flight on it.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use gcloud_sdk::{
    GoogleApi, GoogleAuthHeaders, GoogleAuthMiddleware, HeaderMap, RequestTimeoutElapsed,
};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::client::GrpcService;
use tonic::transport::{Channel, Endpoint};

use crate::error;

/// How long a channel may stay silent before requests that time out replace it.
const MOST_SILENCE: Duration = Duration::from_secs(1);

pub(crate) type Client = FirestoreClient<GoogleAuthMiddleware>;

/// The client of gcloud-sdk that [`FirestoreBackend::with_client`](crate::FirestoreBackend::with_client) takes.
pub type FirestoreApi = GoogleApi<Client>;

/// The channel to Firestore. Clones share it.
///
/// A channel reconnects once it knows that its connection is closed. If a failover or a firewall
/// drops the connection without notice, that takes a minute. So a request that times out replaces a
/// channel on which nothing has arrived since the request was sent, or since an earlier one that timed out.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Shared>);

struct Shared {
    current: Mutex<Current>,
    /// `None` for a client of the application: its channel cannot be replaced.
    origin: Option<Origin>,
}

#[derive(Clone)]
struct Current {
    service: GoogleAuthMiddleware,
    number: u64,
    /// When the server last replied on this channel, or when the channel was made.
    heard: Instant,
    /// When the first request was sent that timed out and was followed by no reply.
    unanswered: Option<Instant>,
}

/// The settings of a channel.
pub(crate) struct Origin {
    pub(crate) endpoint: Endpoint,
    pub(crate) credentials: Arc<GoogleAuthHeaders>,
    pub(crate) database: String,
    pub(crate) headers: HeaderMap,
}

impl Origin {
    fn authenticated(&self, channel: Channel) -> gcloud_sdk::error::Result<GoogleAuthMiddleware> {
        let credentials = Arc::clone(&self.credentials);
        let database = Some(self.database.clone());
        let mut service = GoogleAuthMiddleware::new(channel, credentials, database)?;
        service.set_additional_headers(self.headers.clone());
        Ok(service)
    }
}

impl Connection {
    /// Connects.
    pub(crate) async fn open(origin: Origin) -> gcloud_sdk::error::Result<Self> {
        let service = origin.authenticated(origin.endpoint.connect().await?)?;
        Ok(Self::new(service, Some(origin)))
    }

    /// Uses a client of the application.
    pub(crate) fn of_client(client: &FirestoreApi) -> Self {
        Self::new(client.get_with(|service| service), None)
    }

    fn new(service: GoogleAuthMiddleware, origin: Option<Origin>) -> Self {
        let current = Mutex::new(Current {
            service,
            number: 0,
            heard: Instant::now(),
            unanswered: None,
        });
        Self(Arc::new(Shared { current, origin }))
    }

    /// Makes a call that ends by `end`. If the caller drops it, it continues in the background until then.
    /// Dropping the call itself would reset its HTTP/2 stream, and a server that sees many resets closes
    /// the connection, with all other calls on it.
    pub(crate) async fn send<T, F>(
        &self,
        end: Instant,
        call: impl FnOnce(Client) -> F + Send + 'static,
    ) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let connection = self.clone();
        let request = async move {
            let sent = Instant::now();
            let Current {
                mut service,
                number,
                ..
            } = connection.current().clone();
            match timeout_at(end, ready(&mut service)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(error::channel_ended()),
                Err(_) => {
                    connection.timed_out(number, sent);
                    return Err(error::no_connection());
                }
            }
            let limit = end.saturating_duration_since(sent);
            let result = timeout_at(end, call(Client::new(service)))
                .await
                .unwrap_or_else(|_| Err(RequestTimeoutElapsed::Total(limit).into()));
            match result.as_ref().map_err(Status::source) {
                // A reply. A status of the server has no source.
                Ok(_) | Err(None) => connection.heard(number),
                Err(Some(source)) if source.is::<RequestTimeoutElapsed>() => {
                    connection.timed_out(number, sent);
                }
                Err(Some(_)) => {}
            }
            result
        };
        Completed {
            request: Some(Box::pin(request)),
            runtime: Handle::try_current().ok(),
        }
        .await
    }

    /// A client on the current channel, and the channel's number. Waits until the channel is connected.
    pub(crate) async fn client(&self) -> Result<(Client, u64), Status> {
        let Current {
            mut service,
            number,
            ..
        } = self.current().clone();
        let ready = ready(&mut service).await;
        ready.map_err(|_| error::channel_ended())?;
        Ok((Client::new(service), number))
    }

    /// The number of the current channel.
    pub(crate) fn number(&self) -> u64 {
        self.current().number
    }

    fn heard(&self, number: u64) {
        let mut current = self.current();
        if current.number == number {
            current.heard = Instant::now();
            current.unanswered = None;
        }
    }

    /// Replaces the channel if nothing has arrived on it since a request was sent.
    fn timed_out(&self, number: u64, sent: Instant) {
        let Some(origin) = &self.0.origin else {
            return;
        };
        let mut current = self.current();
        if current.number != number || current.heard >= sent {
            return;
        }
        // If the request had little time left, its timeout alone proves nothing.
        let since = current.unanswered.map_or(sent, |first| first.min(sent));
        current.unanswered = Some(since);
        if since.elapsed() < MOST_SILENCE {
            return;
        }
        if let Ok(service) = origin.authenticated(origin.endpoint.connect_lazy()) {
            tracing::debug!("no answer from Firestore; the next request uses a new connection");
            *current = Current {
                service,
                number: number.wrapping_add(1),
                heard: Instant::now(),
                unanswered: None,
            };
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        let current = self.0.current.lock();
        current.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the channel accepts a request. Fails only if the channel's own task has ended.
async fn ready(service: &mut GoogleAuthMiddleware) -> Result<(), Box<dyn Error + Send + Sync>> {
    poll_fn(|cx| GrpcService::<tonic::body::Body>::poll_ready(service, cx)).await
}

/// A request that runs to its end: if it is dropped before, it continues in the background.
struct Completed<T: Send + 'static> {
    /// `None` once it has ended.
    request: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    runtime: Option<Handle>,
}

impl<T: Send + 'static> Future for Completed<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(request) = &mut self.request else {
            return Poll::Pending;
        };
        let result = request.as_mut().poll(cx);
        if result.is_ready() {
            self.request = None;
        }
        result
    }
}

impl<T: Send + 'static> Drop for Completed<T> {
    fn drop(&mut self) {
        if let (Some(request), Some(runtime)) = (self.request.take(), &self.runtime) {
            drop(runtime.spawn(request));
        }
    }
}
