//! A small random llama, a rig that runs it on the device, and its naive f64 twin.
#![allow(dead_code)] // each test file uses a part

pub(crate) mod hybrid;
pub(crate) mod naive;
mod naive_state;

use half::f16;
use ignis_backend::{Activations, Addresses, Device, DeviceLayout, KvFormat};
use ignis_cpu::simd::Isa;
use ignis_cpu::{CpuDevice, CpuOptions};
use ignis_ops::{
    AddRows, Embed, GatherRows, KvAppend, KvShape, Linear, LinearPart, Op, PagedAttention, Program,
    ProgramBuilder, RmsNorm, Rope, RopeScaling, RopeTable, Round, Rows, Segment, SwiGlu, WeightId,
    WeightKind, WeightSpec,
};
use ignis_types::{Bytes, DType, Limits, PAGE_TOKENS};

/// Sizes and dtypes of a test model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: u32,
    pub(crate) hidden: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) inner: u32,
    pub(crate) vocab: u32,
    pub(crate) matrices: DType,
    pub(crate) table: DType,
    /// Per-head norms and biases, as Qwen has them.
    pub(crate) extras: bool,
}

pub(crate) const TINY: Shape = Shape {
    layers: 2,
    hidden: 64,
    heads: 6,
    kv_heads: 2,
    head_dim: 32,
    inner: 96,
    vocab: 75,
    matrices: DType::Q4_1,
    table: DType::Q8_0,
    extras: false,
};

pub(crate) const LIMITS: Limits = Limits {
    lanes_max: 8,
    chunk_tokens_max: 640,
    context_tokens_max: 1024,
    pages: 80,
    retained_device: 0,
    retained_host: 0,
};

/// Writes the program of `shape`.
pub(crate) fn llama(shape: &Shape) -> Program {
    let s = *shape;
    let rope = RopeTable::new(1e4, s.head_dim, &RopeScaling::None);
    let kv = KvShape { layers: s.layers, kv_heads: s.kv_heads, head_dim: s.head_dim };
    let mut b = ProgramBuilder::new(kv, rope);
    let mut count = 0;
    let mut weight = |b: &mut ProgramBuilder, dtype, rows, cols, kind| {
        count += 1;
        b.weight(WeightSpec::new(format!("w{count}"), dtype, rows, cols, kind))
    };
    let (q_width, kv_width) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let h = b.buffer("hidden", Rows::Round, s.hidden);
    let normed = b.buffer("normed", Rows::Round, s.hidden);
    let [q, o] = ["q", "o"].map(|name| b.buffer(name, Rows::Round, q_width));
    let [k, v] = ["k", "v"].map(|name| b.buffer(name, Rows::Round, kv_width));
    let [gate, up] = ["gate", "up"].map(|name| b.buffer(name, Rows::Round, s.inner));
    let extra = b.buffer("extra", Rows::Round, s.hidden);
    let last = b.buffer("last", Rows::Logits, s.hidden);
    let logits = b.buffer("logits", Rows::Logits, s.vocab);

    let table = weight(&mut b, s.table, s.vocab, s.hidden, WeightKind::TableAndMatrix);
    let push = |b: &mut ProgramBuilder, op| b.push(op).unwrap();
    push(&mut b, Op::Embed(Embed { table, y: h }));
    for layer in 0..s.layers {
        let vector = WeightKind::Vector;
        let w = weight(&mut b, DType::F32, 1, s.hidden, vector);
        push(&mut b, Op::RmsNorm(RmsNorm { x: h, w, y: normed, eps: 1e-5 }));
        let parts = [(q, q_width), (k, kv_width), (v, kv_width)].map(|(y, rows)| {
            let w = weight(&mut b, s.matrices, rows, s.hidden, WeightKind::Matrix);
            let bias = s.extras.then(|| weight(&mut b, DType::F16, 1, rows, vector));
            LinearPart { w, bias, y }
        });
        let linear =
            |x, parts, accumulate, precise| Op::Linear(Linear { x, parts, accumulate, precise });
        push(&mut b, linear(normed, parts.to_vec(), false, false));
        for x in [q, k] {
            if s.extras {
                let w = weight(&mut b, DType::F32, 1, s.head_dim, vector);
                push(&mut b, Op::RmsNorm(RmsNorm { x, w, y: x, eps: 1e-6 }));
            }
            push(&mut b, Op::Rope(Rope { x, head_dim: s.head_dim }));
        }
        push(&mut b, Op::KvAppend(KvAppend { layer, k, v }));
        let scale = 1.0 / (s.head_dim as f32).sqrt();
        push(&mut b, Op::PagedAttention(PagedAttention { layer, q, o, scale }));
        let w = weight(&mut b, s.matrices, s.hidden, q_width, WeightKind::Matrix);
        push(&mut b, linear(o, vec![LinearPart { w, bias: None, y: h }], true, false));
        let w = weight(&mut b, DType::BF16, 1, s.hidden, vector);
        push(&mut b, Op::RmsNorm(RmsNorm { x: h, w, y: normed, eps: 1e-5 }));
        let parts = [gate, up].map(|y| {
            let w = weight(&mut b, s.matrices, s.inner, s.hidden, WeightKind::Matrix);
            LinearPart { w, bias: None, y }
        });
        push(&mut b, linear(normed, parts.to_vec(), false, false));
        push(&mut b, Op::SwiGlu(SwiGlu { gate, up, y: gate }));
        let w = weight(&mut b, s.matrices, s.hidden, s.inner, WeightKind::Matrix);
        push(&mut b, linear(gate, vec![LinearPart { w, bias: None, y: extra }], false, false));
        push(&mut b, Op::AddRows(AddRows { x: extra, y: h }));
    }
    b.begin_head();
    push(&mut b, Op::GatherRows(GatherRows { x: h, y: last }));
    let w = weight(&mut b, DType::F32, 1, s.hidden, WeightKind::Vector);
    push(&mut b, Op::RmsNorm(RmsNorm { x: last, w, y: last, eps: 1e-5 }));
    let parts = vec![LinearPart { w: table, bias: None, y: logits }];
    push(&mut b, Op::Linear(Linear { x: last, parts, accumulate: false, precise: true }));
    b.finish(logits)
}

