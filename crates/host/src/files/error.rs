//! Why a file has no map.

use crate::Error;
use crate::grant::protocol::Refusal;
use std::io;
use std::path::PathBuf;

/// Why a file cannot be mapped, temporarily or permanently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapRefusal {
    /// A system call failed.
    #[error("{action}: {source}")]
    Io {
        /// The operation and its object.
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
        /// The namespace's device, as the caller named it.
        namespace: PathBuf,
        /// Where following the layers from the file system's device to the namespace failed.
        why: String,
    },
    /// The named device belongs to another namespace.
    #[error("{0}; check that the right device is named")]
    OtherNamespace(String),
    /// The inode's data is not where FIEMAP says, or differs from what a reader sees.
    #[error("{0}")]
    Inode(&'static str),
    /// An extent whose bytes are not stored plainly at a place in the namespace.
    #[error("the extent at byte {offset_bytes}: {why}")]
    Extent {
        /// File offset in bytes.
        offset_bytes: u64,
        /// Why it cannot be mapped.
        why: &'static str,
        /// Whether the reason may pass without a change of the file: the extent has yet to be written to the device.
        passing: bool,
    },
    /// An extent on a part of a volume that is not on the namespace, or is stored transformed there.
    #[error("the extent at byte {offset_bytes}: {why}")]
    OtherPart {
        /// File offset in bytes.
        offset_bytes: u64,
        /// Where the bytes are, or how they are stored.
        why: String,
    },
    /// An extent that ends beyond the namespace.
    #[error(
        "the extent at byte {offset_bytes} ends beyond the end of the namespace; check that the \
         right one is named"
    )]
    BehindNamespace {
        /// File offset in bytes.
        offset_bytes: u64,
    },
    /// More extents than the target takes.
    #[error(
        "the file has {extents} extents, but the target accepts at most {max}; defragment or copy \
         the file"
    )]
    TooManyExtents {
        /// Extents of the file.
        extents: usize,
        /// The target's limit.
        max: usize,
    },
    /// The file changed during every attempt to examine it.
    #[error("the file changed during every attempt to map it")]
    Changing,
    /// The file has changed within this second, and its file system may keep change times in whole seconds: another
    /// change in the same second would go unnoticed.
    #[error(
        "the file has changed within this second, and its file system seems to keep times in whole \
         seconds; try again a second later"
    )]
    JustChanged,
    /// Writing the file's dirty pages to the disk failed, so the disk has older bytes than the page cache.
    #[error(
        "writing the file's data to the disk failed: {0}; find the cause, write the data again, \
         and then reopen the file here"
    )]
    NotWritten(io::Error),
    /// The inode's change time is ahead of the clock, so later changes may go unnoticed.
    #[error("the file's change time is in the future; touch it")]
    FutureChangeTime,
    /// The grant daemon refuses a grant for the file.
    #[error("no grant: {0}")]
    NotGranted(Refusal),
    /// The target refused the map.
    #[error("the target refused the map: {0}")]
    Target(Box<crate::Error>),
}

impl MapRefusal {
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        |source| Self::Io { action, source }
    }

    /// Whether mapping the same file may succeed a little later.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::NotGranted(refusal) => refusal.cause.is_passing(),
            // A path may recover.
            Self::Target(error) => {
                matches!(**error, Error::NoPath { .. }) || error.lost().is_some()
            }
            // Another process has leased the file to write it.
            Self::Io { source, .. } => source.kind() == io::ErrorKind::WouldBlock,
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
