//! Why a file has no map.

use crate::Error;
use crate::grant::protocol::Refusal;
use std::io;
use std::path::PathBuf;

/// Why a file cannot be mapped now, or ever.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapRefusal {
    /// A system call failed.
    #[error("{action}: {source}")]
    Io {
        /// What was attempted, on what.
        action: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A directory, a device, a pipe.
    #[error("not a regular file")]
    NotRegular,
    /// Neither ext4 nor XFS: other file systems move or copy blocks behind a file's back, keep
    /// them elsewhere, or have none.
    #[error("the file system (type {0:#x}) is neither ext4 nor XFS; keep the file on one of these")]
    FileSystem(u64),
    /// The file system is not on the namespace.
    #[error("the file is on device {device}, which is not the namespace {namespace}: {why}")]
    OtherDevice {
        /// Device number of the file system, major:minor.
        device: String,
        /// The namespace as it was named.
        namespace: PathBuf,
        /// How far the way from the one to the other could be followed.
        why: String,
    },
    /// The device that was named is that of another namespace.
    #[error("{0}: is the right device named?")]
    OtherNamespace(String),
    /// An inode whose data is not where FIEMAP says, or not as a reader sees it.
    #[error("{0}")]
    Inode(&'static str),
    /// An extent that does not hold the file's bytes at a place in the namespace.
    #[error("the extent at byte {offset_bytes}: {why}")]
    Extent {
        /// File offset in bytes.
        offset_bytes: u64,
        /// Why not.
        why: &'static str,
        /// Whether that may change without a change of the file: it has yet to be written.
        passing: bool,
    },
    /// An extent on a part of a volume whose bytes are not on the namespace, or not as they are read.
    #[error("the extent at byte {offset_bytes}: {why}")]
    OtherPart {
        /// File offset in bytes.
        offset_bytes: u64,
        /// Where they are.
        why: String,
    },
    /// An extent that ends behind the namespace.
    #[error("the extent at byte {offset_bytes} ends behind the namespace: is the right one named?")]
    BehindNamespace {
        /// File offset in bytes.
        offset_bytes: u64,
    },
    /// More extents than the target takes.
    #[error("{extents} extents, and the target takes {max}; defragment or copy the file")]
    TooManyExtents {
        /// Extents of the file.
        extents: usize,
        /// The target's limit.
        max: usize,
    },
    /// The file changed each time while it was examined.
    #[error("the file changes all the time")]
    Changing,
    /// The file has changed within this second, and its change time may be one of whole seconds: another
    /// change in the same second would not show.
    #[error(
        "the file has changed within this second, and its file system seems to keep times in whole seconds; \
         ask again a second later"
    )]
    JustChanged,
    /// What was written to the file is in memory and did not get to the disk, whose bytes are older.
    #[error(
        "what was written to the file did not get to the disk: {0}; find out why, write it again, and then \
         open it again here"
    )]
    NotWritten(io::Error),
    /// The inode's change time is ahead of the clock, so that later changes may not show.
    #[error("the file's change time is in the future; touch it")]
    FutureChangeTime,
    /// The grant daemon gives no grant for the file.
    #[error("no grant: {0}")]
    NotGranted(Refusal),
    /// The target did not take the map.
    #[error("the target did not take the map: {0}")]
    Target(Box<crate::Error>),
}

impl MapRefusal {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        |source| Self::Io { action, source }
    }

    /// Whether the same file may be mapped a little later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::NotGranted(refusal) => refusal.cause.is_passing(),
            // A path may come back.
            Self::Target(error) => {
                matches!(**error, Error::NoPath { .. }) || error.lost().is_some()
            }
            Self::Changing
            | Self::JustChanged
            | Self::FutureChangeTime
            | Self::Extent { passing: true, .. } => true,
            _ => false,
        }
    }
}

impl From<Error> for MapRefusal {
    fn from(error: Error) -> Self {
        Self::Target(Box::new(error))
    }
}
