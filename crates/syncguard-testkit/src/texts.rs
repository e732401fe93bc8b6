//! All that an error says.

use std::error::Error as _;

use syncguard_core::LockError;

/// What an error and its causes say, by `Display` and by `Debug`: where a secret could stand.
#[must_use]
pub fn texts(error: &LockError) -> String {
    let mut texts = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        texts.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    texts
}
