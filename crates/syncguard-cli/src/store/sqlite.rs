//! SQLite: a file of this machine.

use std::fs::DirBuilder;
use std::path::Path;

use syncguard_core::{ErrorCode, LockError, Locks};
use syncguard_sqlite::sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use syncguard_sqlite::{SqliteBackend, SqliteOptions};

use super::{Purpose, locks};
use crate::args::StoreArgs;

pub(super) async fn open(
    path: &Path,
    asked: StoreArgs,
    purpose: Purpose,
) -> Result<Locks, LockError> {
    let mut options = SqliteOptions::new();
    if let Some(prefix) = asked.store_prefix {
        options = options.prefix(prefix);
    }
    if let Some(table) = asked.locks {
        options = options.locks_table(table);
    }
    if let Some(table) = asked.fence_counters {
        options = options.fence_counters_table(table);
    }
    if purpose == Purpose::Look {
        return existing(path, options);
    }
    if super::users_own().is_ok_and(|own| own == path) {
        create_folder(path)?;
    }
    Ok(locks(SqliteBackend::connect_with(path, options).await?))
}

/// Over a pool: `connect` would create the file and its tables, and change the journal mode.
fn existing(path: &Path, options: SqliteOptions) -> Result<Locks, LockError> {
    if !path.is_file() {
        let shown = path.display();
        return Err(LockError::invalid_argument(match path.is_dir() {
            true => format!("{shown} is a folder; name a file"),
            false => format!(
                "there is no store yet: no file {shown}; `syncguard run` and `syncguard acquire` create it"
            ),
        }));
    }
    let target = SqliteConnectOptions::new().filename(path);
    let pool = SqlitePoolOptions::new().max_connections(1);
    let backend = SqliteBackend::with_pool(pool.connect_lazy_with(target), options)?;
    Ok(locks(backend))
}

/// The user's own folder, which no other user may read.
fn create_folder(path: &Path) -> Result<(), LockError> {
    let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) else {
        return Ok(());
    };
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| {
        let folder = folder.display();
        let message = format!("cannot create {folder} for the default store; give --store");
        LockError::new(ErrorCode::ServiceUnavailable, message).with_source(error)
    })
}
