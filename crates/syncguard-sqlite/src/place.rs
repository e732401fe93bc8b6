//! [`Place`]: the location of a store, and whether its files are still those that were opened.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use syncguard_core::LockError;

use crate::error::{in_memory, memory_ended, not_a_path, replaced};

/// Where a store is.
#[derive(Debug)]
pub(crate) enum Place {
    /// In memory, in one connection. A connection of an application has this mark.
    Memory(OnceLock<i64>),
    File(FilePlace),
}

type Opened = Arc<[(PathBuf, Identity)]>;

/// A file, and which files were there when it was opened.
#[derive(Debug)]
pub(crate) struct FilePlace {
    pub(crate) path: PathBuf,
    /// Whether to compare the write-ahead log and its index, too. They lie beside the file. They stay while the
    /// backend's own connections are open; a pool that closes idle connections may remove them.
    side_files: bool,
    /// The file that the backend's own connections opened.
    main: OnceLock<Identity>,
    /// Which other files were there when an operation had succeeded: those beside it, or the file of a pool.
    opened: Mutex<Option<Opened>>,
}

impl Place {
    pub(crate) fn memory() -> Self {
        Self::Memory(OnceLock::new())
    }

    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// A file that the backend's own connections will keep open.
    pub(crate) fn own(path: PathBuf) -> Self {
        Self::file(path, true)
    }

    /// The file of an application's pool.
    pub(crate) fn of_pool(path: PathBuf) -> Self {
        Self::file(path, false)
    }

    fn file(path: PathBuf, side_files: bool) -> Self {
        Self::File(FilePlace {
            path,
            side_files,
            opened: Mutex::new(None),
            main: OnceLock::new(),
        })
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Memory(_) => None,
            Self::File(file) => Some(&file.path),
        }
    }

    /// Which file the path leads to, if there is one.
    pub(crate) fn identity(&self) -> Option<Identity> {
        Identity::of(self.path()?)
    }

    /// Remembers the file that was opened. Fails if it is not the one that was there before.
    pub(crate) fn remember_main(&self, before: Option<Identity>) -> Result<(), LockError> {
        if let (Self::File(file), Some(opened)) = (self, self.identity()) {
            if before.is_some_and(|before| before != opened) {
                return Err(replaced(&file.path));
            }
            file.main.get_or_init(|| opened);
        }
        Ok(())
    }

    /// Remembers which files are there, once an operation has succeeded on them.
    pub(crate) fn remember(&self) {
        if let Self::File(file) = self {
            file.opened().get_or_insert_with(|| file.present());
        }
    }

    /// Forgets the files beside the file. SQLite removes them with the last connection, and the next one makes them
    /// anew.
    pub(crate) fn forget_side_files(&self) {
        if let Self::File(file) = self {
            *file.opened() = None;
        }
    }

    /// Fails if a file was replaced or removed since it was remembered. A process that opens it then does
    /// not see the locks of this one.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        let Self::File(file) = self else {
            return Ok(());
        };
        let main = file.main.get();
        if main.is_some_and(|main| Identity::of(&file.path) != Some(*main)) {
            return Err(replaced(&file.path));
        }
        let opened = file.opened().clone();
        let opened = opened.as_deref().unwrap_or_default();
        let is_there = |(path, opened): &(PathBuf, Identity)| Identity::of(path) == Some(*opened);
        match opened.iter().find(|opened| !is_there(opened)) {
            Some((path, _)) => Err(replaced(path)),
            None => Ok(()),
        }
    }

    /// Fails unless a connection of an application is of this place. SQLite names its file, and names none
    /// for a database in memory.
    pub(crate) fn check_file(&self, file: &str) -> Result<(), LockError> {
        match self {
            Self::Memory(_) if file.is_empty() => Ok(()),
            Self::Memory(_) => Err(not_a_path()),
            Self::File(_) if file.is_empty() => Err(in_memory()),
            Self::File(expected) => {
                let found = Identity::of(Path::new(file));
                match found.is_some() && found == Identity::of(&expected.path) {
                    true => Ok(()),
                    false => Err(replaced(&expected.path)),
                }
            }
        }
    }

    /// Fails if a connection with this mark has another store in memory.
    pub(crate) fn check_mark(&self, mark: i64) -> Result<(), LockError> {
        match self {
            Self::Memory(own) if own.get().is_some_and(|own| *own != mark) => Err(memory_ended()),
            _ => Ok(()),
        }
    }

    pub(crate) fn remember_mark(&self, mark: i64) {
        if let Self::Memory(own) = self {
            own.get_or_init(|| mark);
        }
    }
}

impl FilePlace {
    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn present(&self) -> Opened {
        let mut paths = match self.main.get() {
            Some(_) => Vec::new(),
            None => vec![self.path.clone()],
        };
        // SQLite names them after the file that a symbolic link leads to.
        if self.side_files
            && let Ok(path) = self.path.canonicalize()
        {
            for suffix in ["-wal", "-shm"] {
                let mut path = path.clone().into_os_string();
                path.push(suffix);
                paths.push(path.into());
            }
        }
        let found = paths.into_iter().filter_map(|path| {
            let identity = Identity::of(&path)?;
            Some((path, identity))
        });
        found.collect()
    }
}

/// Which file a path leads to. On systems where nobody can replace an open file, such as Windows, all are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    #[cfg(unix)]
    device: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Identity {
    #[cfg(unix)]
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let found = path.metadata().ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
        })
    }

    #[cfg(not(unix))]
    fn of(_: &Path) -> Option<Self> {
        Some(Self {})
    }
}
