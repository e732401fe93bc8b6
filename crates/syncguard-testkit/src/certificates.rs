//! [`PrivateCa`]: a private certification authority.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::slot::Slot;

/// A private certification authority, as companies run them. Its file is deleted on drop.
#[derive(Debug)]
pub struct PrivateCa {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    slot: Slot,
}

/// A server's certificate and key.
#[derive(Debug)]
pub(crate) struct ServerFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl PrivateCa {
    /// Creates a new authority.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub fn new() -> Result<Self> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut parameters.distinguished_name;
        name.push(DnType::CommonName, "a CA for tests");
        let key = KeyPair::generate()?;
        let pem = parameters.self_signed(&key)?.pem();
        let slot = Slot::claim()?;
        let ca = Self {
            issuer: Issuer::new(parameters, key),
            pem,
            slot,
        };
        fs::write(ca.file(), &ca.pem)?;
        Ok(ca)
    }

    /// Its certificate, for clients that trust it.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The file with its certificate, for clients that trust it.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.slot.folder().join("ca.pem")
    }

    /// Writes a certificate for a server on the loopback address, and its key, into a folder.
    pub(crate) fn issue(&self, folder: &Path) -> Result<ServerFiles> {
        let names = ["localhost".to_owned(), Ipv4Addr::LOCALHOST.to_string()];
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(names)?.signed_by(&key, &self.issuer)?;
        let files = ServerFiles {
            certificate: folder.join("server.pem"),
            key: folder.join("server.key"),
        };
        fs::write(&files.certificate, certificate.pem())?;
        fs::write(&files.key, key.serialize_pem())?;
        Ok(files)
    }
}
