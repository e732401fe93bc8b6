//! An HTTP handler that does one thing at a time for each user, on any number of servers.
//!
//! ```sh
//! cargo run --example axum_per_user
//! ```
//!
//! A withdrawal reads a balance and writes it back; another could run in between. The lock lets those
//! of one user run one after the other; different users do not wait for each other. If a client
//! disconnects, axum drops the handler, and the background releases the lock.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use syncguard_core::{Backoff, ErrorCode, Fence, LockError, Locks};
use syncguard_examples::connect;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

#[derive(Clone)]
struct Bank {
    locks: Locks,
    ledger: Arc<Ledger>,
}

async fn withdraw(
    State(bank): State<Bank>,
    Path((user, amount)): Path<(String, u32)>,
) -> Result<String, Refusal> {
    let receipt = bank
        .locks
        .lock(format!("user:{user}"))
        // No longer than a client waits.
        .timeout(Duration::from_secs(5))
        .retry_delay(Duration::from_millis(20))
        .backoff(Backoff::Fixed)
        .run(async |lease| {
            let balance = bank.ledger.balance(&user).await;
            let rest = balance.checked_sub(amount).ok_or(Refusal::NotEnough)?;
            bank.ledger.set_balance(&user, rest, lease.fence())?;
            Ok(format!("{rest} left"))
        })
        .await?;
    receipt.into_value()
}

enum Refusal {
    NotEnough,
    Overtaken,
    Lock(LockError),
}

impl From<LockError> for Refusal {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let error = match self {
            Self::NotEnough => return StatusCode::PAYMENT_REQUIRED.into_response(),
            Self::Overtaken => return StatusCode::CONFLICT.into_response(),
            Self::Lock(error) => error,
        };
        if error.code() == ErrorCode::InvalidArgument {
            return StatusCode::BAD_REQUEST.into_response();
        }
        // Its text names no user. It is for the log, not for the client.
        eprintln!("{error}");
        if error.is_retryable() {
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")]).into_response()
        } else {
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// In production, a table: `UPDATE .. SET balance = $1, fence = $2 WHERE user = $3 AND fence <= $2`.
struct Ledger(Mutex<HashMap<String, (u32, Option<Fence>)>>);

impl Ledger {
    async fn balance(&self, user: &str) -> u32 {
        let balance = self.accounts().get(user).map_or(0, |(balance, _)| *balance);
        tokio::time::sleep(Duration::from_millis(20)).await;
        balance
    }

    fn set_balance(&self, user: &str, balance: u32, fence: Fence) -> Result<(), Refusal> {
        let mut accounts = self.accounts();
        let (current, newest) = accounts.entry(user.to_owned()).or_default();
        if newest.is_some_and(|newest| fence < newest) {
            return Err(Refusal::Overtaken);
        }
        (*current, *newest) = (balance, Some(fence));
        Ok(())
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<String, (u32, Option<Fence>)>> {
        // No panic can happen while it is locked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until it has to stop, then waits until the locks of aborted requests are released.
async fn serve(
    listener: TcpListener,
    bank: Bank,
    stop: oneshot::Receiver<()>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let app = Router::new()
        .route("/users/{user}/withdraw/{amount}", post(withdraw))
        .with_state(bank.clone());
    axum::serve(listener, app)
        // A dropped sender means the same as a signal.
        .with_graceful_shutdown(async { stop.await.unwrap_or_default() })
        .await?;
    bank.locks.drain(Duration::from_secs(10)).await?;
    Ok(())
}

/// Ten withdrawals of 10 at once for Ann, who has 50, and one for Bob. Returns the statuses.
async fn demonstrate() -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
    let accounts = [("ann", (50, None)), ("bob", (50, None))];
    let accounts = accounts.map(|(user, account)| (user.to_owned(), account));
    let bank = Bank {
        locks: connect().await?,
        ledger: Arc::new(Ledger(Mutex::new(HashMap::from(accounts)))),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, (stop, stopped)) = (listener.local_addr()?, oneshot::channel());
    let server = tokio::spawn(serve(listener, bank, stopped));

    let mut requests = JoinSet::new();
    for user in ["ann"; 10].into_iter().chain(["bob"]) {
        requests.spawn(async move { request(address, user).await });
    }
    let mut statuses = Vec::new();
    while let Some(status) = requests.join_next().await {
        let status = status??;
        println!("{status}");
        statuses.push(status);
    }
    drop(stop);
    server.await??;
    Ok(statuses)
}

/// A client with no more of HTTP than this needs.
async fn request(server: SocketAddr, user: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(server).await?;
    let request = format!(
        "POST /users/{user}/withdraw/10 HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    let status = response.split(' ').nth(1).unwrap_or_default();
    let body = response.lines().last().unwrap_or_default();
    Ok(format!("{user}: {status} {body}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let statuses = demonstrate().await?;
    let granted = statuses.iter().filter(|line| line.starts_with("ann: 200"));
    println!("Ann had 50, and withdrew 10 {} times", granted.count());
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn nobody_overdraws() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut statuses = demonstrate().await?;
    statuses.sort_unstable();
    let ann = ["0", "10", "20", "30", "40"].map(|left| format!("ann: 200 {left} left"));
    assert_eq!(statuses[..5], ann);
    assert_eq!(statuses[5..10], ["ann: 402 "; 5]);
    assert_eq!(statuses[10], "bob: 200 40 left");
    Ok(())
}
