//! KV-RAM: an array of frames in one block of host memory.

use ignis_backend::Blocks;

use crate::chain::Chains;
use crate::error::TierError;
use crate::memory::{TakeMemory, take_named};

/// The frames, and which of them belong together.
#[derive(Debug)]
pub(crate) struct RamStore {
    /// By window; none while its bytes travel.
    frames: Vec<Option<Blocks>>,
    pub(crate) chains: Chains,
}

impl RamStore {
    /// Takes the memory, zeroed and resident, if there is a window at all.
    pub(crate) fn new(
        windows: u32,
        window_bytes: u32,
        take: TakeMemory<'_>,
    ) -> Result<RamStore, TierError> {
        let frames = match windows {
            0 => vec![],
            _ => take_named("KV-RAM", take, windows as usize, window_bytes)?,
        };
        let frames = frames.into_iter().map(Some).collect();
        Ok(RamStore { frames, chains: Chains::new(windows) })
    }

    /// Requests for memory that it made.
    pub(crate) fn reservations(&self) -> u64 {
        u64::from(!self.frames.is_empty())
    }

    /// A frame; none while it travels.
    pub(crate) fn frame(&self, window: u32) -> Option<&[u8]> {
        self.frames[window as usize].as_deref()
    }

    /// A frame that does not travel.
    pub(crate) fn frame_mut(&mut self, window: u32) -> &mut [u8] {
        self.frames[window as usize].as_deref_mut().expect("the frame does not travel")
    }

    /// Hands a frame out, to travel.
    pub(crate) fn lend(&mut self, window: u32) -> Blocks {
        self.frames[window as usize].take().expect("a frame travels once at a time")
    }

    /// Takes a frame back.
    pub(crate) fn take_back(&mut self, window: u32, frame: Blocks) {
        let before = self.frames[window as usize].replace(frame);
        assert!(before.is_none(), "the frame was lent");
    }
}
