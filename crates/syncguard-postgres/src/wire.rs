//! What is sent to the server, on which connection, and how replies are read.

mod connections;
mod hanging;
mod pool;
mod query;
mod session;
mod statement;
mod unanswered;

pub(crate) use connections::Connections;
pub(crate) use query::query;
pub(crate) use session::Session;
pub(crate) use statement::{Reply, SLOT, Statement, Statements, Value};
pub(crate) use unanswered::Unanswered;
