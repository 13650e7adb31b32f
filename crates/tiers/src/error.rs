//! Failures of the tiers, with the facts that an operator needs.

use std::path::PathBuf;

use ignis_backend::{DeviceError, DiskError};

use crate::image::{ImageId, Tier};

/// Why a tier could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// Host memory could not be had.
    #[error("cannot reserve {bytes} B of host memory for {what}: {reason}")]
    Reserve {
        /// How much.
        bytes: u64,
        /// For what.
        what: &'static str,
        /// What was said.
        reason: String,
    },
    /// A size or count is outside what a tier can hold.
    #[error("{what} is {found}; it must be {expected}")]
    Limit {
        /// Which one.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What is possible.
        expected: &'static str,
    },
    /// The tier was given no windows.
    #[error("{tier} is off")]
    Off {
        /// Which tier.
        tier: Tier,
    },
    /// An image needs `needed` windows, `free` remain. The caller may drop images.
    #[error("an image of {needed} windows does not fit into {tier}: {free} windows are free")]
    NoRoom {
        /// Which tier.
        tier: Tier,
        /// Windows of the image.
        needed: u32,
        /// Windows that nobody holds.
        free: u32,
    },
    /// A move in this direction is in flight already.
    #[error("a move {way} is in flight")]
    Busy {
        /// `out` or `in`.
        way: &'static str,
    },
    /// The image was dropped, or never landed.
    #[error("there is no image {}", image.0)]
    UnknownImage {
        /// The id that was given.
        image: ImageId,
    },
    /// The image is read or written by a move.
    #[error("image {} is being moved", image.0)]
    InMove {
        /// The image.
        image: ImageId,
    },
    /// Only an image in KV-RAM can be copied to KV-disk.
    #[error("image {} is not in KV-RAM", image.0)]
    NotInRam {
        /// The image.
        image: ImageId,
    },
    /// What a window holds is not what was written there: it is not restored.
    #[error(
        "window {window} of an image in {place} is damaged: {what} is {found:#x}, expected \
             {expected:#x}"
    )]
    Damaged {
        /// KV-RAM, or the path of the disk's file.
        place: String,
        /// Index of the window in its image.
        window: u32,
        /// The field that differs.
        what: &'static str,
        /// What was found.
        found: u64,
        /// What was written.
        expected: u64,
    },
    /// A disk operation failed.
    #[error("{file}: {source}")]
    Disk {
        /// The disk's file.
        file: String,
        /// What failed.
        source: DiskError,
    },
    /// The device could not read or write a sequence's state.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The file of KV-disk could not be made, opened or sized.
    #[error("cannot {action} {}: {reason}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Another process holds the file of KV-disk.
    #[error("{} is used by another process; give each server a KV-disk folder of its own",
            path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The volume cannot hold the file and the margin that is to stay free.
    #[error("{} needs {needed} B and a margin of {margin} B, but its volume has {available} B",
            path.display())]
    VolumeFull {
        /// The file.
        path: PathBuf,
        /// Bytes of the file.
        needed: u64,
        /// Bytes that the file could use: those free and those it occupies already.
        available: u64,
        /// Bytes that must stay free on the volume.
        margin: u64,
    },
}

impl TierError {
    /// True if an image's content was found damaged; such an image is gone.
    pub fn is_damage(&self) -> bool {
        matches!(self, TierError::Damaged { .. })
    }
}
