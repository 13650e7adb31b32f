//! The running half of the CPU device.

use std::slice;
use std::sync::atomic::Ordering::Relaxed;

use ignis_backend::{Addresses, Device, DeviceError, DeviceLayout, LaneSampling};
use ignis_ops::{Program, RopeTable, Round, SampleOut, WeightId, WeightKind, WeightSpec};
use ignis_types::{Bytes, Limits, Overflow, PAGE_TOKENS};

use crate::attention::AttentionPlan;
use crate::kv::KvPool;
use crate::layout::{CpuLayout, CpuOptions, ScratchMap, check_addresses};
use crate::linear;
use crate::memory::Mapping;
use crate::pool::{Poisoned, Pool, Worker};
use crate::program::{Compiled, compile};
use crate::sample::{IN_PROMPT, SampleJob, count_output, sample_lanes};
use crate::simd::Isa;
use crate::state;
use crate::walk::{RoundJob, Token, walk};
use crate::weights;

/// A processor and its memory as a device.
pub struct CpuDevice {
    layout: CpuLayout,
    isa: Isa,
    pool: Pool,
    memory: Option<Mapping>,
    reserved: Bytes,
    bound: Option<Bound>,
}

/// What `bind` fixed.
struct Bound {
    compiled: Compiled,
    map: ScratchMap,
    kv: KvPool,
    rope: RopeTable,
    weights: Vec<WeightSpec>,
    addresses: Addresses,
    limits: Limits,
    vocab: usize,
    /// Offset of the logits.
    logits: u64,
    /// The rows of the last round.
    tokens: Vec<Token>,
    plan: AttentionPlan,
}

// SAFETY: the raw addresses inside point into `CpuDevice::memory`, which moves with them, and are
// used only by rounds, which hold `&mut CpuDevice`.
unsafe impl Send for Bound {}

impl CpuDevice {
    /// A device on the fastest instruction set of this machine. Starts the worker threads.
    pub fn new(options: CpuOptions) -> Result<CpuDevice, DeviceError> {
        CpuDevice::with_isa(options, Isa::detect())
    }

    /// As [`CpuDevice::new`], on another instruction set, which must be available; for tests and
    /// comparisons. Results do not depend on it.
    pub fn with_isa(options: CpuOptions, isa: Isa) -> Result<CpuDevice, DeviceError> {
        assert!(isa.is_available(), "{isa} is not available here");
        let layout = CpuLayout::new(options);
        let pool = Pool::new(layout.options().threads).map_err(|error| DeviceError::Reserve {
            bytes: Bytes::ZERO,
            space: "worker threads",
            reason: error.to_string(),
        })?;
        let reserved = Bytes::ZERO;
        Ok(CpuDevice { layout, isa, pool, memory: None, reserved, bound: None })
    }

    fn bound(&self) -> &Bound {
        self.bound.as_ref().expect("the device is bound before it is used")
    }

    fn base(&self) -> *mut u8 {
        self.memory.as_ref().expect("memory is reserved before it is used").base()
    }

    /// Start of `len` bytes that lie `at` bytes into the reservation; outside it is a bug.
    fn span(&self, at: u64, len: usize) -> *mut u8 {
        let inside = at.checked_add(len as u64).is_some_and(|end| end <= self.reserved.0);
        assert!(inside, "{len} bytes at {at} are not in the reservation of {}", self.reserved);
        self.base().wrapping_add(Bytes(at).as_usize())
    }

    /// Runs steps on all workers.
    fn walk(&mut self, round: &Round<'_>, head_only: bool) -> Result<(), DeviceError> {
        let (isa, base) = (self.isa, self.base());
        let bound = self.bound.as_mut().expect("the device is bound before it runs");
        let steps = &bound.compiled.steps;
        let from = if head_only { bound.compiled.head } else { 0 };
        let to = if round.logit_rows.is_empty() { bound.compiled.head } else { steps.len() };
        for claimed in &bound.compiled.claimed {
            claimed.store(0, Relaxed);
        }
        let scratch = base.wrapping_add(Bytes(bound.addresses.scratch.0).as_usize());
        let at = |offset: u64| scratch.wrapping_add(Bytes(offset).as_usize());
        let job = RoundJob {
            isa,
            base,
            compiled: &bound.compiled,
            steps: from..to.max(from),
            rope: &bound.rope,
            pool: bound.kv,
            sizes: bound.map.sizes,
            plan: &bound.plan,
            tokens: &bound.tokens,
            segments: round.segments,
            groups: bound.map.groups.at(scratch),
            logit_rows: round.logit_rows,
            block_tables: round.block_tables,
            stride: round.stride,
            cos: at(bound.map.cos).cast(),
            sin: at(bound.map.sin).cast(),
            partials: at(bound.map.partials).cast(),
            workers: at(bound.map.workers),
            worker_bytes: Bytes(bound.map.worker_bytes).as_usize(),
        };
        // SAFETY: the job outlives the call and is shared for reading; addresses were checked at
        // bind, the round by `Bound::take_round`, and the claims were reset above.
        unsafe { self.pool.run(walk, (&raw const job).cast()) }.map_err(lost_worker)
    }
}

