//! What an image is to a caller: its kind, its head, its id.

use std::fmt;

/// Bytes of a token in an image's payload (u32, little endian).
pub const TOKEN_BYTES: u64 = 4;

/// Where an image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Host memory.
    Ram,
    /// A file.
    Disk,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Ram => "KV-RAM",
            Tier::Disk => "KV-disk",
        })
    }
}

/// What an image is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A sequence that will go on; worthless to another process.
    Live,
    /// A prompt checkpoint.
    Checkpoint,
    /// A shared prefix.
    Prefix,
}

impl Kind {
    /// The number that stands for it in an image's header.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    pub const fn from_code(code: u8) -> Option<Kind> {
        match code {
            0 => Some(Kind::Live),
            1 => Some(Kind::Checkpoint),
            2 => Some(Kind::Prefix),
            _ => None,
        }
    }

    /// True for what another process may find and claim.
    pub const fn is_retained(self) -> bool {
        !matches!(self, Kind::Live)
    }
}

/// What is known of an image without reading its payload.
///
/// The payload starts with `position` tokens of [`TOKEN_BYTES`] each; the rest is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHead {
    /// What it is of.
    pub kind: Kind,
    /// The caller's class of it; kept, not interpreted.
    pub class: u8,
    /// Tokens whose state it holds; at least 1.
    pub position: u32,
    /// Bytes of the payload, tokens included.
    pub payload_bytes: u64,
}

/// An image: a place in the table and how often the place was given out, so that the id of a
/// dropped image is refused for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub u64);

impl ImageId {
    pub(crate) fn new(index: u32, generation: u32) -> ImageId {
        ImageId(u64::from(generation) << 32 | u64::from(index))
    }

    pub(crate) fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A retained image that an earlier process left on KV-disk, whole and of this identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its id in this process.
    pub image: ImageId,
    /// Its head.
    pub head: ImageHead,
    /// Its tokens, `head.position` of them, verified.
    pub tokens: Vec<u32>,
}
