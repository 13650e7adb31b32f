//! KV-disk: frames in a file, and a table of headers that commits them.
//!
//! What protects an image from another's bytes is the nonce in each frame, not the order of writes:
//! a header may outlive its frames (a crash before it was zeroed), and is then found to be stale.
//! The two rules that order operations are that a window is not given out while an operation that
//! was given up may still write to it, and that header slots are written one at a time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ignis_backend::{BLOCK_BYTES, Disk, DiskAction, DiskError};

use crate::chain::Chains;
use crate::error::TierError;
use crate::geometry::{STAGES, disk_windows, frames_start, header_offset};
use crate::header::Header;
use crate::memory::{TakeMemory, heap, take_named};
use crate::stage::{Returned, Stage};

/// Longest that a shutdown waits for the headers of dropped images to be zeroed.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// What went to and came from KV-disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Bytes read, by operations that succeeded.
    pub bytes_read: u64,
    /// Bytes written, by operations that succeeded.
    pub bytes_written: u64,
    /// Operations that failed.
    pub failures: u64,
}

/// What the block of headers is being written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderWrite {
    Commit,
    Zero,
}

/// The file's windows, the buffers, and the operations in flight.
pub(crate) struct DiskStore {
    disk: Box<dyn Disk>,
    pub(crate) chains: Chains,
    pub(crate) window_bytes: u32,
    pub(crate) out: [Stage; STAGES],
    pub(crate) inward: [Stage; STAGES],
    header: Stage,
    header_write: HeaderWrite,
    /// Slots to be zeroed, each once at most: a commit waits until the queue is empty.
    zero_queue: VecDeque<u32>,
    counts: DiskCounts,
    next_id: u64,
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (windows, free) = (self.chains.total(), self.chains.free());
        write!(f, "DiskStore({}, {free} of {windows} windows free)", self.disk.describe())
    }
}

impl DiskStore {
    /// Takes the buffers. What the file holds is not looked at yet.
    pub(crate) fn new(
        disk: Box<dyn Disk>,
        window_bytes: u32,
        take: TakeMemory<'_>,
    ) -> Result<DiskStore, TierError> {
        assert!(disk.depth() > 2 * STAGES, "each buffer and a header may be in flight");
        let what = "the buffers of KV-disk";
        let mut buffers = take_named(what, take, 2 * STAGES, window_bytes)?.into_iter();
        // No device copies the headers: theirs is any memory.
        let mut header = take_named(what, &mut heap, 1, BLOCK_BYTES as u32)?.into_iter();
        let windows = disk_windows(disk.bytes(), window_bytes);
        let mut stage = || Stage::new(buffers.next().expect("two buffers each way were taken"));
        Ok(DiskStore {
            chains: Chains::new(windows),
            window_bytes,
            out: [stage(), stage()],
            inward: [stage(), stage()],
            header: Stage::new(header.next().expect("one buffer was taken")),
            header_write: HeaderWrite::Zero,
            zero_queue: VecDeque::with_capacity(windows as usize),
            counts: DiskCounts::default(),
            next_id: 0,
            disk,
        })
    }

    /// Requests for memory that it made.
    pub(crate) fn reservations(&self) -> u64 {
        2
    }

    pub(crate) fn counts(&self) -> DiskCounts {
        self.counts
    }

    pub(crate) fn file(&self) -> String {
        self.disk.describe()
    }

    pub(crate) fn error(&self, source: DiskError) -> TierError {
        TierError::Disk { file: self.file(), source }
    }

