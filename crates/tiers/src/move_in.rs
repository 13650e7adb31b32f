//! Restoring an image, a window at a time.

use ignis_backend::DeviceError;

use crate::chain::END;
use crate::disk_store::{DiskStore, STAGES};
use crate::error::TierError;
use crate::frame::{FrameError, Stamp, read_frame};
use crate::geometry::window_room;
use crate::header::Header;
use crate::image::{ImageId, Tier};
use crate::move_out::{Progress, damaged};
use crate::payload::Payload;
use crate::ram::RamStore;
use crate::table::Image;

/// A move in, in flight.
#[derive(Debug)]
pub(crate) struct MoveIn {
    pub(crate) image: ImageId,
    tier: Tier,
    header: Header,
    /// The window to read next, and how many were asked for and how many taken so far.
    window: u32,
    asked: u32,
    taken: u32,
}

impl MoveIn {
    pub(crate) fn new(id: ImageId, image: &Image, header: Header) -> MoveIn {
        MoveIn { image: id, tier: image.tier, header, window: image.first, asked: 0, taken: 0 }
    }

    /// Has the disk read ahead into every buffer that is idle.
    pub(crate) fn ask(&mut self, disk: &mut DiskStore) {
        while self.window != END && self.asked < self.taken + STAGES as u32 {
            let stage = self.asked as usize % STAGES;
            if !disk.inward[stage].is_idle() {
                return;
            }
            disk.start_read(stage, self.window, self.header.stamp(self.asked).stored_bytes());
            self.window = disk.chains.next(self.window);
            self.asked += 1;
        }
    }

    /// One window further at most. After an error or a landing the move is not stepped again.
    pub(crate) fn step(
        &mut self,
        ram: &RamStore,
        disk: Option<&mut DiskStore>,
        sink: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        match (self.tier, disk) {
            (Tier::Disk, Some(disk)) => {
                let stage = self.taken as usize % STAGES;
                let result = match self.taken < self.asked {
                    true => disk.inward[stage].result(),
                    false => None,
                };
                if let Some(result) = result {
                    result.map_err(|error| disk.error(error))?;
                    let taken = self.take(disk.inward[stage].buffer(), sink);
                    taken.map_err(|error| error.named(|| disk.file()))?;
                    self.ask(disk);
                    return Ok(self.progress());
                }
                self.ask(disk);
                Ok(Progress::Waiting)
            }
            _ => {
                let taken = self.take(ram.frame(self.window), sink);
                taken.map_err(|error| error.named(|| Tier::Ram.to_string()))?;
                self.window = ram.chains.next(self.window);
                Ok(self.progress())
            }
        }
    }

    fn progress(&self) -> Progress {
        if self.taken == self.header.windows() { Progress::Landed } else { Progress::Advanced }
    }

    fn take(&mut self, frame: &[u8], sink: &mut dyn Payload) -> Result<(), Unread> {
        let stamp = self.header.stamp(self.taken);
        let start = u64::from(self.taken) * window_room(self.header.window_bytes);
        read_frame(frame, &stamp, |at, piece| sink.write(start + at as u64, piece))
            .map_err(|error| Unread { stamp, error })?;
        self.taken += 1;
        Ok(())
    }
}

/// A frame that was not taken in; where it lies is named only then.
struct Unread {
    stamp: Stamp,
    error: FrameError<DeviceError>,
}

impl Unread {
    fn named(self, place: impl FnOnce() -> String) -> TierError {
        match self.error {
            FrameError::Damaged(found) => damaged(place(), &self.stamp, found),
            FrameError::Other(error) => TierError::Device(error),
        }
    }
}
