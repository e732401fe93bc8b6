//! [`Redacted`], and the search for identifiers in a driver's error.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A driver's error whose text must not be shown, such as one that quotes a key.
///
/// `Display` and `Debug` write another text. Only [`get_ref`](Self::get_ref) returns the driver's error.
/// [`LockError`](crate::LockError) redacts a source that quotes the key or the lock id of the call. A backend
/// redacts what else its driver quotes, such as other keys and parts of keys.
#[derive(Clone)]
pub struct Redacted {
    error: Arc<dyn Error + Send + Sync>,
    shown: Cow<'static, str>,
}

impl Redacted {
    /// Shows `shown` in place of the error.
    #[must_use]
    pub fn new(
        error: impl Error + Send + Sync + 'static,
        shown: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::of(Arc::new(error), shown)
    }

    pub(super) fn of(
        error: Arc<dyn Error + Send + Sync>,
        shown: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            error,
            shown: shown.into(),
        }
    }

    /// The driver's error. Its text is sensitive.
    #[must_use]
    pub fn get_ref(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }
}

impl fmt::Display for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Error for Redacted {}

/// Whether an error or one of its sources shows the identifier, as it is or escaped, or contains it by chance, as an
/// ordinary word.
pub(super) fn quotes(error: &(dyn Error + 'static), raw: &str) -> bool {
    // `Debug` of a text that contains it escapes fewer quotes than `escape_debug`, and more combining marks.
    let mut debug = format!("{raw:?}");
    debug.pop();
    debug.remove(0);
    let escaped = raw.escape_debug().to_string();
    let forms = [raw.to_owned(), escaped, debug, json_escaped(raw)];
    std::iter::successors(Some(error), |error| (*error).source()).any(|error| {
        [error.to_string(), format!("{error:?}")]
            .iter()
            .any(|text| forms.iter().any(|form| is_quoted(form, text)))
    })
}

/// Whether `text` shows the identifier.
///
/// A few letters or signs also occur in ordinary text and reveal nothing there. So a short one counts only if
/// no letter or digit adjoins it, except those of an escape before it, as in `\nkey` or `%20key`.
fn is_quoted(raw: &str, text: &str) -> bool {
    const SHORT: usize = 3;
    let is_in_word = |character: char| character.is_ascii_alphanumeric();
    if raw.len() > SHORT || !raw.is_ascii() {
        return text.contains(raw);
    }
    // What adjoins a quote must not depend on whether `Debug` has escaped the quote.
    let [raw, text] = [raw, text].map(|text| text.replace("\\\"", "\""));
    text.char_indices().any(|(at, _)| {
        let (before, rest) = text.split_at(at);
        let Some(after) = rest.strip_prefix(&raw) else {
            return false;
        };
        let line = before.trim_end_matches(is_in_word);
        let begins = line.len() == before.len() || line.ends_with(['\\', '%']);
        begins && !after.starts_with(is_in_word)
    })
}

/// The text as in JSON. It escapes control characters in another way than Rust.
fn json_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\\' => escaped.extend(['\\', character]),
            '\u{8}' => escaped.push_str("\\b"),
            '\t' => escaped.push_str("\\t"),
            '\n' => escaped.push_str("\\n"),
            '\u{c}' => escaped.push_str("\\f"),
            '\r' => escaped.push_str("\\r"),
            '\0'..='\u{1f}' => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => escaped.push(character),
        }
    }
    escaped
}
