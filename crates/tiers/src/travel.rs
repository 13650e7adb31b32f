//! Windows that travel to or from a device beside the steps.

use ignis_backend::{Copied, CopyId};

use crate::frame::Stamp;
use crate::geometry::STAGES;
use crate::move_in::MoveIn;
use crate::move_out::MoveOut;
use crate::tiers::Tiers;

/// A window whose bytes travel between its frame and a device, which has the frame meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Travelling {
    pub(crate) copies: CopyId,
    /// Its place in KV-RAM or on the disk.
    pub(crate) window: u32,
    pub(crate) stamp: Stamp,
}

/// The buffer that a window on its way to or from the disk uses.
pub(crate) fn stage_of(travelling: &Travelling) -> usize {
    travelling.stamp.window as usize % STAGES
}

impl Tiers {
    /// True if a window travels to or from a device.
    pub fn is_travelling(&self) -> bool {
        let out = self.out.as_ref().is_some_and(MoveOut::is_travelling);
        out || self.inward.as_ref().is_some_and(MoveIn::is_travelling)
    }

    /// Takes back the frame of a window that travels out, from `end`, which waits for it.
    pub fn settle_out(&mut self, end: &mut dyn FnMut(CopyId) -> Copied) {
        if let Some(moving) = &mut self.out {
            let _ = moving.settle(&mut self.ram, self.disk.as_mut(), end);
        }
    }

    /// Takes back the frame of a window that travels in, from `end`, which waits for it.
    pub fn settle_in(&mut self, end: &mut dyn FnMut(CopyId) -> Copied) {
        if let Some(moving) = &mut self.inward {
            let _ = moving.settle(&mut self.ram, self.disk.as_mut(), end);
        }
    }
}
