//! What the engine asks of a device.
//!
//! Purpose: one trait for sizes ([`DeviceLayout`], pure arithmetic, no device needed) and one for
//! running ([`Device`]). Both the dry run and the real load go through the same layout, so the plan
//! cannot differ from what is reserved.
//!
//! A disk tier asks for a [`Disk`]: whole blocks, carried out beside the caller.
//!
//! Leaves out: policy, models, files.

mod device;
mod disk;
mod error;
mod fuse;
mod fused;
mod host;
mod layout;
mod pinned;
mod stored;
mod sum;

pub use device::{Addresses, COPIES_MAX, Device, LaneSampling, Recorded};
pub use disk::{BLOCK_BYTES, Disk, DiskAction, DiskDone, DiskError, DiskOp};
pub use error::DeviceError;
pub use fused::{
    EncodedRows, FusedProgram, FusedStep, NormAfter, PARTS_MAX, Prepare, Products,
    StoredActivations, StoredProducts,
};
pub use host::{Blocks, Copied, CopyId, CopyPart, CopyWay, HostBytes};
pub use layout::{Activations, DeviceLayout, KvFormat, SAMPLE_ROW_BYTES};
pub use stored::{
    DRAW_BYTES, FEW_ROWS, GRAPH_LANES_MAX, RUNS_MAX, SAMPLE_PART_IDS, SUM_SLOT_BYTES, StoredLayout,
    StoredScratch, encoded_image, is_long, run_classes, runs, sample_state_bytes,
};
pub use sum::Sum;
