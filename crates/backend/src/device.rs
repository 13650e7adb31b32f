//! The running half of a device.

use ignis_ops::{Program, Round, SampleOut, Sampling, WeightId};
use ignis_types::{Bytes, Limits, PlanLine};

use crate::disk::BLOCK_BYTES;
use crate::error::DeviceError;
use crate::host::{Blocks, Copied, CopyId, CopyPart, CopyWay};
use crate::layout::DeviceLayout;

/// Copies that may be in flight each way; one more is a bug of the caller.
pub const COPIES_MAX: usize = 4;

/// Where the arena put each thing that a program needs. Byte offsets from the device base.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Start of each weight, by `WeightId`.
    pub weights: Vec<u64>,
    /// Start of each activation buffer, by `BufferId`; buffers that never live together may share.
    pub buffers: Vec<u64>,
    /// Start of each section, `[lanes_max, layers, elements]`, by `SectionId`.
    pub sections: Vec<u64>,
    /// Start of the scratch that the ops share, and its size.
    pub scratch: (u64, Bytes),
    /// Start of the KV pool.
    pub kv_pool: u64,
    /// Start of the penalty counts, `[lanes_max, vocab]` u32: the output in bits 0..31, the prompt
    /// in bit 31.
    pub penalty_counts: u64,
    /// Start of the sampling scratch, `[lanes_max, sampling_lane_bytes]`.
    pub sampling: u64,
}

/// A lane's sampling, as it stands in this round.
#[derive(Clone, Copy, Debug)]
pub struct LaneSampling<'a> {
    /// Its lane: the row of the penalty counts.
    pub lane: u32,
    /// Row of the logits buffer.
    pub logit_row: u32,
    /// Position of the token to draw.
    pub position: u32,
    /// Ids that may be drawn are `0..ids`; rows beyond them pad the table.
    pub ids: u32,
    /// What the request asked for.
    pub params: &'a Sampling,
    /// `(id, bias)`, at most `LOGIT_BIAS_MAX`.
    pub logit_bias: &'a [(u32, f32)],
}

/// Kinds of decode rounds that a device recorded when it was bound, to launch each as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Kinds that were recorded; the others are launched step by step.
    pub kept: u32,
    /// Kinds there are.
    pub kinds: u32,
    /// What the driver took for the recordings.
    pub bytes: Bytes,
}

