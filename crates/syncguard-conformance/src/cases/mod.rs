//! The cases, in groups.
//!
//! Each is a public function, so that its page says what it proves; [`suite!`](crate::suite) and
//! [`run`](crate::run()) call all of them. A case returns its result, and leaves no lock behind
//! that outlives its TTL.

#![expect(
    clippy::missing_errors_doc,
    reason = "every case fails in one way: the backend does not do what the case's page says"
)]

pub mod acquire;
pub mod auto_extend;
pub mod boundary;
pub mod cancel;
pub mod capacity;
pub mod concurrency;
pub mod errors;
pub mod expiry;
pub mod extend;
pub mod fencing;
pub mod keys;
pub mod listing;
pub mod lookup;
pub mod patterns;
pub mod races;
pub mod release;
pub mod stored;
pub mod tolerance;
pub mod upkeep;
pub mod waiting;
