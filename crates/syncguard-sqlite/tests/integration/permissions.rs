//! A user who may not write to the file or its folder.

#![cfg(unix)]

use std::env;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use syncguard_core::ErrorCode;
use syncguard_core::backend::{CloseRequest, LockBackend as _};
use syncguard_sqlite::SqliteBackend;
use tempfile::TempDir;

use crate::common::{MINUTE, key, take};

/// What the other user opens. Set in its process alone.
const PATH: &str = "SYNCGUARD_SQLITE_FORBIDDEN_PATH";

const NOBODY: u32 = 65_534;

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// The other user: this program again. Without its variable it opens what does not exist.
#[tokio::test]
async fn is_told_so() {
    let path = env::var(PATH).unwrap_or_else(|_| "/nowhere/locks.db".to_owned());
    let error = SqliteBackend::connect(&path).await.unwrap_err();
    if env::var(PATH).is_ok() {
        // SQLite says whether it is read-only; but not why it cannot be opened.
        let codes = [ErrorCode::AuthFailed, ErrorCode::ServiceUnavailable];
        assert!(codes.contains(&error.code()), "{error}");
        assert!(error.to_string().contains("permission"), "{error}");
    } else {
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
    }
}

#[tokio::test]
async fn another_user_is_told_so() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("locks.db");
    let backend = SqliteBackend::connect(&path).await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
    let program = folder.path().join("program");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    allow(&program, 0o755);
    let own = folder.path().metadata().unwrap();
    let (own_uid, own_gid) = (own.uid(), own.gid());
    let told = |mode: u32, file_mode: u32, path: &Path| {
        allow(folder.path(), 0o755);
        for entry in fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap().path();
            if entry != program {
                allow(&entry, file_mode);
            }
        }
        allow(folder.path(), mode);
        let mut command = Command::new(&program);
        command
            .args(["--exact", "permissions::is_told_so", "--nocapture"])
            .env(PATH, path)
            .current_dir("/");
        // Only root may run a program as somebody else. These modes forbid the owner the same.
        let status = match command.uid(NOBODY).gid(NOBODY).status() {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                command.uid(own_uid).gid(own_gid).status()
            }
            status => status,
        };
        assert!(status.unwrap().success(), "{mode:o} {file_mode:o} {path:?}");
    };
    told(0o555, 0o444, &path);
    told(0o777, 0o444, &path);
    told(0o777, 0o000, &path);
    told(0o555, 0o666, &folder.path().join("new.db"));
    // Closed, it needs no companions any more.
    allow(folder.path(), 0o755);
    let close = CloseRequest::new(tokio::time::Instant::now() + MINUTE);
    backend.close(close).await.unwrap();
    told(0o555, 0o666, &path);
    told(0o511, 0o444, &path);
    // So that it can be deleted.
    allow(folder.path(), 0o755);
}
