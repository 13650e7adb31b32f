//! Making an image, a window at a time: of a sequence, or of an image in the tier above.

use ignis_backend::DeviceError;

use crate::chain::END;
use crate::disk_store::DiskStore;
use crate::error::TierError;
use crate::frame::{Difference, Stamp, copy_frame, write_frame};
use crate::geometry::{STAGES, window_room};
use crate::header::Header;
use crate::image::{ImageId, Tier};
use crate::payload::Payload;
use crate::ram::RamStore;
use crate::table::Image;

/// How far a step brought a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nowhere: the disk is busy.
    Waiting,
    /// Some way.
    Advanced,
    /// To its end.
    Landed,
}

/// An image in KV-RAM that is copied, and its next window.
#[derive(Clone, Copy, Debug)]
struct Source {
    image: ImageId,
    window: u32,
}

/// A move out in flight.
#[derive(Debug)]
pub(crate) struct MoveOut {
    pub(crate) image: ImageId,
    tier: Tier,
    header: Header,
    first: u32,
    source: Option<Source>,
    /// The window to fill next, and its index in the image.
    window: u32,
    filled: u32,
    /// Windows that the disk has written.
    written: u32,
    committing: bool,
}

impl MoveOut {
    /// Of a sequence.
    pub(crate) fn of_sequence(id: ImageId, image: &Image, header: Header) -> MoveOut {
        MoveOut {
            image: id,
            tier: image.tier,
            header,
            first: image.first,
            source: None,
            window: image.first,
            filled: 0,
            written: 0,
            committing: false,
        }
    }

    /// Of an image in KV-RAM.
    pub(crate) fn of_image(
        id: ImageId,
        image: &Image,
        header: Header,
        (source, first): (ImageId, u32),
    ) -> MoveOut {
        let source = Some(Source { image: source, window: first });
        MoveOut { source, ..MoveOut::of_sequence(id, image, header) }
    }

    /// The image that is copied.
    pub(crate) fn source_image(&self) -> Option<ImageId> {
        self.source.map(|source| source.image)
    }

    /// True once the header was given to the disk.
    pub(crate) fn is_committing(&self) -> bool {
        self.committing
    }

    /// One window further at most. After an error or a landing the move is not stepped again.
    pub(crate) fn step(
        &mut self,
        ram: &mut RamStore,
        disk: Option<&mut DiskStore>,
        source: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        match (self.tier, disk) {
            (Tier::Disk, Some(disk)) => self.step_to_disk(ram, disk, source),
            _ => self.step_to_ram(ram, source),
        }
    }

    fn step_to_ram(
        &mut self,
        ram: &mut RamStore,
        source: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let stamp = self.header.stamp(self.filled);
        self.fill(ram.frame_mut(self.window), &stamp, source)?;
        self.window = ram.chains.next(self.window);
        self.filled += 1;
        Ok(if self.window == END { Progress::Landed } else { Progress::Advanced })
    }

    fn step_to_disk(
        &mut self,
        ram: &RamStore,
        disk: &mut DiskStore,
        source: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let mut progress = Progress::Waiting;
        while self.written < self.filled {
            let Some(result) = disk.out[self.written as usize % STAGES].result() else { break };
            result.map_err(|error| disk.error(error))?;
            self.written += 1;
            progress = Progress::Advanced;
        }
        let stage = self.filled as usize % STAGES;
        if self.window != END && disk.out[stage].is_idle() {
            let stamp = self.header.stamp(self.filled);
            let frame = disk.out[stage].buffer();
            match &mut self.source {
                None => self.fill(frame, &stamp, source)?,
                Some(from) => {
                    copy_frame(ram.frame(from.window), frame, &stamp)
                        .map_err(|found| damaged("KV-RAM".into(), &stamp, found))?;
                    from.window = ram.chains.next(from.window);
                }
            }
            disk.start_write(stage, self.window, stamp.stored_bytes());
            self.window = disk.chains.next(self.window);
            self.filled += 1;
            progress = Progress::Advanced;
        }
        if self.window != END || self.written < self.filled {
            return Ok(progress);
        }
        if !self.committing {
            if disk.start_commit(self.first, &self.header) {
                self.committing = true;
                progress = Progress::Advanced;
            }
            return Ok(progress);
        }
        match disk.commit_result() {
            None => Ok(Progress::Waiting),
            Some(Ok(())) => Ok(Progress::Landed),
            Some(Err(error)) => Err(disk.error(error)),
        }
    }

    fn fill(
        &self,
        frame: &mut [u8],
        stamp: &Stamp,
        source: &mut dyn Payload,
    ) -> Result<(), DeviceError> {
        let start = u64::from(stamp.window) * window_room(self.header.window_bytes);
        write_frame(frame, stamp, |at, piece| source.read(start + at as u64, piece))
    }
}

/// The error of a frame in `place` that is not what was written.
pub(crate) fn damaged(place: String, stamp: &Stamp, found: Difference) -> TierError {
    let Difference { what, found, expected } = found;
    TierError::Damaged { place, window: stamp.window, what, found, expected }
}
