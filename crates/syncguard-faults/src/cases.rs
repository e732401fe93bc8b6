//! The cases.

pub mod loss;
pub mod outcomes;
pub mod processes;
pub mod renewal;
pub mod shutdown;
pub mod waiting;
