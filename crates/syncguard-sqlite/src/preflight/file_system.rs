//! The file system of a file, and its free space.

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "the other systems do not name their file systems by number"
    )
)]

use std::path::Path;

/// Network file systems, by their numbers in Linux. SQLite's write-ahead log needs memory that all
/// processes share, and working file locks; neither exists between machines.
const NETWORK: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "SMB (CIFS)"),
    (0xfe53_4d42, "SMB (SMB2)"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x564c, "NCP"),
    (0x786f_4256, "VirtualBox shared folder"),
    (0xbacb_acbc, "VMware shared folder"),
];

/// FUSE: the kernel does not know where the files are stored.
const FUSE: u32 = 0x6573_5546;

/// The kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Local,
    Network(&'static str),
    Fuse,
    /// This operating system does not report it.
    Unknown,
}

impl FileSystem {
    fn of_number(number: u32) -> Self {
        if number == FUSE {
            return Self::Fuse;
        }
        let known = NETWORK.iter().find(|(known, _)| *known == number);
        known.map_or(Self::Local, |(_, name)| Self::Network(name))
    }

    /// The file system of a file, or of the folder that it will be in.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(path: &Path) -> Self {
        let folder = path.parent().unwrap_or(path);
        let found = rustix::fs::statfs(path).or_else(|_| rustix::fs::statfs(folder));
        let Ok(found) = found else {
            return Self::Unknown;
        };
        // The type of this number depends on the architecture; all values have 32 bits.
        let number = i128::from(found.f_type) & i128::from(u32::MAX);
        u32::try_from(number).map_or(Self::Unknown, Self::of_number)
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn of(_: &Path) -> Self {
        Self::Unknown
    }
}

/// How many bytes this process may still write beside a file; `None` if that is not known.
#[cfg(unix)]
pub(crate) fn free_bytes(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_named() {
        assert_eq!(FileSystem::of_number(0x6969), FileSystem::Network("NFS"));
        assert_eq!(
            FileSystem::of_number(0xff53_4d42),
            FileSystem::Network("SMB (CIFS)")
        );
        assert_eq!(FileSystem::of_number(FUSE), FileSystem::Fuse);
        // ext4, tmpfs, btrfs, xfs, overlayfs
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0x794c_7630] {
            assert_eq!(FileSystem::of_number(local), FileSystem::Local);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_is_asked_about_the_folder_of_a_file_that_is_not_there_yet() {
        let there = FileSystem::of(Path::new("/proc/self"));
        let not_yet = FileSystem::of(Path::new("/proc/self/locks.db"));
        assert_eq!((there, not_yet), (FileSystem::Local, FileSystem::Local));
        let nowhere = FileSystem::of(Path::new("/nowhere/at/all"));
        assert_eq!(nowhere, FileSystem::Unknown);
    }
}
