//! Restoring an image, a window at a time.

use ignis_backend::DeviceError;

use crate::chain::END;
use crate::disk_store::DiskStore;
use crate::error::TierError;
use crate::frame::{FrameError, Stamp, read_frame};
use crate::geometry::{STAGES, window_room};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageHead, Kind};
    use crate::payload::NoPayload;
    use crate::tiers::{Step, TierLimits, Tiers};

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
