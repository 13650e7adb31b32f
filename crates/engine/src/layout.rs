//! Every byte of the device plan, from a program and limits. Nothing is reserved here.

use ignis_arena::{Layout, Lifetime, Packed, RegionId, pack_by_lifetime};
use ignis_backend::{Addresses, DeviceLayout};
use ignis_ops::{BufferId, Op, Program, Rows};
use ignis_types::{Bytes, Limits, Overflow, PAGE_TOKENS, PlanLine};

use crate::state::{Section, StateMap};

/// A layout, and which of its regions holds what.
#[derive(Debug)]
pub struct Mapped {
    /// Regions by line.
    pub layout: Layout,
    weights: Vec<RegionId>,
    /// Buffers that share the workspace: their ids, packed by lifetime.
    shared: Vec<BufferId>,
    packed: Packed,
    workspace: RegionId,
    scratch: RegionId,
    logits: (BufferId, RegionId),
    sections: Vec<RegionId>,
    /// Sections of the device's retained slots, in the order of `sections`.
    retained: Vec<RegionId>,
    penalties: RegionId,
    sampling: RegionId,
    kv_pool: RegionId,
}

/// Bytes of each plan line but `kv_pool`, and of one page of it.
#[derive(Clone, Debug)]
pub struct Needs {
    /// In print order.
    pub lines: Vec<(PlanLine, Bytes)>,
    /// One page.
    pub kv_page: Bytes,
    /// Host memory of one retained slot.
    pub host_slot: Bytes,
    /// Host memory that the device pins for itself.
    pub pinned: Bytes,
    /// The longest image: tokens, sections and pages of a whole context.
    pub image_payload: Bytes,
}

/// The plan lines of a program: the layout of a load, counted with an empty pool.
pub fn needs(
    program: &Program,
    limits: &Limits,
    device: &dyn DeviceLayout,
) -> Result<Needs, Overflow> {
    let mapped = lay_out(program, &Limits { pages: 0, ..*limits }, device)?;
    let lines = PlanLine::ALL
        .into_iter()
        .filter(|&line| line != PlanLine::KvPool)
        .map(|line| (line, mapped.layout.line_bytes(line)))
        .collect();
    let state = StateSizes::new(program, device)?;
    Ok(Needs {
        lines,
        kv_page: state.page,
        host_slot: state.slot,
        pinned: device.pinned_bytes(program, limits)?,
        image_payload: state.payload(limits.context_tokens_max)?,
    })
}

/// Bytes of what a sequence leaves behind.
#[derive(Clone, Debug)]
pub struct StateSizes {
    /// Each section of one lane.
    pub sections: Vec<Bytes>,
    /// All sections, as a retained slot in host memory holds them.
    pub slot: Bytes,
    /// One page.
    pub page: Bytes,
}

impl StateSizes {
    /// The sizes of a program on a device.
    pub fn new(program: &Program, device: &dyn DeviceLayout) -> Result<StateSizes, Overflow> {
        let sections: Vec<Bytes> = program
            .sections
            .iter()
            .map(|section| device.section_bytes(section))
            .collect::<Result<_, _>>()?;
        let slot = sections.iter().try_fold(Bytes::ZERO, |sum, &bytes| sum.plus(bytes))?;
        Ok(StateSizes { sections, slot, page: device.kv_page_bytes(&program.kv)? })
    }

    /// Payload of the image of a sequence's first `tokens` tokens.
    pub fn payload(&self, tokens: u32) -> Result<Bytes, Overflow> {
        let pages = self.page.times(u64::from(tokens.div_ceil(PAGE_TOKENS)))?;
        Bytes(4).times(u64::from(tokens))?.plus(self.slot)?.plus(pages)
    }
}

