//! The two tiers as one object: images by id, and at most one move each way.

use std::time::Duration;

use ignis_backend::Disk;

use crate::disk_store::{DiskCounts, DiskStore};
use crate::error::TierError;
use crate::geometry::{IMAGE_WINDOWS_MAX, disk_windows, windows_of};
use crate::header::Header;
use crate::image::{Found, ImageHead, ImageId, TOKEN_BYTES, Tier};
use crate::memory::{TakeMemory, heap};
use crate::move_in::MoveIn;
use crate::move_out::{MoveOut, Progress};
use crate::nonce::Nonces;
use crate::payload::Payload;
use crate::ram::RamStore;
use crate::recover;
use crate::step::{Step, TierLimits};
use crate::table::{Image, ImageTable};

/// KV-RAM, KV-disk and the moves in flight.
///
/// After construction no call takes memory, except to report a failure.
#[derive(Debug)]
pub struct Tiers {
    pub(crate) window_bytes: u32,
    pub(crate) identity: u128,
    pub(crate) ram: RamStore,
    pub(crate) disk: Option<DiskStore>,
    pub(crate) images: ImageTable,
    pub(crate) out: Option<MoveOut>,
    pub(crate) inward: Option<MoveIn>,
    found: Vec<Found>,
    removed_at_start: u32,
    nonces: Nonces,
}

impl Tiers {
    /// Takes KV-RAM's block, zeroed and resident, and the buffers of KV-disk; looks through the
    /// disk for retained images of `identity` and zeroes the header of everything else.
    ///
    /// `identity` stands for the model, the KV format, the layout of the payload and the arithmetic
    /// that computed it. `nonce_seed` must be another one in each process.
    pub fn new(
        limits: TierLimits,
        identity: u128,
        nonce_seed: u64,
        disk: Option<Box<dyn Disk>>,
    ) -> Result<Tiers, TierError> {
        Tiers::with_memory(limits, identity, nonce_seed, disk, &mut heap)
    }

    /// The same in memory from `take`: that of a device which copies windows beside its rounds.
    pub fn with_memory(
        limits: TierLimits,
        identity: u128,
        nonce_seed: u64,
        disk: Option<Box<dyn Disk>>,
        take: TakeMemory<'_>,
    ) -> Result<Tiers, TierError> {
        let bytes = limits.window_bytes;
        if !bytes.is_power_of_two() || bytes < 4096 {
            return Err(TierError::Limit {
                what: "a window in bytes",
                found: u64::from(bytes),
                expected: "a power of two, at least 4096",
            });
        }
        let disk_windows = disk.as_ref().map_or(0, |disk| disk_windows(disk.bytes(), bytes));
        let places = limits.ram_windows.checked_add(disk_windows).ok_or(TierError::Limit {
            what: "the count of windows",
            found: u64::from(limits.ram_windows) + u64::from(disk_windows),
            expected: "below 2^32",
        })?;
        let ram = RamStore::new(limits.ram_windows, bytes, &mut *take)?;
        let mut disk = disk.map(|disk| DiskStore::new(disk, bytes, take)).transpose()?;
        let mut images = ImageTable::new(places);
        let recovered = match &mut disk {
            Some(store) => recover::recover(store, identity, &mut images)?,
            None => recover::Recovered::default(),
        };
        Ok(Tiers {
            window_bytes: bytes,
            identity,
            ram,
            disk,
            images,
            out: None,
            inward: None,
            found: recovered.found,
            removed_at_start: recovered.removed,
            nonces: Nonces::new(nonce_seed),
        })
    }

