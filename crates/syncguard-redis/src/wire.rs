//! What is sent to Redis, and how replies are read. The scripts are in `lua/`.

mod clients;
mod connection;
mod detour;
mod gather;
mod keep_alive;
pub(crate) mod script;
mod spawn_on_drop;

pub(crate) use self::clients::Clients;
pub(crate) use self::connection::{during_setup, open};
pub(crate) use self::gather::ScriptCall;
