//! The scripts that are sent without a client of ours, and their keys and arguments.

use redis::{Cmd, Script, cmd};
use syncguard_core::backend::TIME_TOLERANCE_MS;

use crate::workload::TTL;

#[path = "../../../../crates/syncguard-redis/src/lua.rs"]
mod lua;

macro_rules! ours {
    ($file:literal) => {
        // As the backend does it. `Limit` fails if the server knows no such script.
        Script::new(&lua::filled(include_str!(concat!("ours/", $file))))
    };
}

/// Two ways to write the same scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// As the backend sends them.
    Ours,
    /// As in the specification: every value is decoded from JSON and encoded to it.
    Literal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Acquire,
    Refusal,
    Extend,
    Lookup,
    Release,
}

/// In the order in which they find what they need.
pub(crate) const STEPS: [Step; 5] = [
    Step::Acquire,
    Step::Refusal,
    Step::Extend,
    Step::Lookup,
    Step::Release,
];

impl Step {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Refusal => "refusal",
            Self::Extend => "extend",
            Self::Lookup => "lookup by id",
            Self::Release => "release",
        }
    }
}

pub(crate) fn script(flavour: Flavour, step: Step) -> Script {
    match (flavour, step) {
        (Flavour::Ours, Step::Acquire | Step::Refusal) => ours!("acquire.lua"),
        (Flavour::Ours, Step::Release) => ours!("release.lua"),
        (Flavour::Ours, Step::Extend) => ours!("extend.lua"),
        (Flavour::Ours, Step::Lookup) => ours!("read_id.lua"),
        (Flavour::Literal, Step::Acquire | Step::Refusal) => {
            Script::new(include_str!("literal/acquire.lua"))
        }
        (Flavour::Literal, Step::Release) => Script::new(include_str!("literal/release.lua")),
        (Flavour::Literal, Step::Extend) => Script::new(include_str!("literal/extend.lua")),
        (Flavour::Literal, Step::Lookup) => Script::new(include_str!("literal/lookup.lua")),
    }
}

/// The names of one lock, from the text that tells it from others: 12 characters.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) key: String,
    pub(crate) id: String,
}

impl Names {
    pub(crate) fn of(text: &str) -> Self {
        Self {
            key: text.to_owned(),
            id: format!("AAAAAAAAAA{text}"),
        }
    }

    pub(crate) fn lock(&self) -> String {
        format!("syncguard:{}", self.key)
    }

    pub(crate) fn index(&self) -> String {
        format!("syncguard:id:{}", self.id)
    }

    pub(crate) fn fence(&self) -> String {
        format!("syncguard:fence:{}", self.lock())
    }

    /// Keys, then arguments, of a step by this id.
    pub(crate) fn words(&self, flavour: Flavour, step: Step) -> (Vec<String>, Vec<String>) {
        let (id, ttl) = (self.id.clone(), TTL.as_millis().to_string());
        let tolerance = TIME_TOLERANCE_MS.to_string();
        let keys = match step {
            Step::Acquire | Step::Refusal => vec![self.lock(), self.index(), self.fence()],
            Step::Extend | Step::Lookup | Step::Release => vec![self.index()],
        };
        let head = format!("{}{id}{}", lua::BEFORE_ID, lua::BEFORE_EXPIRY);
        let arguments = match (flavour, step) {
            (Flavour::Ours, Step::Acquire | Step::Refusal) => {
                vec![head, format!(r#"{ttl},"key":"{}","fence":""#, self.key)]
            }
            (Flavour::Ours, Step::Extend) => vec![head, ttl],
            (Flavour::Ours, Step::Release) => vec![head],
            (Flavour::Ours, Step::Lookup) => vec![],
            (Flavour::Literal, Step::Acquire | Step::Refusal) => {
                vec![id, ttl, tolerance, self.lock(), self.key.clone()]
            }
            (Flavour::Literal, Step::Extend) => vec![id, tolerance, ttl],
            (Flavour::Literal, Step::Release | Step::Lookup) => vec![id, tolerance],
        };
        (keys, arguments)
    }

    /// The step as a command.
    pub(crate) fn command(&self, flavour: Flavour, step: Step, digest: &str) -> Cmd {
        let (keys, arguments) = self.words(flavour, step);
        let mut command = cmd("EVALSHA");
        command.arg(digest).arg(keys.len()).arg(keys).arg(arguments);
        command
    }
}
