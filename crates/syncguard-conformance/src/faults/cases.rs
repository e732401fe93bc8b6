//! The cases.

pub mod failover;
pub mod listing;
pub mod load;
pub mod loss;
pub mod outcomes;
pub mod processes;
pub mod renewal;
pub mod shutdown;
pub mod waiting;
