//! TLS for `rediss://`, with the certificates that the system trusts.

use std::sync::Arc;

use fred::rustls::crypto::CryptoProvider;
use fred::rustls::{ClientConfig, RootCertStore};
use fred::rustls_native_certs::load_native_certs;
use fred::types::config::TlsConnector;
use syncguard_core::LockError;

#[cfg(feature = "rustls-aws-lc")]
use fred::rustls::crypto::aws_lc_rs as chosen;
#[cfg(not(feature = "rustls-aws-lc"))]
use fred::rustls::crypto::ring as chosen;

/// Uses the process's provider, or else that of this crate's feature. fred's own connector panics if any
/// crates compile in several providers and none is installed.
pub(crate) fn connector() -> Result<TlsConnector, LockError> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(chosen::default_provider()));
    let mut roots = RootCertStore::empty();
    let _ = roots.add_parsable_certificates(load_native_certs().certs);
    if roots.is_empty() {
        return Err(LockError::invalid_argument(
            "the Redis URL requires TLS, and this system has no CA certificates; install \
             the package ca-certificates, or configure a client and pass it to `with_client`",
        ));
    }
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            LockError::invalid_argument("the installed rustls provider cannot be used")
                .with_source(error)
        })?;
    Ok(config
        .with_root_certificates(roots)
        .with_no_client_auth()
        .into())
}