/// Lays out everything that a program needs on a device.
pub fn lay_out(
    program: &Program,
    limits: &Limits,
    device: &dyn DeviceLayout,
) -> Result<Mapped, Overflow> {
    let mut layout = Layout::new(device.align());
    let weights = program
        .weights
        .iter()
        .map(|w| layout.region(PlanLine::Weights, w.name.clone(), device.weight_bytes(w)?))
        .collect::<Result<_, _>>()?;

    let rows_of = |rows: Rows| match rows {
        Rows::Round => u64::from(limits.round_rows_max()),
        Rows::Logits => u64::from(limits.lanes_max),
    };
    let in_memory = device.buffers_in_memory(program);
    let bytes_of = |id: BufferId| {
        let spec = program.buffer(id);
        if !in_memory[id.0 as usize] {
            return Ok(Bytes::ZERO);
        }
        Bytes(4).times(u64::from(spec.width))?.times(rows_of(spec.rows))
    };
    let (shared, packed) = pack_buffers(program, device.align(), bytes_of)?;
    let workspace = layout.region(PlanLine::Workspace, "activations", packed.total)?;
    let scratch_bytes = scratch(program, limits, device, rows_of)?;
    let scratch = layout.region(PlanLine::Workspace, "op scratch", scratch_bytes)?;

    let lanes = u64::from(limits.lanes_max);
    let sections = program
        .sections
        .iter()
        .map(|section| {
            let bytes = device.section_bytes(section)?.times(lanes)?;
            layout.region(PlanLine::LaneState, section.name, bytes)
        })
        .collect::<Result<_, _>>()?;
    let retained = program
        .sections
        .iter()
        .map(|section| {
            let bytes = device.section_bytes(section)?.times(u64::from(limits.retained_device))?;
            layout.region(PlanLine::RetainedSlots, section.name, bytes)
        })
        .collect::<Result<_, _>>()?;
    let penalty_bytes = Bytes(4).times(u64::from(program.vocab))?.times(lanes)?;
    let penalties = layout.region(PlanLine::LaneState, "penalty counts", penalty_bytes)?;

    let logits =
        (program.logits, layout.region(PlanLine::Sampling, "logits", bytes_of(program.logits)?)?);
    let lane_bytes = device.sampling_lane_bytes(program.vocab)?;
    let sampling = layout.region(PlanLine::Sampling, "candidates", lane_bytes.times(lanes)?)?;

    let graphs = device.graph_bytes(program, limits)?;
    if graphs > Bytes::ZERO {
        layout.outside(PlanLine::DecodeGraph, graphs);
    }

    let pool = device.kv_page_bytes(&program.kv)?.times(u64::from(limits.pages))?;
    let kv_pool = layout.region(PlanLine::KvPool, "pages", pool)?;
    Ok(Mapped {
        layout,
        weights,
        shared,
        packed,
        workspace,
        scratch,
        logits,
        sections,
        retained,
        penalties,
        sampling,
        kv_pool,
    })
}

/// Every buffer but the logits, which sampling reads after the round, packed by lifetime.
fn pack_buffers(
    program: &Program,
    align: u64,
    bytes_of: impl Fn(BufferId) -> Result<Bytes, Overflow>,
) -> Result<(Vec<BufferId>, Packed), Overflow> {
    let spans = program.lifetimes();
    let ids = (0..program.buffers.len() as u32).map(BufferId);
    let shared: Vec<BufferId> = ids.filter(|&id| id != program.logits).collect();
    let lives = shared
        .iter()
        .map(|&id| {
            let (first, last) = spans[id.0 as usize];
            Ok(Lifetime { bytes: bytes_of(id)?, first, last })
        })
        .collect::<Result<Vec<_>, Overflow>>()?;
    let packed = pack_by_lifetime(&lives, align)?;
    Ok((shared, packed))
}

/// The largest encoded input of any product, and what attention and routing need beside it.
fn scratch(
    program: &Program,
    limits: &Limits,
    device: &dyn DeviceLayout,
    rows_of: impl Fn(Rows) -> u64,
) -> Result<Bytes, Overflow> {
    let mut widest = Bytes::ZERO;
    for op in &program.ops {
        let bytes = match op {
            Op::Linear(linear) => {
                let x = program.buffer(linear.x);
                device.linear_scratch(linear, rows_of(x.rows), u64::from(x.width))?
            }
            Op::ExpertLinear(linear) => {
                let ids = program.buffer(linear.ids);
                let cols = linear.parts.iter().map(|part| program.weight(part.w).cols).max();
                let (rows, used) = (rows_of(ids.rows), u64::from(ids.width));
                device.expert_scratch(linear, rows, used, u64::from(cols.unwrap_or(0)))?
            }
            _ => continue,
        };
        widest = widest.max(bytes);
    }
    widest.aligned(device.align())?.plus(device.attention_scratch(program, limits)?)
}

impl Mapped {
    /// Where the state of sequences lies, for images and retained slots.
    pub(crate) fn state(&self, sizes: &StateSizes, limits: &Limits) -> StateMap {
        let at = |id: &RegionId| self.layout.get(*id).offset;
        let sections = sizes.sections.iter().zip(self.sections.iter().zip(&self.retained));
        StateMap {
            sections: sections
                .map(|(&bytes, (lanes, slots))| Section {
                    lanes: at(lanes),
                    slots: at(slots),
                    bytes: bytes.0,
                })
                .collect(),
            pool: at(&self.kv_pool),
            page_bytes: sizes.page.0,
            slots_device: limits.retained_device,
        }
    }

    /// Where the device finds each part.
    pub fn addresses(&self) -> Addresses {
        let at = |id| self.layout.get(id).offset;
        let buffers = self.shared.len() + 1;
        let mut addresses = Addresses {
            weights: self.weights.iter().map(|&id| at(id)).collect(),
            buffers: vec![0; buffers],
            sections: self.sections.iter().map(|&id| at(id)).collect(),
            scratch: (at(self.scratch), self.layout.get(self.scratch).bytes),
            kv_pool: at(self.kv_pool),
            penalty_counts: at(self.penalties),
            sampling: at(self.sampling),
        };
        for (id, offset) in self.shared.iter().zip(&self.packed.offsets) {
            addresses.buffers[id.0 as usize] = at(self.workspace) + offset;
        }
        addresses.buffers[self.logits.0.0 as usize] = at(self.logits.1);
        addresses
    }
}