impl Bound {
    /// Checks a round against the limits and notes its rows. The invariants of `Round` are the
    /// caller's: what breaks them is a bug, and asserts before any kernel trusts an index.
    fn take_round(&mut self, round: &Round<'_>) {
        assert!(round.tokens.len() <= self.limits.round_rows_max() as usize, "round too wide");
        self.tokens.clear();
        for segment in round.segments {
            let (first, rows) = (segment.row as usize, segment.rows as usize);
            assert!(rows > 0 && first == self.tokens.len(), "segments leave a gap");
            assert!(segment.lane < self.limits.lanes_max, "lane {} of a round", segment.lane);
            let last = segment.position as usize + rows - 1;
            assert!(last < self.limits.context_tokens_max as usize, "position {last} of a round");
            let pages = last / PAGE_TOKENS as usize + 1;
            assert!(pages <= round.stride, "position {last} is outside the block table");
            let table = segment.lane as usize * round.stride;
            for &page in &round.block_tables[table..table + pages] {
                assert!(page < self.limits.pages, "page {page} of {}", self.limits.pages);
            }
            for i in 0..rows {
                let id = round.tokens[first + i];
                assert!(id < self.compiled.vocab, "token {id} of {}", self.compiled.vocab);
                let position = segment.position + i as u32;
                self.tokens.push(Token { id, lane: segment.lane, position });
            }
        }
        assert_eq!(self.tokens.len(), round.tokens.len(), "segments do not cover the tokens");
        self.check_logit_rows(round);
        self.plan.fill(round.segments);
    }

    fn check_logit_rows(&self, round: &Round<'_>) {
        assert!(round.logit_rows.len() <= self.limits.lanes_max as usize, "too many logit rows");
        for &row in round.logit_rows {
            assert!((row as usize) < self.tokens.len(), "logit row {row} of the round");
        }
    }
}

impl Device for CpuDevice {
    fn layout(&self) -> &dyn DeviceLayout {
        &self.layout
    }

    fn describe(&self) -> String {
        let threads = self.pool.count();
        let plural = if threads == 1 { "" } else { "s" };
        format!("cpu ({threads} thread{plural}, {})", self.isa)
    }

    fn reserve(&mut self, bytes: Bytes) -> Result<(), DeviceError> {
        assert!(self.memory.is_none(), "the device plan is reserved once");
        let mapping = Mapping::new(bytes)?;
        // SAFETY: the mapping outlives the call; each worker touches its own part, still zero.
        unsafe { self.pool.run(touch, (&raw const mapping).cast()) }.map_err(lost_worker)?;
        self.memory = Some(mapping);
        self.reserved = bytes;
        Ok(())
    }

    fn reservations(&self) -> u64 {
        u64::from(self.memory.is_some())
    }

    fn bind(
        &mut self,
        program: &Program,
        addresses: &Addresses,
        limits: &Limits,
    ) -> Result<(), DeviceError> {
        assert!(self.bound.is_none(), "a program is bound once");
        for weight in &program.weights {
            let runs = match weight.kind {
                WeightKind::Vector => linear::supports(weight.dtype, weight.cols),
                WeightKind::Experts { count } if !weight.rows.is_multiple_of(count.max(1)) => false,
                _ => {
                    linear::supports(weight.dtype, weight.cols)
                        && (!weight.dtype.is_quantised() || weight.cols.is_multiple_of(32))
                }
            };
            if !runs {
                let name = weight.name.clone();
                return Err(DeviceError::DTypeUnsupported { name, dtype: weight.dtype });
            }
        }
        let threads = self.layout.options().threads;
        let encoded =
            ScratchMap::encoded_bytes(program, limits, &self.layout).map_err(too_large)?;
        let map = ScratchMap::new(program, limits, &self.layout, encoded).map_err(too_large)?;
        check_addresses(program, addresses, &map, self.reserved)?;
        let compiled = compile(program, addresses, limits, &self.layout, self.base())?;
        state::check(program)?;
        let format = self.layout.options().kv_format;
        let kv = KvPool::new(addresses.kv_pool, format, &program.kv).map_err(too_large)?;
        self.bound = Some(Bound {
            compiled,
            map,
            kv,
            rope: program.rope.clone(),
            weights: program.weights.clone(),
            addresses: addresses.clone(),
            limits: *limits,
            vocab: program.vocab as usize,
            logits: addresses.buffers[program.logits.0 as usize],
            tokens: Vec::with_capacity(limits.round_rows_max() as usize),
            plan: AttentionPlan::new(map.sizes, program.kv.kv_heads as usize, threads),
        });
        Ok(())
    }

