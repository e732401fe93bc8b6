//! Constructors: from application default credentials, an emulator's address, or a client.

use std::time::Duration;

use gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use gcloud_sdk::google_cloud_auth::credentials::anonymous;
use gcloud_sdk::{GoogleApi, GoogleAuthMiddleware, HeaderMap};
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, LockError};
use tokio::runtime::Handle;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::http::header::AUTHORIZATION;

use crate::clock::Clock;
use crate::error;
use crate::names::Names;
use crate::purge::CleanUp;
use crate::wire::Wire;
use crate::{FirestoreBackend, FirestoreOptions};

/// The client of gcloud-sdk that [`FirestoreBackend::with_client`] takes.
pub type FirestoreApi = GoogleApi<FirestoreClient<GoogleAuthMiddleware>>;

const ENDPOINT: &str = "https://firestore.googleapis.com";

/// The emulator grants it every permission, past all security rules.
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
    /// a rustls `CryptoProvider`; `ServiceUnavailable` or `NetworkTimeout` if the server cannot be
    /// reached within the [request timeout](FirestoreOptions::request_timeout).
    ///
    /// # Cancel safety
    /// Safe: dropping the future drops the connection.
    pub async fn connect(database: &str, options: FirestoreOptions) -> Result<Self, LockError> {
        let names = Names::new(database, &options).map_err(during_setup)?;
        check_crypto_provider().map_err(during_setup)?;
        let prefix = Some(names.database.clone());
        let client = FirestoreApi::from_function(FirestoreClient::new, ENDPOINT, prefix);
        let client = bounded(client, options.request_timeout).await?;
        Ok(Self::assemble(client, names, options))
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
        let names = Names::new(database, &options).map_err(during_setup)?;
        if address.is_empty() || address.contains("://") {
            let message = "the address of an emulator must be `host:port`, without a scheme";
            return Err(during_setup(LockError::invalid_argument(message)));
        }
        let owner =
            HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(EMULATOR_OWNER))]);
        let client = FirestoreApi::from_function_with_credentials_and_headers(
            FirestoreClient::new,
            format!("http://{address}"),
            Some(names.database.clone()),
            anonymous::Builder::new().build(),
            owner,
        );
        let client = bounded(client, options.request_timeout).await?;
        Ok(Self::assemble(client, names, options))
    }

    /// Uses a client of the application, with its TLS, credentials and endpoint.
    ///
    /// `database` is as for [`connect`](Self::connect). Clones of the client share a connection.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad option or database.
    pub fn with_client(
        client: FirestoreApi,
        database: &str,
        options: FirestoreOptions,
    ) -> Result<Self, LockError> {
        let names = Names::new(database, &options).map_err(during_setup)?;
        Ok(Self::assemble(client, names, options))
    }

    fn assemble(client: FirestoreApi, names: Names, options: FirestoreOptions) -> Self {
        Self {
            wire: Wire::new(client, names, options.request_timeout),
            clean_up: CleanUp::new(options.cleanup_in_is_locked),
            clock: Clock::new(options),
        }
    }
}

/// Connects within the timeout. The client's own is 30 s, and longer for credentials.
async fn bounded(
    client: impl Future<Output = Result<FirestoreApi, gcloud_sdk::error::Error>>,
    timeout: Duration,
) -> Result<FirestoreApi, LockError> {
    Handle::try_current().map_err(|error| {
        let message = "connecting must run inside a Tokio runtime";
        during_setup(LockError::new(ErrorCode::Internal, message).with_source(error))
    })?;
    let connected = match tokio::time::timeout(timeout, client).await {
        Ok(client) => client.map_err(error::of_connecting),
        Err(_) => Err(LockError::new(
            ErrorCode::NetworkTimeout,
            format!("no connection to Firestore within {timeout:?}"),
        )),
    };
    connected.map_err(during_setup)
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