    /// Where a window lies on the disk.
    pub(crate) fn window_offset(&self, window: u32) -> u64 {
        frames_start(self.chains.total()) + u64::from(window) * u64::from(self.window_bytes)
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Begins to write the first `bytes` of an outward buffer to a window.
    pub(crate) fn start_write(&mut self, stage: usize, window: u32, bytes: usize) {
        let (id, offset) = (self.id(), self.window_offset(window));
        let stage = &mut self.out[stage];
        stage.window = window;
        stage.start(&mut *self.disk, id, DiskAction::Write, offset, bytes);
    }

    /// Begins to read the first `bytes` of a window into an inward buffer.
    pub(crate) fn start_read(&mut self, stage: usize, window: u32, bytes: usize) {
        let (id, offset) = (self.id(), self.window_offset(window));
        let stage = &mut self.inward[stage];
        stage.start(&mut *self.disk, id, DiskAction::Read, offset, bytes);
    }

    /// Begins to write the header of the image whose windows start with `first`; false if the block
    /// of headers is busy, and then the caller tries again.
    pub(crate) fn start_commit(&mut self, first: u32, header: &Header) -> bool {
        if !self.header.is_idle() {
            return false;
        }
        assert!(self.zero_queue.is_empty(), "headers are zeroed whenever their block is idle");
        header.encode(self.chains.iter(first), self.header.buffer());
        self.header_write = HeaderWrite::Commit;
        self.start_header(first);
        true
    }

    /// The result of a commit that is over.
    pub(crate) fn commit_result(&mut self) -> Option<Result<(), DiskError>> {
        match self.header_write {
            HeaderWrite::Zero => None,
            HeaderWrite::Commit => {
                let result = self.header.result()?;
                self.start_zero();
                Some(result)
            }
        }
    }

    /// Lets go of a commit that is in flight or over; its slot is zeroed after it.
    pub(crate) fn give_up_commit(&mut self, first: u32) {
        self.header.give_up();
        self.zero_header(first);
    }

    /// Has the header in a slot zeroed, some time.
    pub(crate) fn zero_header(&mut self, slot: u32) {
        assert!(self.zero_queue.len() < self.chains.total() as usize, "a slot is queued once");
        self.zero_queue.push_back(slot);
        self.start_zero();
    }

    fn start_header(&mut self, slot: u32) {
        let id = self.id();
        let offset = header_offset(slot);
        self.header.start(&mut *self.disk, id, DiskAction::Write, offset, BLOCK_BYTES);
    }

    /// Starts the next zeroing if the block of headers is idle.
    fn start_zero(&mut self) {
        if self.header.is_idle()
            && let Some(slot) = self.zero_queue.pop_front()
        {
            self.header.buffer().fill(0);
            self.header_write = HeaderWrite::Zero;
            self.start_header(slot);
        }
    }

    /// Gives up the windows of a move out. Those that an operation may still write to follow when
    /// it is over.
    pub(crate) fn give_up_out(&mut self, first: u32) {
        let mut busy = [None; STAGES];
        for (stage, busy) in self.out.iter_mut().zip(&mut busy) {
            *busy = stage.give_up().then_some(stage.window);
        }
        self.chains.put_except(first, |window| busy.contains(&Some(window)));
    }

    /// Gives up the reads of a move in.
    pub(crate) fn give_up_in(&mut self) {
        for stage in &mut self.inward {
            stage.give_up();
        }
    }

    /// Takes back every operation that is over, waiting up to `wait` for the first. True if one
    /// was.
    pub(crate) fn poll(&mut self, wait: Duration) -> bool {
        let mut wait = if self.in_flight() { wait } else { Duration::ZERO };
        let mut any = false;
        while let Some(done) = self.disk.finished(wait) {
            wait = Duration::ZERO;
            any = true;
            let bytes = done.op.bytes as u64;
            match (&done.result, done.op.action) {
                (Err(_), _) => self.counts.failures += 1,
                (Ok(()), DiskAction::Read) => self.counts.bytes_read += bytes,
                (Ok(()), DiskAction::Write) => self.counts.bytes_written += bytes,
            }
            let mut done = Some(done);
            for stage in &mut self.out {
                let Some(this) = done.take() else { break };
                match stage.take_back(this) {
                    Ok(Returned::GivenUp) => self.chains.put(stage.window),
                    Ok(Returned::Wanted) => {}
                    Err(other) => done = Some(other),
                }
            }
            for stage in self.inward.iter_mut().chain([&mut self.header]) {
                let Some(this) = done.take() else { break };
                done = stage.take_back(this).err();
            }
            assert!(done.is_none(), "an operation came back that nobody started");
            self.settle_header();
        }
        any
    }

    /// Takes the result of a zeroing, which nobody waits for, and starts the next.
    ///
    /// A slot that could not be zeroed is left: a live image in it is refused by the next process,
    /// and a retained one is either whole, or stale and found out by its frames' nonces.
    fn settle_header(&mut self) {
        if self.header_write == HeaderWrite::Zero {
            let _ = self.header.result();
        }
        self.start_zero();
    }

    /// True if an operation is in flight.
    pub(crate) fn in_flight(&self) -> bool {
        let mut stages = self.out.iter().chain(&self.inward).chain([&self.header]);
        stages.any(Stage::is_in_flight)
    }

    /// For the start: transfers `bytes` at `offset` through a buffer and waits for it.
    pub(crate) fn transfer_now(
        &mut self,
        action: DiskAction,
        offset: u64,
        bytes: usize,
    ) -> Result<(), DiskError> {
        assert!(!self.in_flight(), "only while nothing moves");
        let id = self.id();
        self.inward[0].start(&mut *self.disk, id, action, offset, bytes);
        loop {
            self.poll(Duration::from_secs(1));
            if let Some(result) = self.inward[0].result() {
                return result;
            }
        }
    }

    /// For the start: the buffer that `transfer_now` uses.
    pub(crate) fn transfer_buffer(&mut self) -> &mut [u8] {
        self.inward[0].buffer()
    }

    /// Forgets what the start transferred.
    pub(crate) fn reset_counts(&mut self) {
        self.counts = DiskCounts::default();
    }
}

impl Drop for DiskStore {
    /// Lets what is in flight finish and zeroes the headers of dropped images.
    fn drop(&mut self) {
        let start = Instant::now();
        self.give_up_in();
        self.start_zero();
        while self.in_flight() && start.elapsed() < CLOSE_WAIT {
            self.poll(Duration::from_millis(100));
            if self.header_write == HeaderWrite::Commit {
                self.header.give_up();
                self.start_zero();
            }
        }
    }
}
