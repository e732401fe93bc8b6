//! Constructors: from application default credentials, an emulator's address, or a client.

use std::sync::Arc;
use std::time::Duration;

#[cfg(not(any(feature = "tls-native-roots", feature = "tls-webpki-roots")))]
use gcloud_sdk::CERTIFICATES;
use gcloud_sdk::google_cloud_auth::credentials::anonymous;
use gcloud_sdk::{GoogleAuthHeaders, HeaderMap};
use syncguard_core::backend::Throttle;
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError};
use tokio::runtime::Handle;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::uri::Authority;
#[cfg(not(any(feature = "tls-native-roots", feature = "tls-webpki-roots")))]
use tonic::transport::Certificate;
use tonic::transport::{ClientTlsConfig, Endpoint};

use crate::clock::AuthorityClock;
use crate::error;
use crate::names::Names;
use crate::wake_ups::WakeUps;
use crate::wire::{Connection, Origin, Wire};
use crate::{FirestoreApi, FirestoreBackend, FirestoreOptions};

const ENDPOINT: &str = "https://firestore.googleapis.com";

/// As Google's own clients of Bigtable: more pings may count as abuse.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// With this token the emulator grants every permission and ignores the security rules.
const EMULATOR_OWNER: &str = "Bearer owner";

impl FirestoreBackend {
    /// Connects with the application default credentials: a key file, the login of `gcloud`, or the
    /// machine's metadata server.
    ///
    /// `database` is a project's id, for its `(default)` database, or a full path
    /// `projects/PROJECT/databases/DATABASE`.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad option or database; `AuthFailed` without credentials, or without
    /// a rustls `CryptoProvider`; `ServiceUnavailable` or `NetworkTimeout` if there is no token or no
    /// connection within the [request timeout](FirestoreOptions::request_timeout) for each.
    ///
    /// # Runtime
    /// The connection and the renewal of tokens run in the current Tokio runtime. Once that has ended,
    /// every operation fails with `InvalidArgument`.
    ///
    /// # Cancel safety
    /// Safe: dropping the future drops the connection.
    pub async fn connect(database: &str, options: FirestoreOptions) -> Result<Self, LockError> {
        let names = options.names(database).map_err(during_setup)?;
        check_crypto_provider().map_err(during_setup)?;
        let authenticating = async {
            // TLS first: it installs the only rustls provider, and credentials may need one to sign.
            let endpoint = endpoint(ENDPOINT, &options)?.tls_config(tls())?;
            let credentials = GoogleAuthHeaders::from_adc().await?;
            // Credentials that yield no token fail here, not at the first operation.
            credentials.headers().await?;
            Ok(Origin {
                endpoint,
                credentials: Arc::new(credentials),
                database: names.database.clone(),
                headers: HeaderMap::new(),
            })
        };
        let timeout = options.request_timeout;
        let origin = bounded("token for the Google credentials", authenticating, timeout).await?;
        let connecting = Connection::open(origin);
        let connection = bounded("connection to Firestore", connecting, timeout).await?;
        Ok(Self::assemble(connection, names, options))
    }

