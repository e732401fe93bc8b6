//! [`texts`]: all text of an error.

use std::error::Error as _;

use syncguard_core::LockError;

/// The text of an error and its causes, by `Display` and `Debug`: wherever a secret could appear.
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