/// A device that runs programs over one reservation of memory.
///
/// Life: `reserve` once, `bind` once, `put_weight` for every weight, then rounds. Nothing after
/// `bind` allocates device memory or heap.
pub trait Device: Send {
    /// The sizes this device was planned with.
    fn layout(&self) -> &dyn DeviceLayout;
    /// A name for tables, events and metrics, such as `cpu (2 threads, avx512-vnni)`.
    fn describe(&self) -> String;
    /// What the bits of pages and sections depend on beside [`DeviceLayout::state_format`], which
    /// is known without a device: how this very one computes. Nothing, where all of a kind agree.
    fn arithmetic(&self) -> String {
        String::new()
    }
    /// Bytes that the driver takes beside the reservation, by line: measured when the device was
    /// opened, and part of the plan. Nothing, for a device without a driver.
    fn measured(&self) -> &[(PlanLine, Bytes)] {
        &[]
    }
    /// Takes the whole device plan as one block, zeroed. Called once.
    fn reserve(&mut self, bytes: Bytes) -> Result<(), DeviceError>;
    /// Reservations made so far from any plan space; must not grow after the seal.
    fn reservations(&self) -> u64;
    /// Fixes the program, the addresses of its parts and the limits. Called once, after `reserve`.
    fn bind(
        &mut self,
        program: &Program,
        addresses: &Addresses,
        limits: &Limits,
    ) -> Result<(), DeviceError>;
    /// What was recorded of decode rounds; `None`, for a device that records none.
    fn recorded(&self) -> Option<Recorded> {
        None
    }
    /// Converts a stored weight into the arena: the bytes of each of its tensors, in order, in
    /// `WeightSpec::dtype`.
    fn put_weight(&mut self, id: WeightId, stored: &[&[u8]]) -> Result<(), DeviceError>;
    /// Waits until every weight has arrived, after the last of them.
    fn weights_arrived(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Runs the body of the program over the round, then the head for `round.logit_rows`.
    fn run(&mut self, round: &Round<'_>) -> Result<(), DeviceError>;
    /// Begins a round and its draws, as `run` and `sample` would do them one after the other, and
    /// returns without waiting for either; the arguments are not looked at after that.
    ///
    /// `Ok(false)`: this device only runs rounds whole. After `Ok(true)` and until `collect`, only
    /// `read`, `write`, `copy` and copies beside rounds are called: they write nowhere where the
    /// round reads or writes, and what they read of a page that it writes to are other rows than
    /// those. They may run beside the round, and see all that earlier rounds wrote. After an error
    /// nothing is under way, as after one of `collect`.
    fn start(
        &mut self,
        _round: &Round<'_>,
        _lanes: &[LaneSampling<'_>],
    ) -> Result<bool, DeviceError> {
        Ok(false)
    }
    /// Waits for what `start` began and gives its draws, one for each of its lanes.
    fn collect(&mut self, _out: &mut [SampleOut]) -> Result<(), DeviceError> {
        unreachable!("a device that starts rounds collects them")
    }
    /// Runs the head again for other rows of the round that `run` has just done.
    fn run_head(&mut self, round: &Round<'_>) -> Result<(), DeviceError>;
    /// Draws one token for each entry from the logits that `run` left, and counts it as output.
    fn sample(
        &mut self,
        lanes: &[LaneSampling<'_>],
        out: &mut [SampleOut],
    ) -> Result<(), DeviceError>;
    /// Row `row` of the logits that the last run left, `[vocab]`. Not for serving: a device with
    /// memory of its own copies them.
    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceError>;
    /// Sets a lane's penalty counts to those of its prompt and of what it has drawn since.
    fn reset_penalties(
        &mut self,
        lane: u32,
        prompt: &[u32],
        output: &[u32],
    ) -> Result<(), DeviceError>;
    /// Copies `out.len()` bytes that start `at` bytes into the reservation to the host.
    ///
    /// What the last round wrote is there. Beside a round that was started it is called within the
    /// bounds that `start` names, like the two below; what those two write, the next round sees.
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError>;
    /// Copies `bytes` from the host to `at`.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Copies `bytes` from one place of the reservation to another; the two do not overlap.
    fn copy(&mut self, from: u64, to: u64, bytes: Bytes) -> Result<(), DeviceError>;
    /// `pieces` pieces of host memory of `bytes` each, in whole blocks, zeroed and resident, from
    /// one allocation: where this device copies from and to best. Before the seal only.
    fn host_memory(&mut self, pieces: usize, bytes: usize) -> Result<Vec<Blocks>, DeviceError> {
        Blocks::pieces(pieces, bytes.div_ceil(BLOCK_BYTES)).ok_or_else(|| DeviceError::Reserve {
            bytes: Bytes(bytes as u64).times(pieces as u64).unwrap_or(Bytes(u64::MAX)),
            space: "host memory",
            reason: "the system does not give it".into(),
        })
    }
    /// Bytes of host memory that the device has pinned, as they were asked for.
    fn pinned(&self) -> Bytes {
        Bytes::ZERO
    }
    /// Whether the device copies to and from host memory beside its rounds. If not, the three calls
    /// below are not made: [`Device::read`] and [`Device::write`] do.
    fn copies_beside(&self) -> bool {
        false
    }
    /// Begins copies that belong together and returns at once. The device has `host` until they are
    /// over. They see what everything begun before them wrote, but for a round that was started and
    /// not collected: beside that they run. What is written meanwhile to the bytes copied out may
    /// be seen or not. Nobody touches the bytes copied in until they are over.
    ///
    /// With `still`, nobody writes to the bytes copied out before the copies are over, and they are
    /// summed where they lie; without, the sum is that of no bytes.
    ///
    /// At most [`COPIES_MAX`] each way are in flight. A failure is told when they are over.
    fn begin_copies(
        &mut self,
        way: CopyWay,
        host: Blocks,
        parts: &mut dyn Iterator<Item = CopyPart>,
        still: bool,
    ) -> CopyId {
        let _ = (way, host, parts, still);
        unreachable!("this device does not copy beside its rounds")
    }
    /// Gives back the memory of copies that are over, `None` while they are not; with `wait` it
    /// waits for them. What begins afterwards sees what they brought.
    fn end_copies(&mut self, copies: CopyId, wait: bool) -> Option<Copied> {
        let _ = (copies, wait);
        unreachable!("this device does not copy beside its rounds")
    }
}
