//! TLS with a private authority, and what becomes of passwords on the way.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use syncguard_core::{ErrorCode, acquire};
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::config::{Config, TlsConnector};
use syncguard_redis::{RedisBackend, RedisOptions, RedisStore};
use syncguard_testkit::{PrivateCa, RedisServer, texts};

/// What an application does that has a private authority.
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
    let mut config = Config::from_url(&server.url()).unwrap();
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
    let store = RedisStore::with_client(client, RedisOptions::new()).unwrap();
    let backend = RedisBackend::new(store);
    let guard = acquire(&backend, "k", Duration::from_secs(60))
        .await
        .unwrap()
        .unwrap();
    let _ = guard.extend(Duration::from_secs(60)).await.unwrap();
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test]
async fn an_authority_that_is_not_trusted_is_an_error_that_leaks_nothing() {
    let ca = PrivateCa::new().unwrap();
    let server = RedisServer::start_tls(&ca).unwrap();
    // The machine's own list of authorities does not have this one.
    let url = server
        .url()
        .replace("rediss://", "rediss://user:correct%20horse@");
    let error = RedisStore::connect(&url).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(!error.outcome_unknown());
    let texts = texts(&error);
    assert!(texts.to_lowercase().contains("certificate"), "{texts}");
    assert!(!texts.contains("correct"), "{texts}");

    // Nor does a client that trusts another one.
    let other = PrivateCa::new().unwrap();
    let client = client(&server, &other);
    assert!(client.init().await.is_err());
    let store = RedisStore::with_client(client, RedisOptions::new()).unwrap();
    let error = acquire(&RedisBackend::new(store), "k", Duration::from_secs(60))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
}

#[tokio::test]
async fn without_tls_nothing_is_said_to_a_server_that_asks_for_it() {
    let ca = PrivateCa::new().unwrap();
    let server = RedisServer::start_tls(&ca).unwrap();
    let url = server.url().replace("rediss://", "redis://");
    let options = RedisOptions::new().with_timeout(Duration::from_secs(2));
    let error = RedisStore::connect_with(&url, options).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}
