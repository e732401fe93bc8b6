//! Paths that cannot be opened, and files to which something happens.

use std::fs;
use std::path::{Path, PathBuf};

use sqlx::sqlite::SqlitePool;
use syncguard_core::backend::LockBackend as _;
use syncguard_core::{ErrorCode, LockError};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};

use crate::common::{MINUTE, acquire, connection, file, is_held, key, options, release, take};

async fn refused(path: impl AsRef<Path>) -> (ErrorCode, String) {
    let error = SqliteBackend::connect(path).await.unwrap_err();
    (error.code(), error.to_string())
}

#[tokio::test]
async fn a_path_that_cannot_be_opened_gives_an_error_that_says_why() {
    let (folder, path) = file();
    let (code, text) = refused(folder.path()).await;
    assert_eq!(code, ErrorCode::InvalidArgument);
    assert!(text.contains("is a folder"), "{text}");
    assert!(text.contains(folder.path().to_str().unwrap()), "{text}");

    let (code, text) = refused(folder.path().join("nowhere/locks.db")).await;
    assert_eq!(code, ErrorCode::InvalidArgument);
    assert!(text.contains("does not exist; create it"), "{text}");

    let (code, text) = refused("").await;
    assert_eq!(code, ErrorCode::InvalidArgument);
    assert!(text.contains("needs a path"), "{text}");

    fs::write(&path, "This is a letter, and not a database. ".repeat(100)).unwrap();
    let (code, text) = refused(&path).await;
    assert_eq!(code, ErrorCode::InvalidArgument);
    assert!(text.contains("not an SQLite database"), "{text}");
}

// Windows has no such names.
#[cfg(unix)]
#[tokio::test]
async fn a_path_is_a_path_and_no_uri() {
    let (folder, _) = file();
    let path = folder.path().join("file:a?mode=memory #%41.db");
    let backend = SqliteBackend::connect(&path).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    assert!(path.is_file());
}

#[tokio::test]
async fn locks_outlive_the_backend() {
    let (_folder, path) = file();
    let first = SqliteBackend::connect(&path).await.unwrap();
    let grant = take(&first, &key("k"), MINUTE).await;
    let close = syncguard_core::backend::CloseRequest::new(tokio::time::Instant::now() + MINUTE);
    first.close(close).await.unwrap();
    let error = acquire(&first, &key("k"), MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(!error.outcome_unknown());

    let second = SqliteBackend::connect(&path).await.unwrap();
    assert!(is_held(&second, &key("k")).await);
    assert!(
        release(&second, &grant.lock_id)
            .await
            .unwrap()
            .is_released()
    );
    assert!(take(&second, &key("k"), MINUTE).await.fence > grant.fence);
}

async fn over(target: sqlx::sqlite::SqliteConnectOptions) -> SqliteBackend {
    let pool = SqlitePool::connect_with(target).await.unwrap();
    SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap()
}

#[tokio::test]
async fn without_tables_the_error_names_the_set_up() {
    let (_folder, path) = file();
    let backend = over(options(&path)).await;
    let error = acquire(&backend, &key("k"), MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.to_string().contains("setup_schema"), "{error}");
    backend.setup_schema().await.unwrap();
    backend.setup_schema().await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
}

#[tokio::test]
async fn a_file_that_is_read_only_here_refuses_writes_and_serves_reads() {
    let (_folder, path) = file();
    let writable = SqliteBackend::connect(&path).await.unwrap();
    let grant = take(&writable, &key("k"), MINUTE).await;
    let backend = over(options(&path).create_if_missing(false).read_only(true)).await;
    assert!(is_held(&backend, &key("k")).await);
    let error = release(&backend, &grant.lock_id).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(!error.outcome_unknown());
}

#[tokio::test]
async fn a_full_disk_gives_a_typed_error_and_half_a_grant_never() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    // What is on the disk already is all that there may be.
    let full = over(options(&path).pragma("max_page_count", "1")).await;
    let mut refused = None;
    for number in 0..1_000 {
        let name = format!("{number}{}", "x".repeat(400));
        if let Err(error) = acquire(&full, &key(&name), MINUTE).await {
            refused = Some((name, error));
            break;
        }
    }
    let (name, error) = refused.expect("a full disk");
    assert_eq!(error.code(), ErrorCode::RateLimited, "{error}");
    assert!(!error.outcome_unknown());
    assert!(!is_held(&full, &key(&name)).await);
    // With room again it goes on, and nothing was granted twice.
    take(&backend, &key(&name), MINUTE).await;
    assert!(
        acquire(&full, &key(&name), MINUTE)
            .await
            .unwrap()
            .is_locked()
    );
    assert!(acquire(&full, &key("k"), MINUTE).await.unwrap().is_locked());
}

#[tokio::test]
async fn a_corrupted_file_gives_a_typed_error() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    for number in 0..200 {
        take(&backend, &key(&format!("k{number}")), MINUTE).await;
    }
    let close = syncguard_core::backend::CloseRequest::new(tokio::time::Instant::now() + MINUTE);
    backend.close(close).await.unwrap();
    let mut bytes = fs::read(&path).unwrap();
    // All pages but the first, which has the header and the schema.
    bytes[4096..].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let error = acquire(&backend, &key("k7"), MINUTE).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal, "{error}");
    assert!(error.to_string().contains("integrity_check"), "{error}");
}

/// What happens to files, and what an operation says then.
#[cfg(unix)]
async fn noticed(happens: impl FnOnce(&Path)) -> LockError {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let grant = take(&backend, &key("k"), MINUTE).await;
    happens(&path);
    assert!(release(&backend, &grant.lock_id).await.is_err());
    // The old file says that it is held.
    assert!(acquire(&backend, &key("k"), MINUTE).await.is_err());
    let locks = syncguard_core::Locks::new(backend.clone());
    assert!(locks.is_locked("k").await.is_err());
    acquire(&backend, &key("another"), MINUTE)
        .await
        .unwrap_err()
}

#[cfg(unix)]
fn side_file(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_was_replaced_or_removed_is_noticed_before_the_next_grant() {
    let restored = |path: &Path| {
        let copy = side_file(path, ".backup");
        fs::copy(path, &copy).unwrap();
        fs::rename(copy, path).unwrap();
    };
    let errors = [
        noticed(restored).await,
        noticed(|path| fs::remove_file(path).unwrap()).await,
        noticed(|path| fs::remove_file(side_file(path, "-wal")).unwrap()).await,
        noticed(|path| fs::remove_file(side_file(path, "-shm")).unwrap()).await,
    ];
    for error in errors {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error}");
        assert!(!error.outcome_unknown());
        assert!(error.to_string().contains("replaced or removed"), "{error}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_pool_whose_file_was_replaced_grants_nothing() {
    let (_folder, path) = file();
    let backend = over(options(&path)).await;
    backend.setup_schema().await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    fs::remove_file(&path).unwrap();
    SqliteBackend::connect(&path).await.unwrap();
    let error = acquire(&backend, &key("another"), MINUTE)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error}");
}

#[tokio::test]
async fn a_row_that_syncguard_did_not_write_gives_a_typed_error() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    let mut other = connection(&path).await;
    sqlx::raw_sql("UPDATE syncguard_locks SET fence = 'seven', lock_id = 'nobody'")
        .execute(&mut other)
        .await
        .unwrap();
    let locks = syncguard_core::Locks::new(backend);
    assert!(locks.try_lock("k").await.unwrap().is_none());
    let error = locks.get_by_key("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
}