    /// Connects to an emulator at `address`, a `host:port` as in `FIRESTORE_EMULATOR_HOST`, without
    /// TLS and credentials.
    ///
    /// `database` is as for [`connect`](Self::connect); the emulator accepts any project.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad option, database or address; `ServiceUnavailable` or
    /// `NetworkTimeout` if the emulator cannot be reached within the
    /// [request timeout](FirestoreOptions::request_timeout).
    ///
    /// # Cancel safety
    /// Safe: dropping the future drops the connection.
    pub async fn connect_emulator(
        address: &str,
        database: &str,
        options: FirestoreOptions,
    ) -> Result<Self, LockError> {
        let names = options.names(database).map_err(during_setup)?;
        check_address(address).map_err(during_setup)?;
        let owner =
            HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(EMULATOR_OWNER))]);
        let connecting = async {
            let origin = Origin {
                endpoint: endpoint(&format!("http://{address}"), &options)?,
                credentials: Arc::new(anonymous::Builder::new().build().into()),
                database: names.database.clone(),
                headers: owner,
            };
            Connection::open(origin).await
        };
        let timeout = options.request_timeout;
        let connection = bounded("connection to the emulator", connecting, timeout).await?;
        Ok(Self::assemble(connection, names, options))
    }

    /// Uses a client of the application, with its TLS, credentials and endpoint.
    ///
    /// `database` is as for [`connect`](Self::connect). Clones of the client share a connection. If the
    /// connection is lost silently, only the client's own keepalive settings notice it: by default after
    /// two minutes. Backends of the other constructors replace the connection when a request times out.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad option or database.
    #[expect(clippy::needless_pass_by_value, reason = "the backend owns its client")]
    pub fn with_client(
        client: FirestoreApi,
        database: &str,
        options: FirestoreOptions,
    ) -> Result<Self, LockError> {
        let names = options.names(database).map_err(during_setup)?;
        Ok(Self::assemble(
            Connection::of_client(&client),
            names,
            options,
        ))
    }

    fn assemble(connection: Connection, names: Names, options: FirestoreOptions) -> Self {
        Self {
            wire: Wire::new(connection, names, options.request_timeout),
            cleanups: options
                .cleanup_in_is_locked
                .then(|| Arc::new(Throttle::of_cleanups())),
            clock: AuthorityClock::new(options),
            wake_ups: WakeUps::default(),
        }
    }
}

/// A channel's settings. Pings keep an idle connection alive in firewalls on the way.
fn endpoint(url: &str, options: &FirestoreOptions) -> gcloud_sdk::error::Result<Endpoint> {
    let endpoint = Endpoint::from_shared(url.to_owned())?;
    Ok(endpoint
        .connect_timeout(options.request_timeout)
        .tcp_keepalive(Some(PING_INTERVAL))
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true))
}

/// TLS with the roots that the features of this crate select.
fn tls() -> ClientTlsConfig {
    let tls = ClientTlsConfig::new();
    #[cfg(feature = "tls-native-roots")]
    let tls = tls.with_native_roots();
    #[cfg(all(feature = "tls-webpki-roots", not(feature = "tls-native-roots")))]
    let tls = tls.with_webpki_roots();
    #[cfg(not(any(feature = "tls-native-roots", feature = "tls-webpki-roots")))]
    let tls = tls.ca_certificate(Certificate::from_pem(CERTIFICATES));
    tls
}

/// Waits for a step of connecting, no longer than the timeout.
async fn bounded<T>(
    needed: &str,
    work: impl Future<Output = gcloud_sdk::error::Result<T>>,
    timeout: Duration,
) -> Result<T, LockError> {
    Handle::try_current().map_err(|error| {
        let message = "connecting must run inside a Tokio runtime";
        during_setup(LockError::new(ErrorCode::Internal, message).with_source(error))
    })?;
    let done = match tokio::time::timeout(timeout, work).await {
        Ok(done) => done.map_err(|error| error::of_connecting(&error)),
        Err(_) => Err(LockError::new(
            ErrorCode::NetworkTimeout,
            format!("no {needed} within {timeout:?}"),
        )),
    };
    done.map_err(during_setup)
}

/// Without a port, port 80 would be used.
fn check_address(address: &str) -> Result<(), LockError> {
    let authority = address.parse::<Authority>().ok();
    if authority.is_some_and(|authority| authority.port_u16().is_some()) {
        return Ok(());
    }
    Err(LockError::invalid_argument(
        "the address of an emulator must be `host:port`, as in `127.0.0.1:8080`, without a scheme",
    ))
}

fn during_setup(error: LockError) -> LockError {
    error.with_operation(Operation::Setup)
}

/// Without a provider, TLS and the request of a token would panic.
fn check_crypto_provider() -> Result<(), LockError> {
    let built_in = cfg!(feature = "default-crypto");
    if built_in || rustls::crypto::CryptoProvider::get_default().is_some() {
        return Ok(());
    }
    Err(LockError::new(
        ErrorCode::AuthFailed,
        "no rustls CryptoProvider for TLS; install one, or enable the feature `default-crypto` of \
         syncguard-firestore",
    ))
}
