//! A disk in memory, whose faults follow from a seed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ignis_backend::{BLOCK_BYTES, Disk, DiskAction, DiskDone, DiskError, DiskOp};

/// What can be torn: a sector is written whole or not at all.
const SECTOR_BYTES: usize = 512;
/// Most polls that an operation takes, and one that is slow.
const POLLS_MAX: u64 = 3;
const POLLS_SLOW: u64 = 40;
/// Operations that may be in flight at once.
const DEPTH: usize = 8;

/// What can befall an operation of a [`SimDisk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// It fails, and nothing was transferred.
    IoError,
    /// It fails, and some first part was transferred.
    Short,
    /// A write succeeds, but of its sectors only some were written.
    Torn,
    /// It succeeds, but a bit of what was read, or of what now lies on the disk, is another.
    FlippedBit,
    /// It succeeds, but elsewhere on the disk.
    Misdirected,
    /// A write is refused for lack of space.
    Full,
    /// It takes many polls.
    Slow,
}

impl DiskFault {
    /// Every fault, in the order of [`SimPlatter::faults`].
    pub const ALL: [DiskFault; 7] = [
        DiskFault::IoError,
        DiskFault::Short,
        DiskFault::Torn,
        DiskFault::FlippedBit,
        DiskFault::Misdirected,
        DiskFault::Full,
        DiskFault::Slow,
    ];
}

#[derive(Debug)]
struct Platter {
    bytes: Vec<u8>,
    /// True while a disk is open over it, and while that disk has power.
    open: bool,
    powered: bool,
    faults: [u64; DiskFault::ALL.len()],
}

/// What a disk holds. It outlives the [`SimDisk`] over it, as a file outlives a process.
#[derive(Clone, Debug)]
pub struct SimPlatter(Arc<Mutex<Platter>>);

impl SimPlatter {
    /// Zeros.
    pub fn new(bytes: u64) -> SimPlatter {
        SimPlatter::of(vec![0; usize::try_from(bytes).expect("a simulated disk fits memory")])
    }

    /// These bytes.
    pub fn of(bytes: Vec<u8>) -> SimPlatter {
        let faults = [0; DiskFault::ALL.len()];
        SimPlatter(Arc::new(Mutex::new(Platter { bytes, open: false, powered: false, faults })))
    }

