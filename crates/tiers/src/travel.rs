//! Windows that travel to or from a device beside the steps.

use ignis_backend::{Copied, CopyId, DeviceError};

use crate::frame::Stamp;
use crate::geometry::STAGES;
use crate::move_in::MoveIn;
use crate::move_out::MoveOut;
use crate::payload::Payload;
use crate::ram::RamStore;
use crate::stage::Stage;
use crate::tiers::Tiers;

/// A window whose bytes travel between its frame and a device, which has the frame meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Travelling {
    pub(crate) copies: CopyId,
    /// Its place in KV-RAM or on the disk.
    pub(crate) window: u32,
    pub(crate) stamp: Stamp,
}

impl Travelling {
    /// Puts its frame back where it was lent: in one of the disk's `stages`, if there are any,
    /// which each window uses in turn; else in KV-RAM.
    pub(crate) fn put_back(
        &self,
        ram: &mut RamStore,
        stages: Option<&mut [Stage; STAGES]>,
        copied: Copied,
    ) -> Result<(), DeviceError> {
        match stages {
            Some(stages) => stages[self.stamp.window as usize % STAGES].return_buffer(copied.host),
            None => ram.take_back(self.window, copied.host),
        }
        copied.result
    }
}

/// The window that travelled and has arrived, its frame put back.
pub(crate) fn arrived(
    travelling: &mut Option<Travelling>,
    ram: &mut RamStore,
    stages: Option<&mut [Stage; STAGES]>,
    payload: &mut dyn Payload,
) -> Result<Option<Travelling>, DeviceError> {
    let Some(one) = *travelling else { return Ok(None) };
    let Some(copied) = payload.end(one.copies, false) else { return Ok(None) };
    *travelling = None;
    one.put_back(ram, stages, copied)?;
    Ok(Some(one))
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
