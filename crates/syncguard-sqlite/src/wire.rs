//! What is sent to SQLite, on which connection, and how rows are read.

mod completed;
mod connections;
mod exchange;
mod script;
mod template;

pub(crate) use connections::Connections;
pub(crate) use exchange::{Then, read};
pub(crate) use script::{DDL, Script, Scripts, Value};
pub(crate) use template::fill_in;
