//! [`Store`]: the store of a URL.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use syncguard_core::backend::LockBackend;
use syncguard_core::{Fence, Locks};

use crate::args::StoreArgs;
use crate::exit::Failure;

#[cfg(feature = "firestore")]
mod firestore;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod sqlite;

/// The variable with the store's URL, if there is no `--store`.
const VARIABLE: &str = "SYNCGUARD_STORE";

/// The schemes of URLs, for messages.
const SCHEMES: &str = "sqlite:, redis://, rediss://, redis-cluster://, redis-sentinel://, \
                       postgres:// or firestore://";

/// What a command does with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Acquire locks. Creates missing tables.
    Acquire,
    /// Work on existing locks, or check the configuration. Creates nothing.
    Look,
}

/// A store, and how it is configured. `Display` shows no password.
#[derive(Debug)]
pub(crate) struct Store {
    place: Place,
    options: StoreArgs,
}

enum Place {
    Sqlite(PathBuf),
    Redis(String),
    Postgres(String),
    Firestore(String),
}

impl Store {
    /// The store of the arguments, or else of the environment, or else the user's own file.
    pub(crate) fn named(options: &StoreArgs) -> Result<Self, Failure> {
        let variable = || env::var(VARIABLE).ok();
        let url = options.store.clone().or_else(variable);
        let place = match url {
            // A script forgot to set the variable: its locks in the default store would exclude nobody.
            Some(url) if url.is_empty() => {
                return Err(Failure::usage(format!(
                    "the store's URL is empty; give it by `--store` or {VARIABLE}, or unset {VARIABLE} for \
                     the default store"
                )));
            }
            Some(url) => Place::of_url(&url)?,
            None => Place::Sqlite(users_own()?),
        };
        let options = options.clone();
        let store = Self { place, options };
        store.refuse_foreign_options()?;
        Ok(store)
    }

    /// Connects.
    pub(crate) async fn open(&self, purpose: Purpose) -> Result<Locks, Failure> {
        let options = self.options.clone();
        match &self.place {
            Place::Sqlite(path) => Ok(sqlite::open(path, options, purpose).await?),
            #[cfg(feature = "redis")]
            Place::Redis(url) => Ok(redis::open(url, options).await?),
            #[cfg(feature = "postgres")]
            Place::Postgres(url) => Ok(postgres::open(url, options, purpose).await?),
            #[cfg(feature = "firestore")]
            Place::Firestore(url) => Ok(firestore::open(url, options).await?),
            #[cfg(not(all(feature = "redis", feature = "postgres", feature = "firestore")))]
            _ => Err(Failure::usage(format!(
                "this `syncguard` was built without {name}; build it with `--features {name}`",
                name = self.place.name(),
            ))),
        }
    }

    /// If an option were ignored, this would use another store than the applications.
    fn refuse_foreign_options(&self) -> Result<(), Failure> {
        let StoreArgs {
            store: _,
            store_prefix,
            locks,
            fence_counters,
            transaction_pooler,
            server_time,
        } = &self.options;
        let given = [
            (store_prefix.is_some(), "--store-prefix"),
            (locks.is_some(), "--locks"),
            (fence_counters.is_some(), "--fence-counters"),
            (*transaction_pooler, "--transaction-pooler"),
            (*server_time, "--server-time"),
        ];
        let known: &[&str] = match self.place {
            Place::Sqlite(_) => &["--store-prefix", "--locks", "--fence-counters"],
            Place::Redis(_) => &["--store-prefix"],
            Place::Postgres(_) => &[
                "--store-prefix",
                "--locks",
                "--fence-counters",
                "--transaction-pooler",
            ],
            Place::Firestore(_) => &["--locks", "--fence-counters", "--server-time"],
        };
        let foreign = given
            .iter()
            .find(|(given, option)| *given && !known.contains(option));
        match foreign {
            None => Ok(()),
            Some((_, option)) => Err(Failure::usage(format!(
                "{} has no {option}; its options are: {}",
                self.place.name(),
                known.join(", ")
            ))),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.place.name();
        match &self.place {
            Place::Sqlite(path) => write!(f, "{name} at {}", path.display()),
            Place::Redis(url) | Place::Postgres(url) => write!(f, "{name} at {}", shown(url)),
            Place::Firestore(url) => match emulator(url) {
                Some(_) => write!(f, "{name} at {}, an emulator", shown(url)),
                None => write!(f, "{name} at {}", shown(url)),
            },
        }
    }
}

impl Place {
    fn of_url(url: &str) -> Result<Self, Failure> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Failure::usage(format!(
                "a store is a URL that begins with {SCHEMES}; for a file it is sqlite:PATH"
            )));
        };
        // With the part behind it, as in `redis-cluster`.
        let base = scheme.split(['-', '+']).next().unwrap_or(scheme);
        match base {
            "sqlite" => sqlite_path(rest).map(Self::Sqlite),
            "redis" | "rediss" | "valkey" | "valkeys" => {
                needs_slashes(rest, base, "HOST:PORT")?;
                Ok(Self::Redis(url.to_owned()))
            }
            "postgres" | "postgresql" => {
                needs_slashes(rest, base, "USER@HOST/DATABASE")?;
                Ok(Self::Postgres(url.to_owned()))
            }
            "firestore" => {
                needs_slashes(rest, base, "PROJECT")?;
                Ok(Self::Firestore(match env::var("FIRESTORE_EMULATOR_HOST") {
                    Ok(host) => at_emulator(url, &host),
                    Err(_) => url.to_owned(),
                }))
            }
            _ => Err(Failure::usage(format!(
                "a store's URL begins with one of {SCHEMES}"
            ))),
        }
    }

    /// The store's name, which is that of its feature.
    fn name(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "sqlite",
            Self::Redis(_) => "redis",
            Self::Postgres(_) => "postgres",
            Self::Firestore(_) => "firestore",
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The handle on a backend. It does not log failed releases: they are printed.
fn locks(backend: impl LockBackend<Fence = Fence>) -> Locks {
    Locks::builder(backend).on_release_error(|_| {}).build()
}

/// Drivers treat a URL without its two slashes as that of another host, such as the local one.
fn needs_slashes(rest: &str, scheme: &str, form: &str) -> Result<(), Failure> {
    match rest.starts_with("//") {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "the store's URL has two slashes after {scheme}:, as in {scheme}://{form}"
        ))),
    }
}

