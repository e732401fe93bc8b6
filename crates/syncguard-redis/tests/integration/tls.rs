//! TLS with a private certificate authority.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use syncguard_core::{ErrorCode, Locks};
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::config::{Config, TlsConnector};
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{PrivateCa, RedisServer, texts};

use crate::common::granted;

/// What an application with a private authority configures.
fn trusting(ca: &PrivateCa) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
        .into()
}

fn client(server: &RedisServer, ca: &PrivateCa) -> Client {
    // Without `rediss`: the parser's own connector panics where no provider is installed.
    let mut config = Config::from_url(&server.url().replace("rediss://", "redis://")).unwrap();
    config.tls = Some(trusting(ca).into());
    config.fail_fast = true;
    Client::new(config, None, None, None)
}

#[tokio::test]
async fn a_server_with_tls_alone_and_a_private_authority() {
    let ca = PrivateCa::new().unwrap();
    let server = RedisServer::start_tls(&ca).unwrap();
    let client = client(&server, &ca);
    client.init().await.unwrap();
    let backend = RedisBackend::with_client(client, RedisOptions::new()).unwrap();
    let locks = Locks::new(backend);
    let guard = granted(&locks, "k").await;
    let _ = guard.extend(Duration::from_secs(60)).await.unwrap();
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test]
async fn an_authority_that_is_not_trusted_is_an_error_that_leaks_nothing() {
    assert!(
        rustls::crypto::CryptoProvider::get_default().is_none(),
        "both providers are compiled in, and none is installed"
    );
    let ca = PrivateCa::new().unwrap();
    let server = RedisServer::start_tls(&ca).unwrap();
    // The machine does not trust this authority.
    let url = server
        .url()
        .replace("rediss://", "rediss://user:correct%20horse@");
    let error = RedisBackend::connect(&url).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(!error.outcome_unknown());
    let texts = texts(&error);
    assert!(texts.to_lowercase().contains("certificate"), "{texts}");
    assert!(!texts.contains("correct"), "{texts}");

    // Nor does a client that trusts another authority.
    let other = PrivateCa::new().unwrap();
    let client = client(&server, &other);
    assert!(client.init().await.is_err());
    let backend = RedisBackend::with_client(client, RedisOptions::new()).unwrap();
    let error = Locks::new(backend).try_lock("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
}

#[tokio::test]
async fn without_tls_a_server_that_requires_it_is_an_error() {
    let ca = PrivateCa::new().unwrap();
    let server = RedisServer::start_tls(&ca).unwrap();
    let url = server.url().replace("rediss://", "redis://");
    let options = RedisOptions::new().timeout(Duration::from_secs(2));
    let error = RedisBackend::connect_with(&url, options).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}
