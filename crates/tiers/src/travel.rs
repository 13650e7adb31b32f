//! Windows that travel to or from a device beside the steps.

use arrayvec::ArrayVec;
use ignis_backend::{COPIES_MAX, Copied, CopyId, DeviceError, Sum};

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
    ) -> Result<Sum, DeviceError> {
        match stages {
            Some(stages) => stages[self.stamp.window as usize % STAGES].return_buffer(copied.host),
            None => ram.take_back(self.window, copied.host),
        }
        copied.result
    }
}

/// The windows of a move that travel, in the order in which they were sent: so they arrive.
#[derive(Debug, Default)]
pub(crate) struct Flights(ArrayVec<Travelling, COPIES_MAX>);

impl Flights {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    pub(crate) fn push(&mut self, sent: Travelling) {
        self.0.push(sent);
    }

    /// The first of them, if it has arrived: its frame put back, and the sum of what was summed.
    pub(crate) fn arrived(
        &mut self,
        ram: &mut RamStore,
        stages: Option<&mut [Stage; STAGES]>,
        payload: &mut dyn Payload,
    ) -> Result<Option<(Travelling, Sum)>, DeviceError> {
        let Some(&first) = self.0.first() else { return Ok(None) };
        let Some(copied) = payload.end(first.copies, false) else { return Ok(None) };
        self.0.remove(0);
        let sum = first.put_back(ram, stages, copied)?;
        Ok(Some((first, sum)))
    }

    /// Puts every frame back, from `end`, which may wait.
    pub(crate) fn settle(
        &mut self,
        ram: &mut RamStore,
        mut stages: Option<&mut [Stage; STAGES]>,
        end: &mut dyn FnMut(CopyId) -> Copied,
    ) {
        for one in self.0.drain(..) {
            // Nobody reads what arrived.
            let _ = one.put_back(ram, stages.as_deref_mut(), end(one.copies));
        }
    }
}

impl Tiers {
    /// True if a window travels to or from a device.
    pub fn is_travelling(&self) -> bool {
        let out = self.out.as_ref().is_some_and(MoveOut::is_travelling);
        out || self.inward.as_ref().is_some_and(MoveIn::is_travelling)
    }

    /// Takes back the frames of windows that travel out, from `end`, which waits for each.
    pub fn settle_out(&mut self, end: &mut dyn FnMut(CopyId) -> Copied) {
        if let Some(moving) = &mut self.out {
            moving.settle(&mut self.ram, self.disk.as_mut(), end);
        }
    }

    /// Takes back the frames of windows that travel in, from `end`, which waits for each.
    pub fn settle_in(&mut self, end: &mut dyn FnMut(CopyId) -> Copied) {
        if let Some(moving) = &mut self.inward {
            moving.settle(&mut self.ram, self.disk.as_mut(), end);
        }
    }
}
