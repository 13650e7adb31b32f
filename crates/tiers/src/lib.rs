//! Images of sequences in KV-RAM and on KV-disk, and the moves that make and restore them.
//!
//! An image is the state of a sequence as one run of bytes, its tokens first. It is cut into
//! windows of one size; a window lies in a frame, behind a header that says whose it is and a
//! checksum. The frames of an image lie anywhere, so whether it fits is a count. KV-RAM is an array
//! of frames in one block of host memory. KV-disk is one file: a label, a table of headers, frames;
//! an image's header is written last, commits it, and is zeroed to forget it.
//!
//! Key properties: a move can be given up between any two steps. A step reads or writes one window;
//! with a device that copies beside its rounds it takes back all that have arrived and sends others
//! until as many travel as may (`COPIES_MAX`, or the disk's buffers), so that the device has their
//! frames from one step to a later one, and sums them where they lie, so that a step is short
//! however many arrive in it. No call waits for a disk but [`Tiers::wait`], construction and drop;
//! nothing takes memory after construction; an image is restored byte for byte or refused, never as
//! other bytes.
//!
//! Leaves out: which sequence moves where and what is retained (policy), and what a payload means
//! behind its tokens. A file survives the end of a process; a power cut may lose images, never
//! change them.
#![forbid(unsafe_code)]

mod chain;
mod disk_store;
mod error;
mod file;
mod frame;
mod geometry;
mod header;
mod image;
mod memory;
mod move_in;
mod move_out;
mod nonce;
mod payload;
mod ram;
mod recover;
mod stage;
mod step;
mod table;
mod tiers;
mod travel;

pub use disk_store::DiskCounts;
pub use error::TierError;
pub use file::{FILE_NAME, FileDisk, file_room};
pub use geometry::{
    FRAME_HEADER_BYTES, IMAGE_WINDOWS_MAX, PIECE_BYTES, disk_buffer_bytes, disk_bytes,
    disk_windows, window_bytes,
};
pub use image::{Found, ImageHead, ImageId, Kind, TOKEN_BYTES, Tier};
pub use memory::TakeMemory;
pub use payload::{NoPayload, Payload};
pub use step::{Step, TierLimits};
pub use tiers::Tiers;