/// The path of `sqlite:PATH`, `sqlite://PATH` and `sqlite:///ABSOLUTE/PATH`.
fn sqlite_path(rest: &str) -> Result<PathBuf, Failure> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    match path {
        "" => Err(Failure::usage(
            "sqlite: needs a path, as in sqlite:/var/lib/app/locks.db",
        )),
        ":memory:" => Err(Failure::usage(
            "a store in memory ends with this process and excludes nobody; name a file",
        )),
        _ => Ok(PathBuf::from(path)),
    }
}

/// The file in the user's state folder.
fn users_own() -> Result<PathBuf, Failure> {
    let folder = |variable| {
        let path = env::var_os(variable).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let home = || env::home_dir().filter(|home| home.is_absolute());
    let state = if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        home().map(|home| home.join("Library/Application Support"))
    } else {
        folder("XDG_STATE_HOME").or_else(|| home().map(|home| home.join(".local/state")))
    };
    let file = state.map(|state| state.join(Path::new("syncguard/locks.db")));
    file.ok_or_else(|| {
        Failure::usage(format!(
            "there is no home folder for the default store; give --store, or set {VARIABLE}"
        ))
    })
}

/// Address and project of `firestore://HOST:PORT/PROJECT`, an emulator; `firestore://PROJECT` is Google's
/// service.
fn emulator(url: &str) -> Option<(&str, &str)> {
    let (address, project) = url.strip_prefix("firestore://")?.split_once('/')?;
    (address != "projects").then_some((address, project))
}

/// The URL of the same project on the emulator at `host`, unless it names an emulator itself.
fn at_emulator(url: &str, host: &str) -> String {
    match url.strip_prefix("firestore://") {
        Some(project) if !host.is_empty() && emulator(url).is_none() => {
            format!("firestore://{host}/{project}")
        }
        _ => url.to_owned(),
    }
}

/// The part of a URL that cannot contain a password: the host and the port.
fn shown(url: &str) -> String {
    let hidden = || "the given URL".to_owned();
    let Some((_, rest)) = url.split_once("://") else {
        return hidden();
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // A later `@` may be in, or end, a password that should have been percent-encoded.
    if path.contains('@') {
        return hidden();
    }
    let place = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = place.rsplit_once(':').unwrap_or((place, "0"));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.[]:".contains(c);
    if host.is_empty() || !host.chars().all(plain) || port.parse::<u16>().is_err() {
        return hidden();
    }
    place.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_could_be_a_password() {
        for (url, expected) in [
            ("redis://127.0.0.1:6379", "127.0.0.1:6379"),
            ("redis://user:secret@host:1/3", "host:1"),
            ("redis://:se%40cret@host", "host"),
            ("redis://:se@cret@host", "host"),
            ("redis://:se@cr/et@host:1", "the given URL"),
            ("redis://user:secret", "the given URL"),
            ("postgres://[::1]:5432/x?password=secret", "[::1]:5432"),
            ("postgres://host/x?password=sec@ret", "the given URL"),
            ("postgres://?host=h&password=secret", "the given URL"),
            ("firestore://127.0.0.1:8080/p", "127.0.0.1:8080"),
            ("secret", "the given URL"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }

    #[test]
    fn a_path_is_given_with_or_without_slashes() {
        for (url, path) in [
            ("sqlite:/var/lib/x.db", "/var/lib/x.db"),
            ("sqlite:///var/lib/x.db", "/var/lib/x.db"),
            ("sqlite:x.db", "x.db"),
        ] {
            match Place::of_url(url) {
                Ok(Place::Sqlite(found)) => assert_eq!(found, Path::new(path)),
                other => panic!("{url}: {other:?}"),
            }
        }
        for url in ["sqlite:", "sqlite::memory:", "sqlite://:memory:"] {
            assert!(Place::of_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_url_without_two_slashes_is_refused_and_the_form_is_shown() {
        for (url, form) in [
            ("redis:/secret", "redis://HOST:PORT"),
            ("redis:secret:6379", "redis://HOST:PORT"),
            ("rediss:/user:secret@host", "rediss://HOST:PORT"),
            ("redis-cluster:/secret", "redis://HOST:PORT"),
            ("postgres:/secret/db", "postgres://USER@HOST/DATABASE"),
            ("postgresql:secret", "postgresql://USER@HOST/DATABASE"),
            ("firestore:/secret", "firestore://PROJECT"),
        ] {
            let failure = Place::of_url(url).unwrap_err();
            assert!(failure.message.contains(form), "{}", failure.message);
            assert!(!failure.message.contains("secret"), "{}", failure.message);
        }
    }

    #[test]
    fn another_url_is_refused_without_quoting_it() {
        for url in ["http://user:secret@host", "secret", "/var/lib/secret.db"] {
            let failure = Place::of_url(url).unwrap_err();
            assert!(!failure.message.contains("secret"), "{}", failure.message);
            assert!(failure.message.contains("redis://"), "{}", failure.message);
        }
    }
}
