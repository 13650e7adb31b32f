//! What follows the mixer of a layer: one MLP, or experts.

use ignis_ops::{
    AddScaled, BufferId, ExpertLinear, ExpertPart, ExpertSum, Linear, LinearPart, Op, Route,
    RowOrder, SwiGlu, WeightId, WeightKind, WeightSpec,
};
use ignis_types::DType;

use crate::error::ModelError;
use crate::names::{Part, expert_name};
use crate::shape::ExpertShape;
use crate::writer::Writer;

impl Writer<'_> {
    /// x += down(silu(gate(norm(x))) * up(norm(x)))
    pub(crate) fn mlp(&mut self, layer: u32) -> Result<(), ModelError> {
        let (x, hidden, ffn) = (self.x, self.shape.hidden, self.shape.ffn);
        let normed = self.normed(Part::MlpNorm, layer)?;
        let gated = self.gated(normed, [Part::Gate, Part::Up], layer, ffn, None)?;
        let w = self.matrix(Part::Down, layer, hidden, ffn, WeightKind::Matrix)?;
        self.linear(gated, vec![LinearPart { w, bias: None, y: x }], true)
    }

    /// silu(gate(normed)) * up(normed), in a new buffer; `scale` is one more product of the input.
    fn gated(
        &mut self,
        normed: BufferId,
        [gate_part, up_part]: [Part; 2],
        layer: u32,
        inner: u32,
        scale: Option<LinearPart>,
    ) -> Result<BufferId, ModelError> {
        let hidden = self.shape.hidden;
        let gate = self.buffer("gate", inner);
        let up = self.buffer("up", inner);
        let mut part = |part, y| -> Result<LinearPart, ModelError> {
            let w = self.matrix(part, layer, inner, hidden, WeightKind::Matrix)?;
            Ok(LinearPart { w, bias: None, y })
        };
        let mut parts = vec![part(gate_part, gate)?, part(up_part, up)?];
        parts.extend(scale);
        self.linear(normed, parts, false)?;
        self.push(Op::SwiGlu(SwiGlu { gate, up, y: gate }))?;
        Ok(gate)
    }

    /// x += sum of w_e expert_e(norm(x)) + sigmoid(scale(norm(x))) shared(norm(x))
    pub(crate) fn experts(&mut self, layer: u32, e: &ExpertShape) -> Result<(), ModelError> {
        let (x, hidden) = (self.x, self.shape.hidden);
        let normed = self.normed(Part::MlpNorm, layer)?;
        let scores = self.buffer("router scores", e.count);
        let ids = self.buffer("expert ids", e.used);
        let weights = self.buffer("expert weights", e.used);
        let w = self.matrix(Part::Router, layer, e.count, hidden, WeightKind::Matrix)?;
        let parts = vec![LinearPart { w, bias: None, y: scores }];
        let router = Linear { x: normed, parts, accumulate: false, precise: true };
        self.push(Op::Linear(router))?;
        let renormalise = e.renormalise;
        self.push(Op::Route(Route { scores, ids, weights, renormalise }))?;

        let gate = self.buffer("expert gate", e.used * e.inner);
        let up = self.buffer("expert up", e.used * e.inner);
        let out = self.buffer("expert out", e.used * hidden);
        let parts = vec![
            ExpertPart { w: self.expert_weight(Part::ExpertsGate, layer, e)?, y: gate },
            ExpertPart { w: self.expert_weight(Part::ExpertsUp, layer, e)?, y: up },
        ];
        self.push(Op::ExpertLinear(ExpertLinear { x: normed, ids, parts }))?;
        self.push(Op::SwiGlu(SwiGlu { gate, up, y: gate }))?;
        let w = self.expert_weight(Part::ExpertsDown, layer, e)?;
        let parts = vec![ExpertPart { w, y: out }];
        self.push(Op::ExpertLinear(ExpertLinear { x: gate, ids, parts }))?;
        self.push(Op::ExpertSum(ExpertSum { x: out, ids, weights, y: x }))?;
        if e.shared_inner > 0 { self.shared_expert(layer, normed, e.shared_inner) } else { Ok(()) }
    }

    fn shared_expert(
        &mut self,
        layer: u32,
        normed: BufferId,
        inner: u32,
    ) -> Result<(), ModelError> {
        let (x, hidden) = (self.x, self.shape.hidden);
        let scale = self.buffer("shared scale", 1);
        let w = self.matrix(Part::SharedScale, layer, 1, hidden, WeightKind::Matrix)?;
        let scaled = LinearPart { w, bias: None, y: scale };
        let parts = [Part::SharedGate, Part::SharedUp];
        let gated = self.gated(normed, parts, layer, inner, Some(scaled))?;
        let shared = self.buffer("shared", hidden);
        let w = self.matrix(Part::SharedDown, layer, hidden, inner, WeightKind::Matrix)?;
        self.linear(gated, vec![LinearPart { w, bias: None, y: shared }], false)?;
        self.push(Op::AddScaled(AddScaled { x: shared, scale, y: x }))
    }

    /// One matrix of every expert: a tensor for each, one for all, or half of one for all.
    fn expert_weight(
        &mut self,
        part: Part,
        layer: u32,
        e: &ExpertShape,
    ) -> Result<WeightId, ModelError> {
        let is_down = part == Part::ExpertsDown;
        let hidden = self.shape.hidden;
        let (rows, cols) = if is_down { (hidden, e.inner) } else { (e.inner, hidden) };
        let kind = WeightKind::Experts { count: e.count };
        let spec = WeightSpec::new(String::new(), DType::F32, e.count * rows, cols, kind);

        let name = |expert| expert_name(self.checkpoint, part, layer, expert);
        if !self.is_gguf() && self.checkpoint.tensor(&name(0)).is_some() {
            let mut names: Vec<String> = (0..e.count).map(name).collect();
            let dtype = self.dtype(&names[0], &[rows, cols])?;
            for name in &names {
                let found = self.dtype(name, &[rows, cols])?;
                if found != dtype {
                    return Err(ModelError::ValueOutOfRange {
                        key: "dtype of an expert",
                        found: format!("{found} in {name:?}"),
                        expected: format!("{dtype}, as the first"),
                    });
                }
            }
            let joined = names.split_off(1);
            let name = names.remove(0);
            return Ok(self.builder.weight(WeightSpec { name, joined, dtype, ..spec }));
        }
        let has_own = self.is_gguf() && self.has(part, layer);
        if is_down || has_own {
            return self.weight(part, layer, &[e.count, rows, cols], spec);
        }
        let (count, half) = (e.count, u32::from(part == Part::ExpertsUp));
        let picks =
            (0..count).flat_map(move |i| (0..rows).map(move |row| (2 * i + half) * rows + row));
        let order: RowOrder = self.order(part, picks);
        let stored = [count, 2 * rows, cols];
        self.weight(Part::ExpertsGateUp, layer, &stored, WeightSpec { order, ..spec })
    }
}
