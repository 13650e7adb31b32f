//! Recurrent layers: Gated DeltaNet.

use ignis_ops::{
    BufferId, CausalConv, DeltaGates, DeltaRule, GatedNorm, HeadMap, L2NormHeads, LinearPart, Op,
    VectorMap, WeightId, WeightKind, WeightSpec,
};
use ignis_types::DType;

use crate::error::ModelError;
use crate::family::Family;
use crate::names::Part;
use crate::shape::DeltaShape;
use crate::writer::Writer;

/// Under the root of the norm of q and k.
const L2_EPS: f32 = 1e-6;

impl Writer<'_> {
    /// x += out_proj(norm(delta_rule(conv(qkv), gates(a, b))) * f(z)) of norm(x). `at` counts the
    /// recurrent layers.
    pub(crate) fn delta(&mut self, layer: u32, at: u32, d: &DeltaShape) -> Result<(), ModelError> {
        let (x, hidden) = (self.x, self.shape.hidden);
        let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
        let sections = self.sections.expect("a program with recurrent layers has their sections");
        let normed = self.normed(Part::AttentionNorm, layer)?;
        let qkv = self.buffer("qkv", d.channels());
        let z = self.buffer("z", values);
        let a = self.buffer("a", d.value_heads);
        let b = self.buffer("b", d.value_heads);
        let parts = self.delta_projections(layer, d)?.into_iter().zip([qkv, z, b, a]);
        let parts = parts.map(|(w, y)| LinearPart { w, bias: None, y }).collect();
        self.linear(normed, parts, false)?;

        let w = self.conv_weight(layer, d)?;
        let conv = CausalConv { x: qkv, w, y: qkv, taps: sections.taps, layer: at };
        self.push(Op::CausalConv(conv))?;
        self.l2_norm(qkv, 0, d, (d.key_dim as f32).powf(-0.5))?;
        self.l2_norm(qkv, keys, d, 1.0)?;
        let map = if self.is_gguf() { VectorMap::AsStored } else { VectorMap::NegExp };
        let decay = self.mapped(Part::DeltaDecay, layer, d.value_heads, map)?;
        let dt = self.vector(Part::DeltaDt, layer, d.value_heads)?;
        self.push(Op::DeltaGates(DeltaGates { a, b, decay, dt }))?;
        let y = self.buffer("delta", values);
        self.push(Op::DeltaRule(DeltaRule {
            qkv,
            a,
            b,
            y,
            state: sections.recurrence,
            layer: at,
            key_heads: d.key_heads,
            value_heads: d.value_heads,
            key_dim: d.key_dim,
            value_dim: d.value_dim,
            map: self.head_map(),
        }))?;
        let w = self.vector(Part::DeltaNorm, layer, d.value_dim)?;
        let eps = self.shape.rms_eps;
        self.push(Op::GatedNorm(GatedNorm { x: y, w, gate: z, y, eps, f: d.gate }))?;
        let w = self.matrix(Part::DeltaOut, layer, hidden, values, WeightKind::Matrix)?;
        self.linear(y, vec![LinearPart { w, bias: None, y: x }], true)
    }

    /// GGUF files of Qwen3.5 tile the value heads over the key heads, in every tensor that has
    /// them; everything else groups them.
    fn head_map(&self) -> HeadMap {
        let tiles = matches!(self.shape.family, Family::Qwen35 | Family::Qwen35Moe);
        if self.is_gguf() && tiles { HeadMap::Tiled } else { HeadMap::Grouped }
    }

    fn l2_norm(
        &mut self,
        x: BufferId,
        first: u32,
        d: &DeltaShape,
        scale: f32,
    ) -> Result<(), ModelError> {
        let (heads, dim) = (d.key_heads, d.key_dim);
        self.push(Op::L2NormHeads(L2NormHeads { x, first, heads, dim, scale, eps: L2_EPS }))
    }

    /// Weights of q|k|v, z, b and a: tensors of their own, or fused by key head.
    fn delta_projections(
        &mut self,
        layer: u32,
        d: &DeltaShape,
    ) -> Result<[WeightId; 4], ModelError> {
        let hidden = self.shape.hidden;
        let fused_family = self.shape.family == Family::Qwen3Next;
        let is_own = |writer: &Self, part| {
            if writer.implied.is_some() { !fused_family } else { writer.has(part, layer) }
        };
        let values = d.value_heads * d.value_dim;
        let [qkv, z] = if is_own(self, Part::DeltaQkv) || !fused_family {
            let mut own = |part, rows| self.matrix(part, layer, rows, hidden, WeightKind::Matrix);
            [own(Part::DeltaQkv, d.channels())?, own(Part::DeltaZ, values)?]
        } else {
            let qkv = self.order(Part::DeltaQkv, fused_qkv(d).into_iter());
            let z = self.order(Part::DeltaZ, fused_z(d).into_iter());
            let rows = d.channels() + values;
            let mut picked = |order| self.picked(Part::DeltaQkvz, layer, rows, hidden, order);
            [picked(qkv)?, picked(z)?]
        };
        let [b, a] = if is_own(self, Part::DeltaB) || !fused_family {
            let mut own =
                |part| self.matrix(part, layer, d.value_heads, hidden, WeightKind::Matrix);
            [own(Part::DeltaB)?, own(Part::DeltaA)?]
        } else {
            // Each key head has [b | a] of its value heads.
            let each = d.value_heads / d.key_heads;
            let rows = move |half: u32| {
                (0..d.value_heads).map(move |j| (2 * (j / each) + half) * each + j % each)
            };
            let b = self.order(Part::DeltaB, rows(0));
            let a = self.order(Part::DeltaA, rows(1));
            let rows = 2 * d.value_heads;
            let mut picked = |order| self.picked(Part::DeltaBa, layer, rows, hidden, order);
            [picked(b)?, picked(a)?]
        };
        Ok([qkv, z, b, a])
    }

    /// `[channels, kernel]` in the file, tap-major here.
    fn conv_weight(&mut self, layer: u32, d: &DeltaShape) -> Result<WeightId, ModelError> {
        let (channels, kernel) = (d.channels(), d.kernel);
        let taps = (0..kernel).flat_map(move |tap| (0..channels).map(move |c| c * kernel + tap));
        let order = self.order(Part::DeltaConv, taps);
        let (stored, width) = ([channels, kernel], channels * kernel);
        let spec = WeightSpec::new(String::new(), DType::F32, 1, width, WeightKind::Vector);
        self.weight(Part::DeltaConv, layer, &stored, WeightSpec { order, ..spec })
    }
}

/// Rows of one key head in a fused projection: [q | k | v of its value heads | z of them].
fn fused_head_rows(d: &DeltaShape) -> u32 {
    2 * d.key_dim + 2 * values_each(d)
}

fn values_each(d: &DeltaShape) -> u32 {
    d.value_heads / d.key_heads * d.value_dim
}

fn fused_qkv(d: &DeltaShape) -> Vec<u32> {
    let parts = [(0, d.key_dim), (d.key_dim, d.key_dim), (2 * d.key_dim, values_each(d))];
    let head_rows = fused_head_rows(d);
    let rows = |(first, count): (u32, u32)| {
        (0..d.key_heads).flat_map(move |head| (0..count).map(move |i| head * head_rows + first + i))
    };
    parts.into_iter().flat_map(rows).collect()
}

fn fused_z(d: &DeltaShape) -> Vec<u32> {
    let (first, each, head_rows) =
        (2 * d.key_dim + values_each(d), values_each(d), fused_head_rows(d));
    let row = |i: u32| i / each * head_rows + first + i % each;
    (0..d.value_heads * d.value_dim).map(row).collect()
}
