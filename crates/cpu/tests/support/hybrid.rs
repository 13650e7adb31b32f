//! A small model with recurrent layers, gated attention and experts.

use ignis_ops::{
    AddScaled, BufferId, CausalConv, DeltaGates, DeltaRule, Embed, ExpertLinear, ExpertPart,
    ExpertSum, Gate, GateFunction, GatedNorm, GatherRows, HeadMap, KvAppend, KvShape, L2NormHeads,
    Linear, LinearPart, Op, PagedAttention, Program, ProgramBuilder, RmsNorm, Rope, RopeScaling,
    RopeTable, Route, Rows, SectionFormat, SectionSpec, SwiGlu, VectorMap, WeightId, WeightKind,
    WeightSpec,
};
use ignis_types::DType;

/// What differs between the models that tests run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hybrid {
    pub(crate) matrices: DType,
    pub(crate) key_heads: u32,
    pub(crate) value_heads: u32,
    pub(crate) key_dim: u32,
    pub(crate) value_dim: u32,
    pub(crate) kernel: u32,
    pub(crate) map: HeadMap,
    pub(crate) gate: GateFunction,
    pub(crate) experts: u32,
    pub(crate) used: u32,
    pub(crate) renormalise: bool,
}

pub(crate) const GROUPED: Hybrid = Hybrid {
    matrices: DType::F32,
    key_heads: 2,
    value_heads: 6,
    key_dim: 32,
    value_dim: 64,
    kernel: 4,
    map: HeadMap::Grouped,
    gate: GateFunction::Silu,
    experts: 9,
    used: 3,
    renormalise: true,
};

/// Partly filled tiles, another kernel, quantised weights.
pub(crate) const TILED: Hybrid = Hybrid {
    matrices: DType::Q8_0,
    key_heads: 3,
    value_heads: 6,
    key_dim: 48,
    value_dim: 112,
    kernel: 3,
    map: HeadMap::Tiled,
    gate: GateFunction::Sigmoid,
    experts: 5,
    used: 5,
    renormalise: false,
};

pub(crate) const VOCAB: u32 = 75;
const HIDDEN: u32 = 64;
const INNER: u32 = 32;
const HEADS: u32 = 4;
const HEAD_DIM: u32 = 32;

struct Writer {
    b: ProgramBuilder,
    matrices: DType,
    count: u32,
}

impl Writer {
    fn weight(&mut self, rows: u32, cols: u32, kind: WeightKind) -> WeightId {
        self.count += 1;
        let vector = kind == WeightKind::Vector;
        let dtype = if vector { DType::F32 } else { self.matrices };
        let spec = WeightSpec::new(format!("w{}", self.count), dtype, rows, cols, kind);
        self.b.weight(spec)
    }
    fn vector(&mut self, cols: u32) -> WeightId {
        self.weight(1, cols, WeightKind::Vector)
    }
    fn rates(&mut self, cols: u32) -> WeightId {
        let spec = WeightSpec::new("rates".into(), DType::F32, 1, cols, WeightKind::Vector);
        self.count += 1;
        self.b.weight(WeightSpec { map: VectorMap::NegExp, ..spec })
    }
    fn buffer(&mut self, width: u32) -> BufferId {
        self.b.buffer("buffer", Rows::Round, width)
    }
    fn push(&mut self, op: Op) {
        self.b.push(op).unwrap();
    }
    /// Products of `x` in new buffers of these widths.
    fn products<const N: usize>(
        &mut self,
        x: BufferId,
        cols: u32,
        rows: [u32; N],
    ) -> [BufferId; N] {
        let ys = rows.map(|rows| self.buffer(rows));
        self.linear(x, cols, rows.into_iter().zip(ys).collect(), false);
        ys
    }
    fn linear(&mut self, x: BufferId, cols: u32, to: Vec<(u32, BufferId)>, accumulate: bool) {
        let part = |(rows, y)| {
            let w = self.weight(rows, cols, WeightKind::Matrix);
            LinearPart { w, bias: None, y }
        };
        let parts = to.into_iter().map(part).collect();
        self.push(Op::Linear(Linear { x, parts, accumulate, precise: true }));
    }
    fn normed(&mut self, x: BufferId) -> BufferId {
        let (w, y) = (self.vector(HIDDEN), self.buffer(HIDDEN));
        self.push(Op::RmsNorm(RmsNorm { x, w, y, eps: 1e-6 }));
        y
    }
}

