//! Making an image, window by window, of a sequence, as many of which travel at a time as may, or
//! of an image in the tier above.

use ignis_backend::{Blocks, Copied, CopyId, DeviceError};

use crate::chain::END;
use crate::disk_store::DiskStore;
use crate::error::TierError;
use crate::frame::{Difference, Stamp, copy_frame, seal_frame, write_frame};
use crate::geometry::{STAGES, window_room};
use crate::header::Header;
use crate::image::{ImageId, Tier};
use crate::payload::Payload;
use crate::ram::RamStore;
use crate::table::Image;
use crate::travel::{Flights, Travelling};

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
    /// The window to begin next, and its index in the image.
    window: u32,
    begun: u32,
    flights: Flights,
    /// Windows whose frames are complete.
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
            begun: 0,
            flights: Flights::default(),
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

    /// True if the device has a frame.
    pub(crate) fn is_travelling(&self) -> bool {
        !self.flights.is_empty()
    }

    /// One window further at most; or, beside the rounds, takes back all that have arrived and
    /// sends until [`COPIES_MAX`](ignis_backend::COPIES_MAX) travel or the disk has no idle buffer.
    /// After an error or a landing the move is not stepped again.
    pub(crate) fn step(
        &mut self,
        ram: &mut RamStore,
        mut disk: Option<&mut DiskStore>,
        source: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let stepped = match (self.tier, disk.as_deref_mut()) {
            (Tier::Disk, Some(disk)) => self.step_to_disk(ram, disk, source),
            _ => self.step_to_ram(ram, source),
        };
        if stepped.is_err() {
            let mut end = |copies| source.end(copies, true).expect("what was waited for is over");
            self.settle(ram, disk, &mut end);
        }
        stepped
    }

    /// Takes back the frames that travel: from `end`, which may wait.
    pub(crate) fn settle(
        &mut self,
        ram: &mut RamStore,
        disk: Option<&mut DiskStore>,
        end: &mut dyn FnMut(CopyId) -> Copied,
    ) {
        let disk = disk.filter(|_| self.tier == Tier::Disk);
        self.flights.settle(ram, disk.map(|disk| &mut disk.out), end);
    }

    /// The next window's stamp and place; the one after it comes next.
    fn begin(&mut self, next: u32) -> (Stamp, u32) {
        let stamp = self.header.stamp(self.begun);
        self.begun += 1;
        (stamp, std::mem::replace(&mut self.window, next))
    }

    fn step_to_ram(
        &mut self,
        ram: &mut RamStore,
        source: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let mut progress = Progress::Waiting;
        while let Some((Travelling { window, stamp, .. }, sum)) =
            self.flights.arrived(ram, None, source)?
        {
            seal_frame(ram.frame_mut(window), &stamp, sum);
            progress = Progress::Advanced;
        }
        while self.window != END && !self.flights.is_full() {
            let (stamp, window) = self.begin(ram.chains.next(self.window));
            progress = Progress::Advanced;
            if !source.is_beside() {
                self.fill(ram.frame_mut(window), &stamp, source)?;
                break;
            }
            self.send(ram.lend(window), window, stamp, source);
        }
        let over = self.window == END && self.flights.is_empty();
        Ok(if over { Progress::Landed } else { progress })
    }

    fn step_to_disk(
        &mut self,
        ram: &mut RamStore,
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
        while let Some((Travelling { window, stamp, .. }, sum)) =
            self.flights.arrived(ram, Some(&mut disk.out), source)?
        {
            let stage = self.filled as usize % STAGES;
            seal_frame(disk.out[stage].buffer(), &stamp, sum);
            disk.start_write(stage, window, stamp.stored_bytes());
            self.filled += 1;
            progress = Progress::Advanced;
        }
        while self.window != END && disk.out[self.begun as usize % STAGES].is_idle() {
            let stage = self.begun as usize % STAGES;
            if self.source.is_some() || !source.is_beside() {
                if self.fill_stage(ram, disk, stage, source)? {
                    progress = Progress::Advanced;
                }
                break;
            }
            let (stamp, window) = self.begin(disk.chains.next(self.window));
            self.send(disk.out[stage].lend(), window, stamp, source);
            progress = Progress::Advanced;
        }
        if self.window != END || self.written < self.begun {
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

    /// Has a window's bytes travel into its frame.
    fn send(&mut self, frame: Blocks, window: u32, stamp: Stamp, source: &mut dyn Payload) {
        let copies = source.begin_read(self.start(&stamp), frame, stamp.payload());
        self.flights.push(Travelling { copies, window, stamp });
    }

    /// Fills a buffer and has the disk write it; false if the frame to be copied travels.
    fn fill_stage(
        &mut self,
        ram: &RamStore,
        disk: &mut DiskStore,
        stage: usize,
        source: &mut dyn Payload,
    ) -> Result<bool, TierError> {
        let stamp = self.header.stamp(self.begun);
        let frame = disk.out[stage].buffer();
        match &mut self.source {
            None => self.fill(frame, &stamp, source)?,
            Some(from) => {
                let Some(copied) = ram.frame(from.window) else { return Ok(false) };
                copy_frame(copied, frame, &stamp)
                    .map_err(|found| damaged("KV-RAM".into(), &stamp, found))?;
                from.window = ram.chains.next(from.window);
            }
        }
        let (_, window) = self.begin(disk.chains.next(self.window));
        disk.start_write(stage, window, stamp.stored_bytes());
        self.filled += 1;
        Ok(true)
    }

    /// Where a window's payload starts in the image's.
    fn start(&self, stamp: &Stamp) -> u64 {
        u64::from(stamp.window) * window_room(self.header.window_bytes)
    }

    fn fill(
        &self,
        frame: &mut [u8],
        stamp: &Stamp,
        source: &mut dyn Payload,
    ) -> Result<(), DeviceError> {
        let start = self.start(stamp);
        write_frame(frame, stamp, |at, piece| source.read(start + at as u64, piece))
    }
}

/// The error of a frame in `place` that is not what was written.
pub(crate) fn damaged(place: String, stamp: &Stamp, found: Difference) -> TierError {
    let Difference { what, found, expected } = found;
    TierError::Damaged { place, window: stamp.window, what, found, expected }
}
