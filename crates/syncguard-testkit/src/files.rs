//! [`folder_for_files`]: where a store that is a file is tested.

use std::env;
use std::path::{Path, PathBuf};

/// A folder for temporary files whose writes wait for no disk: `/dev/shm` on Linux, else the folder for
/// temporary files.
///
/// A store that is a file waits for the disk at each write. On a slow disk a test with many writes at once
/// would then fail for the disk's sake. [`PostgresServer`](crate::PostgresServer) does without `fsync` for the
/// same reason.
#[must_use]
pub fn folder_for_files() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if cfg!(target_os = "linux") && memory.is_dir() {
        memory.to_owned()
    } else {
        env::temp_dir()
    }
}