/// Two recurrent layers around one that attends, experts after each.
pub(crate) fn hybrid(h: &Hybrid) -> Program {
    let rope = RopeTable::new(1e4, HEAD_DIM / 4, &RopeScaling::None);
    let kv = KvShape { layers: 1, kv_heads: 2, head_dim: HEAD_DIM };
    let mut b = ProgramBuilder::new(kv, rope);
    let (keys, values) = (h.key_heads * h.key_dim, h.value_heads * h.value_dim);
    let channels = 2 * keys + values;
    let section = |name, elements, format| SectionSpec { name, layers: 2, elements, format };
    let recurrence = b.section(section("recurrence", values * h.key_dim, SectionFormat::F32));
    let taps = b.section(section("taps", (h.kernel - 1) * channels, SectionFormat::AsKv));
    let last = b.buffer("last", Rows::Logits, HIDDEN);
    let logits = b.buffer("logits", Rows::Logits, VOCAB);
    let mut w = Writer { b, matrices: h.matrices, count: 0 };
    let x = w.buffer(HIDDEN);
    let table = w.weight(VOCAB, HIDDEN, WeightKind::TableAndMatrix);
    w.push(Op::Embed(Embed { table, y: x }));
    for layer in 0..3 {
        let normed = w.normed(x);
        if layer == 1 {
            let width = HEADS * HEAD_DIM;
            let [q, gate, k, v] = w.products(normed, HIDDEN, [width, width, 64, 64]);
            w.push(Op::Rope(Rope { x: q, head_dim: HEAD_DIM }));
            w.push(Op::Rope(Rope { x: k, head_dim: HEAD_DIM }));
            w.push(Op::KvAppend(KvAppend { layer: 0, k, v }));
            let o = w.buffer(width);
            w.push(Op::PagedAttention(PagedAttention { layer: 0, q, o, scale: 0.2 }));
            w.push(Op::Gate(Gate { gate, y: o }));
            w.linear(o, width, vec![(HIDDEN, x)], true);
        } else {
            let heads = h.value_heads;
            let rows = [channels, values, heads, heads];
            let [qkv, z, b, a] = w.products(normed, HIDDEN, rows);
            let layer = layer / 2;
            let taps_w = w.vector(h.kernel * channels);
            let conv = CausalConv { x: qkv, w: taps_w, y: qkv, taps, layer };
            w.push(Op::CausalConv(conv));
            for (first, scale) in [(0, 0.25), (keys, 1.0)] {
                let (heads, dim) = (h.key_heads, h.key_dim);
                w.push(Op::L2NormHeads(L2NormHeads {
                    x: qkv,
                    first,
                    heads,
                    dim,
                    scale,
                    eps: 1e-6,
                }));
            }
            let (decay, dt) = (w.rates(heads), w.vector(heads));
            w.push(Op::DeltaGates(DeltaGates { a, b, decay, dt }));
            let y = w.buffer(values);
            w.push(Op::DeltaRule(DeltaRule {
                qkv,
                a,
                b,
                y,
                state: recurrence,
                layer,
                key_heads: h.key_heads,
                value_heads: h.value_heads,
                key_dim: h.key_dim,
                value_dim: h.value_dim,
                map: h.map,
            }));
            let gain = w.vector(h.value_dim);
            w.push(Op::GatedNorm(GatedNorm { x: y, w: gain, gate: z, y, eps: 1e-6, f: h.gate }));
            w.linear(y, values, vec![(HIDDEN, x)], true);
        }
        experts(&mut w, h, x);
    }
    w.b.begin_head();
    w.push(Op::GatherRows(GatherRows { x, y: last }));
    let gain = w.vector(HIDDEN);
    w.push(Op::RmsNorm(RmsNorm { x: last, w: gain, y: last, eps: 1e-6 }));
    let parts = vec![LinearPart { w: table, bias: None, y: logits }];
    w.push(Op::Linear(Linear { x: last, parts, accumulate: false, precise: true }));
    w.b.finish(logits)
}

/// Routed experts and a shared one.
fn experts(w: &mut Writer, h: &Hybrid, x: BufferId) {
    let normed = w.normed(x);
    let [scores] = w.products(normed, HIDDEN, [h.experts]);
    let (ids, weights) = (w.buffer(h.used), w.buffer(h.used));
    w.push(Op::Route(Route { scores, ids, weights, renormalise: h.renormalise }));
    let kind = WeightKind::Experts { count: h.experts };
    let part = |w: &mut Writer, out: u32, cols| {
        let weight = w.weight(h.experts * out, cols, kind);
        ExpertPart { w: weight, y: w.buffer(h.used * out) }
    };
    let (gate, up) = (part(w, INNER, HIDDEN), part(w, INNER, HIDDEN));
    let [gate_y, up_y] = [gate.y, up.y];
    w.push(Op::ExpertLinear(ExpertLinear { x: normed, ids, parts: vec![gate, up] }));
    w.push(Op::SwiGlu(SwiGlu { gate: gate_y, up: up_y, y: gate_y }));
    let down = part(w, HIDDEN, INNER);
    let out = down.y;
    w.push(Op::ExpertLinear(ExpertLinear { x: gate_y, ids, parts: vec![down] }));
    w.push(Op::ExpertSum(ExpertSum { x: out, ids, weights, y: x }));

    let [gate, up, scale] = w.products(normed, HIDDEN, [INNER, INNER, 1]);
    w.push(Op::SwiGlu(SwiGlu { gate, up, y: gate }));
    let [shared] = w.products(gate, INNER, [HIDDEN]);
    w.push(Op::AddScaled(AddScaled { x: shared, scale, y: x }));
}