    /// A copy of what it holds.
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// Changes what it holds behind the disk's back.
    pub fn damage(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.lock().bytes);
    }

    /// Kills the process that holds the disk: of its writes in flight each is lost, torn or done,
    /// and whatever it does later does nothing. It must be dropped before another disk is opened.
    pub fn cut_power(&self) {
        self.lock().powered = false;
    }

    /// How often each of [`DiskFault::ALL`] was injected so far.
    pub fn faults(&self) -> [u64; DiskFault::ALL.len()] {
        self.lock().faults
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct InFlight {
    op: DiskOp,
    polls_left: u64,
    fault: Option<DiskFault>,
}

/// A [`Disk`] over a [`SimPlatter`].
#[derive(Debug)]
pub struct SimDisk {
    platter: SimPlatter,
    bytes: u64,
    fault_ppm: u32,
    random: u64,
    in_flight: Vec<InFlight>,
    /// True once it noticed that its power is cut.
    dead: bool,
}

impl SimDisk {
    /// A disk whose operations fail `fault_ppm` times in a million. One disk at a time may be open
    /// over a platter.
    pub fn new(platter: &SimPlatter, seed: u64, fault_ppm: u32) -> SimDisk {
        let mut inner = platter.lock();
        assert!(!inner.open, "two disks over one platter");
        (inner.open, inner.powered) = (true, true);
        let bytes = inner.bytes.len() as u64;
        drop(inner);
        let (platter, in_flight) = (platter.clone(), Vec::new());
        SimDisk { platter, bytes, fault_ppm, random: seed, in_flight, dead: false }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn draw_fault(&mut self, action: DiskAction) -> Option<DiskFault> {
        if self.draw(1_000_000) >= u64::from(self.fault_ppm) {
            return None;
        }
        loop {
            let fault = DiskFault::ALL[self.draw(DiskFault::ALL.len() as u64) as usize];
            let writes_only = matches!(fault, DiskFault::Torn | DiskFault::Full);
            if action == DiskAction::Write || !writes_only {
                return Some(fault);
            }
        }
    }

    /// Transfers `range` of the operation's bytes, as if it had been asked for `offset`.
    fn transfer(&self, op: &mut DiskOp, range: std::ops::Range<usize>, offset: u64) {
        let mut platter = self.platter.lock();
        let place = &mut platter.bytes[offset as usize..][range.clone()];
        match op.action {
            DiskAction::Read => op.buffer[range].copy_from_slice(place),
            DiskAction::Write => place.copy_from_slice(&op.buffer[range]),
        }
    }

    fn tear(&mut self, op: &mut DiskOp) {
        for start in (0..op.bytes).step_by(SECTOR_BYTES) {
            if self.draw(2) == 0 {
                self.transfer(op, start..start + SECTOR_BYTES, op.offset);
            }
        }
    }

    fn carry_out(&mut self, op: &mut DiskOp, fault: Option<DiskFault>) -> Result<(), DiskError> {
        let (action, offset, all) = (op.action, op.offset, op.bytes);
        let bytes = all as u64;
        match fault {
            None | Some(DiskFault::Slow) => self.transfer(op, 0..all, offset),
            Some(DiskFault::IoError) => return Err(io_error(op, "simulated fault")),
            Some(DiskFault::Short) => {
                let done = self.draw(bytes / SECTOR_BYTES as u64) * SECTOR_BYTES as u64;
                self.transfer(op, 0..done as usize, offset);
                return Err(DiskError::Short { action, offset, bytes, done });
            }
            Some(DiskFault::Torn) => self.tear(op),
            Some(DiskFault::FlippedBit) => {
                self.transfer(op, 0..all, offset);
                let bit = self.draw(bytes * 8) as usize;
                match action {
                    DiskAction::Read => op.buffer[bit / 8] ^= 1 << (bit % 8),
                    DiskAction::Write => self
                        .platter
                        .damage(|disk| disk[offset as usize + bit / 8] ^= 1 << (bit % 8)),
                }
            }
            Some(DiskFault::Misdirected) => {
                let places = (self.bytes - bytes) / BLOCK_BYTES as u64 + 1;
                let elsewhere = self.draw(places) * BLOCK_BYTES as u64;
                self.transfer(op, 0..all, elsewhere);
            }
            Some(DiskFault::Full) => return Err(DiskError::Full { offset, bytes }),
        }
        Ok(())
    }

    /// Once the power is cut: loses, tears or completes each write in flight. Their buffers still
    /// go back to whoever started them.
    fn notice_cut(&mut self) {
        if self.dead || self.platter.lock().powered {
            return;
        }
        self.dead = true;
        let mut in_flight = std::mem::take(&mut self.in_flight);
        for InFlight { op, .. } in &mut in_flight {
            if op.action == DiskAction::Write {
                match self.draw(3) {
                    0 => {}
                    1 => self.tear(op),
                    _ => self.transfer(op, 0..op.bytes, op.offset),
                }
            }
        }
        self.in_flight = in_flight;
    }
}

impl Disk for SimDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn describe(&self) -> String {
        "simulated disk".into()
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn start(&mut self, op: DiskOp) {
        let block = BLOCK_BYTES as u64;
        let whole = op.offset.is_multiple_of(block) && op.bytes.is_multiple_of(BLOCK_BYTES);
        assert!(whole && op.bytes > 0, "an operation is of whole blocks");
        assert!(op.offset + op.bytes as u64 <= self.bytes, "an operation lies inside the disk");
        assert!(self.in_flight.len() < DEPTH, "at most {DEPTH} operations are in flight");
        self.notice_cut();
        let fault = self.draw_fault(op.action);
        if let Some(fault) = fault {
            self.platter.lock().faults[fault as usize] += 1;
        }
        let polls = if fault == Some(DiskFault::Slow) { POLLS_SLOW } else { POLLS_MAX };
        let polls_left = self.draw(polls + 1);
        self.in_flight.push(InFlight { op, polls_left, fault });
    }

    /// One poll, or as many as the next operation takes if it may `wait`. Time does not pass.
    fn finished(&mut self, wait: Duration) -> Option<DiskDone> {
        self.notice_cut();
        let polls = match self.in_flight.iter().map(|flight| flight.polls_left).min() {
            None => return None,
            Some(least) if wait > Duration::ZERO => least,
            Some(least) => least.min(1),
        };
        self.in_flight.iter_mut().for_each(|flight| flight.polls_left -= polls);
        let at = self.in_flight.iter().position(|flight| flight.polls_left == 0)?;
        let InFlight { mut op, fault, .. } = self.in_flight.remove(at);
        let result = match self.dead {
            true => Err(io_error(&op, "the power is cut")),
            false => self.carry_out(&mut op, fault),
        };
        Some(DiskDone { op, result })
    }
}

impl Drop for SimDisk {
    /// The end of a process: what is in flight meets the fate of a power cut.
    fn drop(&mut self) {
        self.platter.cut_power();
        self.notice_cut();
        self.platter.lock().open = false;
    }
}

fn io_error(op: &DiskOp, reason: &str) -> DiskError {
    let (action, offset, bytes) = (op.action, op.offset, op.bytes as u64);
    DiskError::Io { action, offset, bytes, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ignis_backend::Blocks;

    fn op(id: u64, action: DiskAction, offset: u64, fill: u8) -> DiskOp {
        let mut buffer = Blocks::zeroed(2).unwrap();
        buffer.fill(fill);
        DiskOp { id, action, offset, bytes: 2 * BLOCK_BYTES, buffer }
    }

    /// Runs one operation to its end, polling without waiting.
    fn run(disk: &mut SimDisk, op: DiskOp) -> DiskDone {
        disk.start(op);
        (0..=POLLS_SLOW)
            .find_map(|_| disk.finished(Duration::ZERO))
            .expect("polling makes progress")
    }

    #[test]
    fn without_faults_a_disk_keeps_what_is_written() {
        let platter = SimPlatter::new(16 << 10);
        let mut disk = SimDisk::new(&platter, 1, 0);
        run(&mut disk, op(1, DiskAction::Write, 4096, 7)).result.unwrap();
        let back = run(&mut disk, op(2, DiskAction::Read, 4096, 0));
        assert!(back.result.is_ok() && back.op.buffer.iter().all(|&byte| byte == 7));
        assert_eq!(disk.finished(Duration::from_secs(9)).map(|done| done.op.id), None);
        assert_eq!(platter.faults(), [0; 7]);
        drop(disk);
        assert_eq!(platter.bytes()[4096..12288], [7; 8192]);
    }

    #[test]
    fn a_seed_replays_its_faults_and_every_kind_occurs() {
        let history = || {
            let platter = SimPlatter::new(64 << 10);
            let mut disk = SimDisk::new(&platter, 42, 500_000);
            let results: Vec<_> = (0..400u64)
                .map(|i| {
                    let action = if i % 3 == 2 { DiskAction::Read } else { DiskAction::Write };
                    let done = run(&mut disk, op(i, action, i % 15 * 4096, i as u8));
                    (done.result, done.op.buffer.to_vec())
                })
                .collect();
            (results, platter.bytes(), platter.faults())
        };
        let first = history();
        assert_eq!(first, history());
        assert!(first.2.iter().all(|&count| count > 0), "{:?}", first.2);
    }

    #[test]
    fn a_cut_loses_tears_or_completes_what_is_in_flight_and_nothing_follows() {
        let mut fates = [0; 3];
        for seed in 0..40 {
            let platter = SimPlatter::new(16 << 10);
            let mut disk = SimDisk::new(&platter, seed, 0);
            disk.start(op(1, DiskAction::Write, 0, 7));
            platter.cut_power();
            let late = loop {
                if let Some(done) = disk.finished(Duration::ZERO) {
                    break done;
                }
            };
            assert!(late.result.is_err());
            assert!(run(&mut disk, op(2, DiskAction::Write, 8192, 9)).result.is_err());
            drop(disk);
            let bytes = platter.bytes();
            assert_eq!(bytes[8192..], [0; 8192]);
            let written = bytes[..8192].iter().filter(|&&byte| byte == 7).count();
            fates[if written == 0 { 0 } else { 1 + written / 8192 }] += 1;
            drop(SimDisk::new(&platter, 0, 0));
        }
        assert!(fates.iter().all(|&count| count > 0), "{fates:?}");
    }
}