    /// The retained images that an earlier process left, once: a second call gives none.
    pub fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }

    /// Headers that were zeroed at the start: of live images, of another identity, torn, damaged or
    /// stale ones.
    pub fn removed_at_start(&self) -> u32 {
        self.removed_at_start
    }

    /// Requests for host memory made so far; must not grow after the seal.
    pub fn reservations(&self) -> u64 {
        self.ram.reservations() + self.disk.as_ref().map_or(0, DiskStore::reservations)
    }

    /// Bytes and failures of KV-disk so far.
    pub fn disk_counts(&self) -> DiskCounts {
        self.disk.as_ref().map_or(DiskCounts::default(), DiskStore::counts)
    }

    /// Windows of an image of `payload_bytes`.
    pub fn windows_for(&self, payload_bytes: u64) -> u32 {
        windows_of(payload_bytes, self.window_bytes).try_into().unwrap_or(u32::MAX)
    }

    /// Windows that no image holds. Those of a move that was abandoned while the disk wrote to them
    /// follow when it is done; steps, begins and [`Tiers::wait`] take notice.
    pub fn windows_free(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Ram => self.ram.chains.free(),
            Tier::Disk => self.disk.as_ref().map_or(0, |disk| disk.chains.free()),
        }
    }

    /// All windows of a tier; 0 if it is off.
    pub fn windows_total(&self, tier: Tier) -> u32 {
        match tier {
            Tier::Ram => self.ram.chains.total(),
            Tier::Disk => self.disk.as_ref().map_or(0, |disk| disk.chains.total()),
        }
    }

    /// The head of an image that has landed and was not dropped.
    pub fn head(&self, image: ImageId) -> Option<&ImageHead> {
        self.images.landed(image).ok().map(|image| &image.head)
    }

    /// Where an image lies that has landed and was not dropped.
    pub fn tier(&self, image: ImageId) -> Option<Tier> {
        self.images.landed(image).ok().map(|image| image.tier)
    }

    /// True if a move in is in flight.
    pub fn is_moving_in(&self) -> bool {
        self.inward.is_some()
    }

    /// Begins to make an image of a sequence and takes all of its windows. The caller then steps.
    pub fn begin_out(&mut self, head: ImageHead, tier: Tier) -> Result<ImageId, TierError> {
        let nonce = self.nonces.next();
        let image = self.place(head, tier, nonce)?;
        let header = self.header(head, nonce);
        self.out = Some(MoveOut::of_sequence(image, self.images.known(image), header));
        Ok(image)
    }

    /// Begins to copy an image from KV-RAM to KV-disk, as one of `class`. The source stays, and
    /// cannot be dropped before the copy is over.
    pub fn begin_copy(&mut self, image: ImageId, class: u8) -> Result<ImageId, TierError> {
        let source = *self.images.landed(image)?;
        if source.tier != Tier::Ram {
            return Err(TierError::NotInRam { image });
        }
        let head = ImageHead { class, ..source.head };
        let copy = self.place(head, Tier::Disk, source.nonce)?;
        self.images.known(image).readers += 1;
        let header = self.header(head, source.nonce);
        let placed = self.images.known(copy);
        self.out = Some(MoveOut::of_image(copy, placed, header, (image, source.first)));
        Ok(copy)
    }

    /// Moves the move out on by at most one window, or by those that travelled beside the steps. A
    /// copy reads no `source`: see [`NoPayload`].
    ///
    /// [`NoPayload`]: crate::NoPayload
    pub fn step_out(&mut self, source: &mut dyn Payload) -> Step {
        self.poll();
        let Some(mut moving) = self.out.take() else { return Step::Idle };
        match moving.step(&mut self.ram, self.disk.as_mut(), source) {
            Ok(Progress::Waiting) => {
                self.out = Some(moving);
                Step::Waiting
            }
            Ok(Progress::Advanced) => {
                self.out = Some(moving);
                Step::Advanced
            }
            Ok(Progress::Landed) => {
                self.images.known(moving.image).landed = true;
                self.end_copy(&moving);
                Step::Landed(moving.image)
            }
            Err(error) => {
                self.give_up_out(&moving);
                Step::Failed(moving.image, error)
            }
        }
    }

    /// Ends the move out, if one is in flight, and forgets its image. No window of it may travel:
    /// [`Tiers::settle_out`].
    pub fn abandon_out(&mut self) {
        if let Some(moving) = self.out.take() {
            self.give_up_out(&moving);
        }
    }

    /// Begins to restore an image. It stays, and cannot be dropped before the move is over.
    pub fn begin_in(&mut self, image: ImageId) -> Result<(), TierError> {
        self.poll();
        if self.inward.is_some() {
            return Err(TierError::Busy { way: "in" });
        }
        let found = *self.images.landed(image)?;
        self.images.known(image).readers += 1;
        let mut moving = MoveIn::new(image, &found, self.header(found.head, found.nonce));
        if let (Tier::Disk, Some(disk)) = (found.tier, &mut self.disk) {
            moving.ask(disk);
        }
        self.inward = Some(moving);
        Ok(())
    }

    /// Moves the move in on by at most one window, or by those that travelled beside the steps.
    pub fn step_in(&mut self, sink: &mut dyn Payload) -> Step {
        self.poll();
        let Some(mut moving) = self.inward.take() else { return Step::Idle };
        match moving.step(&mut self.ram, self.disk.as_mut(), sink) {
            Ok(Progress::Waiting) => {
                self.inward = Some(moving);
                Step::Waiting
            }
            Ok(Progress::Advanced) => {
                self.inward = Some(moving);
                Step::Advanced
            }
            Ok(Progress::Landed) => {
                self.end_read(moving.image);
                Step::Landed(moving.image)
            }
            Err(error) => {
                if error.is_damage() {
                    self.images.known(moving.image).damaged = true;
                }
                self.give_up_in(&moving);
                Step::Failed(moving.image, error)
            }
        }
    }

    /// Ends the move in, if one is in flight. Its image stays. No window of it may travel:
    /// [`Tiers::settle_in`].
    pub fn abandon_in(&mut self) {
        if let Some(moving) = self.inward.take() {
            self.give_up_in(&moving);
        }
    }

    /// Waits up to `at_most` for a disk operation to finish, if any is in flight.
    pub fn wait(&mut self, at_most: Duration) {
        if let Some(disk) = &mut self.disk {
            disk.poll(at_most);
        }
    }

    /// Forgets an image and frees its windows. Refused while a move reads or makes it.
    pub fn drop_image(&mut self, image: ImageId) -> Result<(), TierError> {
        self.poll();
        let known = self.images.get(image)?;
        if known.readers > 0 || !known.landed {
            return Err(TierError::InMove { image });
        }
        self.forget(image);
        Ok(())
    }

    fn poll(&mut self) {
        self.wait(Duration::ZERO);
    }

    /// Takes windows and a place for an image, or changes nothing.
    fn place(&mut self, head: ImageHead, tier: Tier, nonce: u64) -> Result<ImageId, TierError> {
        self.poll();
        if self.out.is_some() {
            return Err(TierError::Busy { way: "out" });
        }
        if head.position == 0 || head.payload_bytes < TOKEN_BYTES * u64::from(head.position) {
            return Err(TierError::Limit {
                what: "a payload in bytes",
                found: head.payload_bytes,
                expected: "at least 4 for each of one token or more",
            });
        }
        let chains = match tier {
            Tier::Ram => &mut self.ram.chains,
            Tier::Disk => &mut self.disk.as_mut().ok_or(TierError::Off { tier })?.chains,
        };
        if chains.total() == 0 {
            return Err(TierError::Off { tier });
        }
        let needed = windows_of(head.payload_bytes, self.window_bytes);
        let needed = needed.try_into().unwrap_or(u32::MAX);
        if needed > IMAGE_WINDOWS_MAX {
            return Err(TierError::Limit {
                what: "an image in windows",
                found: u64::from(needed),
                expected: "at most 960",
            });
        }
        let free = chains.free();
        let first = chains.take(needed).ok_or(TierError::NoRoom { tier, needed, free })?;
        Ok(self.images.insert(Image {
            head,
            tier,
            nonce,
            first,
            landed: false,
            readers: 0,
            damaged: false,
        }))
    }

    fn end_copy(&mut self, moving: &MoveOut) {
        if let Some(source) = moving.source_image() {
            self.end_read(source);
        }
    }

    fn give_up_out(&mut self, moving: &MoveOut) {
        assert!(!moving.is_travelling(), "a window that travels is settled first");
        self.end_copy(moving);
        let image = self.images.remove(moving.image);
        match (image.tier, &mut self.disk) {
            (Tier::Disk, Some(disk)) => {
                if moving.is_committing() {
                    disk.give_up_commit(image.first);
                }
                disk.give_up_out(image.first);
            }
            _ => self.ram.chains.put(image.first),
        }
    }

    fn give_up_in(&mut self, moving: &MoveIn) {
        assert!(!moving.is_travelling(), "a window that travels is settled first");
        if let Some(disk) = &mut self.disk {
            disk.give_up_in();
        }
        self.end_read(moving.image);
    }

    /// A move reads the image no longer; the last one to read a damaged image forgets it.
    fn end_read(&mut self, id: ImageId) {
        let image = self.images.known(id);
        image.readers -= 1;
        if image.damaged && image.readers == 0 {
            self.forget(id);
        }
    }

    fn forget(&mut self, image: ImageId) {
        let image = self.images.remove(image);
        match (image.tier, &mut self.disk) {
            (Tier::Disk, Some(disk)) => {
                disk.chains.put(image.first);
                disk.zero_header(image.first);
            }
            _ => self.ram.chains.put(image.first),
        }
    }

    /// What is written of an image beside its payload.
    fn header(&self, head: ImageHead, nonce: u64) -> Header {
        Header { identity: self.identity, nonce, head, window_bytes: self.window_bytes }
    }
}
