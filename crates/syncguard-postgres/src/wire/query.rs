//! [`query`]: sends one statement and reads its reply.

use std::time::Duration;

use syncguard_core::LockError;
use tokio::time::{Instant, sleep};

use super::connections::{Connections, until};
use super::session::{LOCK_TIMEOUT_MS, Query, Session};
use super::statement::{Reply, Statement, Value};
use crate::error::{Stage, is_conflict, is_lock_timeout, map, serves_no_longer, wrong_reply};

/// How many times a statement is repeated after a serialization failure or a deadlock.
const CONFLICT_RETRIES: u32 = 20;
const LONGEST_CONFLICT_PAUSE: Duration = Duration::from_millis(50);

const LOCK_TIMEOUT: Duration = Duration::from_millis(LOCK_TIMEOUT_MS);

/// Sends a statement about a subject, which is a key or a lock id.
pub(crate) async fn query(
    connections: &Connections,
    transaction_pooler: bool,
    statement: &Statement,
    subject: &str,
    values: &[Value<'_>],
    deadline: Instant,
) -> Result<Reply, LockError> {
    let stage = if statement.writes {
        Stage::Writing
    } else {
        Stage::Reading
    };
    let mut conflicts = 0;
    let (row, sent) = loop {
        let mut session = Session::open_to(connections, statement.writes, deadline).await?;
        // A retry runs at READ COMMITTED, whatever the database's default is.
        let in_transaction = transaction_pooler || conflicts > 0;
        let sent = match in_transaction || session.limits_waits() {
            true => statement,
            false => statement.limiting_waits(),
        };
        let query = bound(sent, subject, values);
        let result = if in_transaction {
            session.run_in_transaction(query).await
        } else {
            session.run(&sent.name, query).await
        };
        if result.is_ok() {
            session.settle();
        }
        match result {
            Err(error)
                if is_conflict(&error)
                    && conflicts < CONFLICT_RETRIES
                    && Instant::now() + pause(conflicts) < until(deadline) =>
            {
                drop(session);
                sleep(pause(conflicts)).await;
                conflicts += 1;
            }
            // It waited for another transaction for as long as it may, and was rolled back.
            Err(error)
                if is_lock_timeout(&error)
                    // There is time for another attempt before the caller stops waiting.
                    && Instant::now() + LOCK_TIMEOUT * 2 < until(deadline) =>
            {
                drop(session);
                sleep(LONGEST_CONFLICT_PAUSE).await;
            }
            Err(error) if serves_no_longer(&error) => {
                session.close_with_others();
                break (Err(error), sent);
            }
            result => break (result, sent),
        }
    };
    let row = row.map_err(|error| map(error, stage))?;
    row.and_then(|row| Reply::of(sent, subject, row))
        .ok_or_else(|| wrong_reply(stage))
}

fn bound<'q>(statement: &'q Statement, subject: &'q str, values: &[Value<'q>]) -> Query<'q> {
    let query = sqlx::query(statement.sql.clone())
        .bind(&*statement.name)
        .bind(subject);
    values.iter().fold(query, |query, value| match *value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
    })
}

fn pause(conflicts: u32) -> Duration {
    let doubled = Duration::from_millis(1).saturating_mul(1 << conflicts.min(10));
    doubled.min(LONGEST_CONFLICT_PAUSE)
}