    fn put_weight(&mut self, id: WeightId, stored: &[&[u8]]) -> Result<(), DeviceError> {
        let (base, bound) = (self.base(), self.bound());
        let weight = &bound.weights[id.0 as usize];
        let bytes = self.layout.weight_bytes(weight).map_err(too_large)?.as_usize();
        let start = Bytes(bound.addresses.weights[id.0 as usize]).as_usize();
        assert!(start + bytes <= self.reserved.as_usize(), "a weight ends outside the reservation");
        // SAFETY: the weight's region lies in the reservation, and `&mut self` keeps rounds away.
        let out = unsafe { slice::from_raw_parts_mut(base.add(start), bytes) };
        weights::put(weight, stored, out)
    }

    fn run(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        self.bound.as_mut().expect("the device is bound before it runs").take_round(round);
        self.walk(round, false)
    }

    fn run_head(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        self.bound().check_logit_rows(round);
        self.walk(round, true)
    }

    fn sample(
        &mut self,
        lanes: &[LaneSampling<'_>],
        out: &mut [SampleOut],
    ) -> Result<(), DeviceError> {
        let (isa, base, bound) = (self.isa, self.base(), self.bound());
        assert_eq!(lanes.len(), out.len(), "one result a lane");
        for (i, lane) in lanes.iter().enumerate() {
            let rows = bound.limits.lanes_max;
            assert!(lane.lane < rows && lane.logit_row < rows, "lane {} to sample", lane.lane);
            let twice = lanes[..i].iter().any(|other| other.lane == lane.lane);
            assert!(!twice, "lane {} is sampled twice", lane.lane);
        }
        let lane_bytes = self.layout.sampling_lane_bytes(bound.vocab as u32).map_err(too_large)?;
        let job = SampleJob {
            isa,
            vocab: bound.vocab,
            logits: base.wrapping_add(Bytes(bound.logits).as_usize()).cast(),
            counts: base.wrapping_add(Bytes(bound.addresses.penalty_counts).as_usize()).cast(),
            scratch: base.wrapping_add(Bytes(bound.addresses.sampling).as_usize()),
            lane_bytes: lane_bytes.as_usize(),
            lanes,
            out: out.as_mut_ptr(),
            next: 0.into(),
        };
        if lanes.len() == 1 {
            // SAFETY: `out` has one entry; nobody else samples.
            unsafe { job.one(0) };
            return Ok(());
        }
        // SAFETY: the job outlives the call; lanes are claimed one by one.
        unsafe { self.pool.run(sample_lanes, (&raw const job).cast()) }.map_err(lost_worker)
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceError> {
        let bound = self.bound();
        assert!(row < bound.limits.lanes_max, "row {row} of the logits");
        let at = Bytes(bound.logits).as_usize() + row as usize * bound.vocab * 4;
        // SAFETY: the logits buffer holds `lanes_max` rows; the borrow keeps rounds away.
        Ok(unsafe { slice::from_raw_parts(self.base().add(at).cast(), bound.vocab) })
    }

    fn reset_penalties(
        &mut self,
        lane: u32,
        prompt: &[u32],
        output: &[u32],
    ) -> Result<(), DeviceError> {
        let (base, bound) = (self.base(), self.bound());
        assert!(lane < bound.limits.lanes_max, "lane {lane} of the penalties");
        let start = Bytes(bound.addresses.penalty_counts).as_usize();
        let at = start + lane as usize * bound.vocab * 4;
        // SAFETY: the counts hold `lanes_max` rows; `&mut self` keeps everybody else away.
        let counts = unsafe { slice::from_raw_parts_mut(base.add(at).cast::<u32>(), bound.vocab) };
        counts.fill(0);
        for &id in prompt {
            counts[id as usize] |= IN_PROMPT;
        }
        for &id in output {
            count_output(&mut counts[id as usize]);
        }
        Ok(())
    }

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let from = self.span(at, out.len());
        // SAFETY: the span lies in the reservation and `&mut self` keeps rounds away; `out` is not
        // part of it, because nobody else can name its bytes.
        unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let to = self.span(at, bytes.len());
        // SAFETY: as in `read`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(&mut self, from: u64, to: u64, bytes: Bytes) -> Result<(), DeviceError> {
        let len = bytes.as_usize();
        assert!(from.abs_diff(to) >= bytes.0, "a copy of {bytes} overlaps itself");
        let (from, to) = (self.span(from, len), self.span(to, len));
        // SAFETY: both spans lie in the reservation and do not overlap; rounds are kept away.
        unsafe { to.copy_from_nonoverlapping(from, len) };
        Ok(())
    }
}

unsafe fn touch(context: *const (), worker: Worker<'_>) -> Result<(), Poisoned> {
    // SAFETY: `reserve` passes its mapping, fresh and zero.
    unsafe { (*context.cast::<Mapping>()).touch(worker.index, worker.count()) };
    Ok(())
}

fn lost_worker(_: Poisoned) -> DeviceError {
    DeviceError::Fault { what: "a worker thread" }
}

fn too_large(_: Overflow) -> DeviceError {
    DeviceError::ShapeUnsupported {
        what: "a size in bytes",
        found: u64::MAX,
        expected: "less than 2^64",
    }
}
