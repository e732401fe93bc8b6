//! The reply of a server that is not PostgreSQL.

use std::io;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use syncguard_core::LockError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest that connecting and the reply may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Asks a PostgreSQL whether it uses TLS. Its reply is one of [`REPLIES`].
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const REPLIES: [&[u8]; 2] = [b"S", b"N"];

/// How much of it the error shows.
const SHOWN: usize = 32;

/// The error of an attempt to connect, with what the server says if it is no PostgreSQL. The driver shows
/// the first byte at most.
pub(crate) async fn with_greeting(error: LockError, target: &PgConnectOptions) -> LockError {
    use std::error::Error as _;

    let is_of_another = match error.source().and_then(|source| source.downcast_ref()) {
        Some(sqlx::Error::Protocol(_)) => true,
        Some(sqlx::Error::Io(io)) => io.kind() == io::ErrorKind::UnexpectedEof,
        _ => false,
    };
    if !is_of_another || target.get_socket().is_some() {
        return error;
    }
    match timeout(TIMEOUT, greeting(target)).await {
        Ok(Ok(greeting)) if !greeting.is_empty() && !REPLIES.contains(&&*greeting) => {
            let sent = greeting.escape_ascii();
            let message = match greeting.first() {
                // A PostgreSQL that has no process left says so like this.
                Some(b'E') => format!("the server sent \"{sent}\""),
                _ => format!("the server is not PostgreSQL; it sent \"{sent}\""),
            };
            LockError::new(error.code(), message).with_source(error)
        }
        _ => error,
    }
}

async fn greeting(target: &PgConnectOptions) -> io::Result<Vec<u8>> {
    let mut server = TcpStream::connect((target.get_host(), target.get_port())).await?;
    server.write_all(&SSL_REQUEST).await?;
    let mut greeting = vec![0; SHOWN];
    let length = server.read(&mut greeting).await?;
    greeting.truncate(length);
    Ok(greeting)
}
