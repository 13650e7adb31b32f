//! Restoring an image, window by window: as many travel at a time as may.

use ignis_backend::{Blocks, Copied, CopyId, DeviceError, Sum};

use crate::chain::END;
use crate::disk_store::DiskStore;
use crate::error::TierError;
use crate::frame::{FrameError, Stamp, check_frame, check_header, read_frame};
use crate::geometry::{STAGES, window_room};
use crate::header::Header;
use crate::image::{ImageId, Tier};
use crate::move_out::{Progress, damaged};
use crate::payload::Payload;
use crate::ram::RamStore;
use crate::table::Image;
use crate::travel::{Flights, Travelling};

/// A move in, in flight.
#[derive(Debug)]
pub(crate) struct MoveIn {
    pub(crate) image: ImageId,
    tier: Tier,
    header: Header,
    /// The window to read next, and how many were asked of the disk so far.
    window: u32,
    asked: u32,
    /// Windows that were sent.
    sent: u32,
    flights: Flights,
    /// Windows that have arrived, and were found whole.
    taken: u32,
}

impl MoveIn {
    pub(crate) fn new(id: ImageId, image: &Image, header: Header) -> MoveIn {
        MoveIn {
            image: id,
            tier: image.tier,
            header,
            window: image.first,
            asked: 0,
            sent: 0,
            flights: Flights::default(),
            taken: 0,
        }
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

    /// True if the device has a frame.
    pub(crate) fn is_travelling(&self) -> bool {
        !self.flights.is_empty()
    }

    /// One window further at most; or, beside the rounds, takes in all that have arrived and sends
    /// until [`COPIES_MAX`](ignis_backend::COPIES_MAX) travel or the disk has read no more. After
    /// an error or a landing the move is not stepped again.
    pub(crate) fn step(
        &mut self,
        ram: &mut RamStore,
        mut disk: Option<&mut DiskStore>,
        sink: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let stepped = match (self.tier, disk.as_deref_mut()) {
            (Tier::Disk, Some(disk)) if sink.is_beside() => self.send_from_disk(ram, disk, sink),
            (Tier::Disk, Some(disk)) => self.step_from_disk(disk, sink),
            _ if sink.is_beside() => self.send_from_ram(ram, sink),
            _ => self.step_from_ram(ram, sink),
        };
        if stepped.is_err() {
            let mut end = |copies| sink.end(copies, true).expect("what was waited for is over");
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
        self.flights.settle(ram, disk.map(|disk| &mut disk.inward), end);
    }

    fn step_from_disk(
        &mut self,
        disk: &mut DiskStore,
        sink: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
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

    fn step_from_ram(
        &mut self,
        ram: &RamStore,
        sink: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let frame = ram.frame(self.window).expect("only this move has its frames travel");
        let taken = self.take(frame, sink);
        taken.map_err(|error| error.named(|| Tier::Ram.to_string()))?;
        self.window = ram.chains.next(self.window);
        Ok(self.progress())
    }

    /// Takes in the windows that have arrived, and sends the next ones.
    fn send_from_ram(
        &mut self,
        ram: &mut RamStore,
        sink: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let named = |error: Unread| error.named(|| Tier::Ram.to_string());
        let mut progress = Progress::Waiting;
        while let Some((Travelling { window, stamp, .. }, sum)) =
            self.flights.arrived(ram, None, sink)?
        {
            let frame = ram.frame(window).expect("it was put back");
            self.accept(frame, stamp, sum).map_err(named)?;
            progress = self.progress();
        }
        while self.window != END && !self.flights.is_full() {
            let window = self.window;
            self.window = ram.chains.next(window);
            if let Err((frame, error)) = self.send(ram.lend(window), window, sink) {
                ram.take_back(window, frame);
                return Err(named(error));
            }
            progress = Progress::Advanced;
        }
        Ok(progress)
    }

    /// The same, of windows that the disk has read.
    fn send_from_disk(
        &mut self,
        ram: &mut RamStore,
        disk: &mut DiskStore,
        sink: &mut dyn Payload,
    ) -> Result<Progress, TierError> {
        let mut progress = Progress::Waiting;
        while let Some((Travelling { stamp, .. }, sum)) =
            self.flights.arrived(ram, Some(&mut disk.inward), sink)?
        {
            let frame = disk.inward[stamp.window as usize % STAGES].buffer();
            self.accept(frame, stamp, sum).map_err(|error| error.named(|| disk.file()))?;
            progress = self.progress();
        }
        while self.sent < self.asked {
            let stage = self.sent as usize % STAGES;
            let Some(result) = disk.inward[stage].result() else { break };
            result.map_err(|error| disk.error(error))?;
            if let Err((frame, error)) = self.send(disk.inward[stage].lend(), END, sink) {
                disk.inward[stage].return_buffer(frame);
                return Err(error.named(|| disk.file()));
            }
            progress = Progress::Advanced;
        }
        self.ask(disk);
        Ok(progress)
    }

    /// Sends the next window, or gives its frame back with what is wrong.
    fn send(
        &mut self,
        frame: Blocks,
        window: u32,
        sink: &mut dyn Payload,
    ) -> Result<(), (Blocks, Unread)> {
        let stamp = self.header.stamp(self.sent);
        let damaged = |found| Unread { stamp, error: FrameError::Damaged(found) };
        if let Err(found) = check_header(&frame, &stamp) {
            return Err((frame, damaged(found)));
        }
        let start = u64::from(self.sent) * window_room(self.header.window_bytes);
        match sink.begin_write(start, frame, stamp.payload()) {
            Ok(copies) => self.flights.push(Travelling { copies, window, stamp }),
            Err((frame, error)) => {
                // What is refused for what it says may be damaged: its sum tells.
                let unread = match check_frame(&frame, &stamp, Sum::NONE) {
                    Err(found) => damaged(found),
                    Ok(()) => Unread { stamp, error: FrameError::Other(error) },
                };
                return Err((frame, unread));
            }
        }
        self.sent += 1;
        Ok(())
    }

    /// Checks a window that has arrived.
    fn accept(&mut self, frame: &[u8], stamp: Stamp, sum: Sum) -> Result<(), Unread> {
        check_frame(frame, &stamp, sum)
            .map_err(|found| Unread { stamp, error: FrameError::Damaged(found) })?;
        self.taken += 1;
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageHead, Kind};
    use crate::payload::NoPayload;
    use crate::step::{Step, TierLimits};
    use crate::tiers::Tiers;

    struct Bytes([u8; 9000]);

    impl Payload for Bytes {
        fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
            out.copy_from_slice(&self.0[at as usize..][..out.len()]);
            Ok(())
        }
        fn write(&mut self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
            Ok(())
        }
    }

    fn image_in_ram(tiers: &mut Tiers) -> ImageId {
        let head = ImageHead { kind: Kind::Live, class: 0, position: 5, payload_bytes: 9000 };
        tiers.begin_out(head, Tier::Ram).unwrap();
        loop {
            match tiers.step_out(&mut Bytes([7; 9000])) {
                Step::Landed(image) => return image,
                step => assert!(matches!(step, Step::Advanced)),
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_ram_is_refused_and_the_image_is_gone() {
        let limits = TierLimits { window_bytes: 4096, ram_windows: 3 };
        let mut tiers = Tiers::new(limits, 1, 1, None).unwrap();
        let image = image_in_ram(&mut tiers);
        tiers.ram.frame_mut(1)[700] ^= 4;
        tiers.begin_in(image).unwrap();
        let mut sink = Bytes([0; 9000]);
        assert!(matches!(tiers.step_in(&mut sink), Step::Advanced));
        match tiers.step_in(&mut sink) {
            Step::Failed(failed, error) => {
                assert!(failed == image && error.is_damage());
                assert!(error.to_string().starts_with("window 1 of an image in KV-RAM is damaged"));
            }
            step => panic!("{step:?}"),
        }
        assert_eq!((tiers.head(image), tiers.windows_free(Tier::Ram)), (None, 3));
        assert!(matches!(tiers.step_in(&mut sink), Step::Idle));
    }

    #[test]
    fn a_sink_that_refuses_leaves_the_image() {
        let limits = TierLimits { window_bytes: 4096, ram_windows: 3 };
        let mut tiers = Tiers::new(limits, 1, 1, None).unwrap();
        let image = image_in_ram(&mut tiers);
        tiers.begin_in(image).unwrap();
        let step = tiers.step_in(&mut NoPayload);
        assert!(matches!(step, Step::Failed(_, TierError::Device(_))));
        assert!(tiers.head(image).is_some());
        tiers.drop_image(image).unwrap();
    }
}
