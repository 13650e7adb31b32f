//! KV-RAM: an array of frames in one block of host memory.

use ignis_backend::{BLOCK_BYTES, Blocks};

use crate::chain::Chains;
use crate::error::TierError;

/// The frames, and which of them belong together.
#[derive(Debug)]
pub(crate) struct RamStore {
    blocks: Option<Blocks>,
    pub(crate) chains: Chains,
    window_bytes: usize,
}

impl RamStore {
    /// Takes the memory, zeroed and resident, if there is a window at all.
    pub(crate) fn new(windows: u32, window_bytes: u32) -> Result<RamStore, TierError> {
        let window_bytes = window_bytes as usize;
        let bytes = u64::from(windows) * window_bytes as u64;
        let refused = TierError::Reserve { bytes, what: "KV-RAM" };
        let blocks = match windows {
            0 => None,
            _ => Some(
                Blocks::zeroed(windows as usize * (window_bytes / BLOCK_BYTES)).ok_or(refused)?,
            ),
        };
        Ok(RamStore { blocks, chains: Chains::new(windows), window_bytes })
    }

    /// Requests for memory that it made.
    pub(crate) fn reservations(&self) -> u64 {
        u64::from(self.blocks.is_some())
    }

    pub(crate) fn frame(&self, window: u32) -> &[u8] {
        let blocks = self.blocks.as_deref().expect("a window lies in the block");
        &blocks[window as usize * self.window_bytes..][..self.window_bytes]
    }

    pub(crate) fn frame_mut(&mut self, window: u32) -> &mut [u8] {
        let blocks = self.blocks.as_deref_mut().expect("a window lies in the block");
        &mut blocks[window as usize * self.window_bytes..][..self.window_bytes]
    }
}