/// A small generator; the same numbers everywhere.
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }
    /// In [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }
}

/// Random stored bytes of a weight.
pub(crate) fn stored(spec: &WeightSpec, seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let count = spec.rows as usize * spec.cols as usize;
    let vector = spec.kind == WeightKind::Vector;
    let value = |dice: &mut Dice| {
        if vector { 1.0 + 0.3 * dice.unit() } else { 2.0 * dice.unit() / (spec.cols as f32).sqrt() }
    };
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    match spec.dtype {
        DType::F32 => (0..count).flat_map(|_| value(&mut dice).to_le_bytes()).collect(),
        DType::F16 => (0..count).flat_map(|_| half(value(&mut dice))).collect(),
        DType::BF16 => {
            (0..count).flat_map(|_| half::bf16::from_f32(value(&mut dice)).to_le_bytes()).collect()
        }
        DType::Q8_0 | DType::Q4_0 | DType::Q4_1 | DType::Q4K | DType::Q6K => {
            let mut out = vec![];
            let spread = 2.0 / (spec.cols as f32).sqrt();
            for _ in 0..count / spec.dtype.block_elements() as usize {
                let scale = spread * (0.5 + 0.5 * dice.unit().abs());
                let mut codes = |n: usize| (0..n).map(|_| dice.bits() as u8).collect::<Vec<u8>>();
                match spec.dtype {
                    DType::Q8_0 => {
                        out.extend(half(scale / 127.0));
                        out.extend((0..32).map(|_| (dice.bits() % 255) as u8));
                    }
                    DType::Q4_0 => {
                        out.extend(half(scale / 7.5));
                        out.extend(codes(16));
                    }
                    DType::Q4_1 => {
                        out.extend(half(scale / 7.5));
                        out.extend(half(-scale));
                        out.extend(codes(16));
                    }
                    DType::Q4K => {
                        // Six-bit scales and minima up to 63, means of about 32.
                        out.extend(half(scale / 7.5 / 32.0));
                        out.extend(half(scale / 32.0));
                        out.extend(codes(12 + 128));
                    }
                    _ => {
                        out.extend(codes(192 + 16));
                        out.extend(half(scale / 32.0 / 64.0));
                    }
                }
            }
            out
        }
        other => panic!("no random bytes are made for {other}"),
    }
}

/// A device with the weights of a shape, and block tables with shuffled pages.
pub(crate) struct Rig<D = CpuDevice> {
    pub(crate) device: D,
    pub(crate) addresses: Addresses,
    pub(crate) program: Program,
    pub(crate) limits: Limits,
    pub(crate) tables: Vec<u32>,
    pub(crate) stride: usize,
}

pub(crate) fn options(threads: usize) -> CpuOptions {
    CpuOptions { threads, activations: Activations::Int8, kv_format: KvFormat::Bf16 }
}

impl Rig {
    pub(crate) fn new(shape: &Shape, limits: Limits, options: CpuOptions, isa: Isa) -> Rig {
        Rig::of(llama(shape), limits, options, isa)
    }

    pub(crate) fn of(program: Program, limits: Limits, options: CpuOptions, isa: Isa) -> Rig {
        Rig::on(CpuDevice::with_isa(options, isa).unwrap(), program, limits)
    }
}

