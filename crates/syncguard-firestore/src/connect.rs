//! Constructors: from application default credentials, an emulator's address, or a client.

use std::time::Duration;

use gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use gcloud_sdk::google_cloud_auth::credentials::anonymous;
use gcloud_sdk::{GoogleApi, GoogleAuthMiddleware, HeaderMap};
use syncguard_core::{ErrorCode, LockError};
use tokio::runtime::Handle;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::http::header::AUTHORIZATION;

use crate::clock::Clock;
use crate::error;
use crate::name::Names;
use crate::wire::Wire;
use crate::{FirestoreOptions, FirestoreStore};

/// The client of gcloud-sdk that [`FirestoreStore::with_client`] takes.
pub type FirestoreApi = GoogleApi<FirestoreClient<GoogleAuthMiddleware>>;

const ENDPOINT: &str = "https://firestore.googleapis.com";

/// What the emulator takes for the owner of every database, beyond all security rules.
const EMULATOR_OWNER: &str = "Bearer owner";

impl FirestoreStore {
    /// Connects with the application default credentials: a key file, gcloud's login, or the
    /// metadata server of the machine.
    ///
    /// `database` is a project's id, for its `(default)` database, or a full path
    /// `projects/PROJECT/databases/DATABASE`.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad option or database; `AuthFailed` without credentials, or without
    /// a rustls `CryptoProvider`; `ServiceUnavailable` or `NetworkTimeout` if the server cannot be
    /// reached within the [request timeout](FirestoreOptions::with_request_timeout).
    ///
    /// # Cancel safety
    /// Safe: dropping the future gives up the connection.
    pub async fn connect(database: &str, options: FirestoreOptions) -> Result<Self, LockError> {
        let names = Names::new(database, &options)?;
        check_crypto_provider()?;
        let prefix = Some(names.database.clone());
        let client = FirestoreApi::from_function(FirestoreClient::new, ENDPOINT, prefix);
        let client = bounded(client, options.request_timeout).await?;
        Ok(Self::assemble(client, names, options))
    }

    /// Connects to an emulator at `address`, a `host:port` as in `FIRESTORE_EMULATOR_HOST`, without
    /// TLS and credentials.
    ///
    /// `database` is as for [`connect`](Self::connect); any project will do.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad option, database or address; `ServiceUnavailable` or
    /// `NetworkTimeout` if the emulator cannot be reached within the
    /// [request timeout](FirestoreOptions::with_request_timeout).
    ///
    /// # Cancel safety
    /// Safe: dropping the future gives up the connection.
    pub async fn connect_emulator(
        address: &str,
        database: &str,
        options: FirestoreOptions,
    ) -> Result<Self, LockError> {
        let names = Names::new(database, &options)?;
        if address.is_empty() || address.contains("://") {
            return Err(LockError::invalid_argument(
                "the emulator's address is `host:port`, without a scheme",
            ));
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

    /// Uses a client that the application has made, with its TLS, credentials and endpoint.
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
        let names = Names::new(database, &options)?;
        Ok(Self::assemble(client, names, options))
    }

    fn assemble(client: FirestoreApi, names: Names, options: FirestoreOptions) -> Self {
        let wire = Wire::new(client, names, options.request_timeout);
        let cleanup_in_is_locked = options.cleanup_in_is_locked;
        Self::new(wire, Clock::new(options), cleanup_in_is_locked)
    }
}

/// Connects in time: by itself the client takes up to 30 s, and longer for credentials.
async fn bounded(
    client: impl Future<Output = Result<FirestoreApi, gcloud_sdk::error::Error>>,
    timeout: Duration,
) -> Result<FirestoreApi, LockError> {
    Handle::try_current().map_err(|error| {
        let message = "connecting must run inside a Tokio runtime";
        LockError::new(ErrorCode::Internal, message).with_source(error)
    })?;
    match tokio::time::timeout(timeout, client).await {
        Ok(client) => client.map_err(error::of_connecting),
        Err(_) => Err(LockError::new(
            ErrorCode::NetworkTimeout,
            format!("Firestore could not be connected to within {timeout:?}"),
        )),
    }
}

/// Without a provider, TLS and the fetching of tokens would panic.
fn check_crypto_provider() -> Result<(), LockError> {
    let brought = cfg!(feature = "default-crypto");
    if brought || rustls::crypto::CryptoProvider::get_default().is_some() {
        return Ok(());
    }
    Err(LockError::new(
        ErrorCode::AuthFailed,
        "TLS needs a rustls CryptoProvider: install one, or enable the feature `default-crypto` of \
         syncguard-firestore",
    ))
}