impl<D: Device> Rig<D> {
    /// Any device, with random weights and nothing computed yet.
    pub(crate) fn on(mut device: D, program: Program, limits: Limits) -> Rig<D> {
        let (addresses, end) = lay_out(&program, &limits, device.layout());
        device.reserve(end).unwrap();
        device.bind(&program, &addresses, &limits).unwrap();
        for (i, spec) in program.weights.iter().enumerate() {
            device.put_weight(WeightId(i as u32), &[&stored(spec, i as u64)]).unwrap();
        }
        let stride = limits.sequence_pages_max() as usize;
        let mut tables = vec![u32::MAX; stride * limits.lanes_max as usize];
        let mut dice = Dice(5);
        let mut free: Vec<u32> = (0..limits.pages).collect();
        let share = limits.pages as usize / limits.lanes_max as usize;
        for lane in 0..limits.lanes_max as usize {
            for i in 0..share.min(stride) {
                let pick = dice.bits() as usize % free.len();
                tables[lane * stride + i] = free.swap_remove(pick);
            }
        }
        Rig { device, addresses, program, limits, tables, stride }
    }

    /// Runs `(lane, position, tokens)` in one round; the logits of each one's last row.
    pub(crate) fn round(&mut self, parts: &[(u32, u32, &[u32])]) -> Vec<Vec<f32>> {
        let tokens: Vec<u32> = parts.iter().flat_map(|part| part.2.iter().copied()).collect();
        let (mut segments, mut logit_rows, mut row) = (vec![], vec![], 0);
        for &(lane, position, tokens) in parts {
            let rows = tokens.len() as u32;
            segments.push(Segment { lane, row, rows, position });
            row += rows;
            logit_rows.push(row - 1);
        }
        let round = Round {
            tokens: &tokens,
            segments: &segments,
            logit_rows: &logit_rows,
            block_tables: &self.tables,
            stride: self.stride,
        };
        self.device.run(&round).unwrap();
        (0..parts.len()).map(|i| self.device.logits(i as u32).unwrap().to_vec()).collect()
    }
}

/// Regions one after another.
pub(crate) fn lay_out(
    program: &Program,
    limits: &Limits,
    layout: &dyn DeviceLayout,
) -> (Addresses, Bytes) {
    let mut end = 0u64;
    let mut region = |bytes: u64| {
        let start = end;
        end = (start + bytes).next_multiple_of(layout.align());
        start
    };
    let rows = |rows| match rows {
        Rows::Round => u64::from(limits.round_rows_max()),
        Rows::Logits => u64::from(limits.lanes_max),
    };
    let weights =
        program.weights.iter().map(|spec| region(layout.weight_bytes(spec).unwrap().0)).collect();
    let buffers = program
        .buffers
        .iter()
        .map(|spec| region(4 * u64::from(spec.width) * rows(spec.rows)))
        .collect();
    let linear = program.ops.iter().map(|op| match op {
        Op::Linear(op) => {
            let x = program.buffer(op.x);
            layout.linear_scratch(op, rows(x.rows), x.width.into()).unwrap().0
        }
        Op::ExpertLinear(op) => {
            let ids = program.buffer(op.ids);
            let cols = op.parts.iter().map(|part| program.weight(part.w).cols).max().unwrap();
            let rows = rows(ids.rows);
            layout.expert_scratch(op, rows, ids.width.into(), cols.into()).unwrap().0
        }
        _ => 0,
    });
    let linear = linear.max().unwrap().next_multiple_of(layout.align());
    let scratch = linear + layout.attention_scratch(program, limits).unwrap().0;
    let lanes = u64::from(limits.lanes_max);
    let kv = layout.kv_page_bytes(&program.kv).unwrap().0 * u64::from(limits.pages);
    let sections = program.sections.iter().map(|section| {
        region(u64::from(limits.lanes_max) * layout.section_bytes(section).unwrap().0)
    });
    let addresses = Addresses {
        weights,
        buffers,
        sections: sections.collect(),
        scratch: (region(scratch), Bytes(scratch)),
        kv_pool: region(kv),
        penalty_counts: region(lanes * 4 * u64::from(program.vocab)),
        sampling: region(lanes * layout.sampling_lane_bytes(program.vocab).unwrap().0),
    };
    (addresses, Bytes(end))
}

/// Random tokens.
pub(crate) fn prompt(len: usize, vocab: u32, seed: u64) -> Vec<u32> {
    let mut dice = Dice(seed);
    (0..len).map(|_| dice.bits() % vocab).collect()
}

/// Pages that `tokens` fill.
pub(crate) fn pages(tokens: u32) -> u32 {
    tokens.div_ceil(PAGE_TOKENS)
}
