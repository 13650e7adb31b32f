//! Attention layers, plain and gated.

use ignis_ops::{
    Gate, KvAppend, LinearPart, Op, PagedAttention, Rope, RowOrder, WeightId, WeightKind,
    WeightSpec,
};
use ignis_types::DType;

use crate::error::ModelError;
use crate::family::Family;
use crate::names::Part;
use crate::writer::Writer;

impl Writer<'_> {
    /// x += o_proj(attention(rope(qkv(norm(x))))), in hybrid models times sigmoid(gate) before the
    /// last product. `at` counts the layers that attend.
    pub(crate) fn attention(&mut self, layer: u32, at: u32) -> Result<(), ModelError> {
        let shape = self.shape;
        let (x, hidden, head_dim) = (self.x, shape.hidden, shape.head_dim);
        let (q_width, kv_width) = (shape.heads * head_dim, shape.kv_heads * head_dim);
        let normed = self.normed(Part::AttentionNorm, layer)?;
        let q = self.buffer("q", q_width);
        let k = self.buffer("k", kv_width);
        let v = self.buffer("v", kv_width);
        let gate = shape.family.is_hybrid().then(|| self.buffer("attention gate", q_width));

        let mut parts = match gate {
            None => vec![self.projection(Part::Q, Part::QBias, layer, q_width, hidden)?.of(q)],
            Some(gate) => self
                .gated_queries(layer)?
                .into_iter()
                .zip([q, gate])
                .map(|(w, y)| LinearPart { w, bias: None, y })
                .collect(),
        };
        parts.push(self.projection(Part::K, Part::KBias, layer, kv_width, hidden)?.of(k));
        parts.push(self.projection(Part::V, Part::VBias, layer, kv_width, hidden)?.of(v));
        self.linear(normed, parts, false)?;
        if shape.family.has_head_norms() {
            self.norm(Part::QNorm, layer, head_dim, q, q)?;
            self.norm(Part::KNorm, layer, head_dim, k, k)?;
        }
        self.push(Op::Rope(Rope { x: q, head_dim }))?;
        self.push(Op::Rope(Rope { x: k, head_dim }))?;
        self.push(Op::KvAppend(KvAppend { layer: at, k, v }))?;
        let attended = self.buffer("attended", q_width);
        let scale = 1.0 / (head_dim as f32).sqrt();
        self.push(Op::PagedAttention(PagedAttention { layer: at, q, o: attended, scale }))?;
        if let Some(gate) = gate {
            self.push(Op::Gate(Gate { gate, y: attended }))?;
        }
        let out = self.projection(Part::O, Part::OBias, layer, hidden, q_width)?.of(x);
        self.linear(attended, vec![out], true)
    }

    /// The two weights in q_proj, whose rows are [q | gate] for each head.
    fn gated_queries(&mut self, layer: u32) -> Result<[WeightId; 2], ModelError> {
        let shape = self.shape;
        let (heads, dim) = (shape.heads, shape.head_dim);
        let rows = move |half: u32| {
            (0..heads).flat_map(move |head| (0..dim).map(move |d| (2 * head + half) * dim + d))
        };
        let queries = self.order(Part::Q, rows(0));
        let gates = self.order(Part::QBias, rows(1));
        let mut picked = |order| self.picked(Part::Q, layer, 2 * heads * dim, shape.hidden, order);
        Ok([picked(queries)?, picked(gates)?])
    }

    /// A projection of the attention block, with its bias where the checkpoint has one.
    fn projection(
        &mut self,
        part: Part,
        bias: Part,
        layer: u32,
        rows: u32,
        cols: u32,
    ) -> Result<Projection, ModelError> {
        let order = self.row_order(part, rows);
        let spec = WeightSpec::new(String::new(), DType::F32, rows, cols, WeightKind::Matrix);
        let spec = WeightSpec { order: order.clone(), ..spec };
        let w = self.weight(part, layer, &[rows, cols], spec)?;
        let is_implied = self.implied.is_some() && bias != Part::OBias;
        let has_bias = self.shape.attention_bias && (is_implied || self.has(bias, layer));
        let bias = if has_bias {
            let spec = WeightSpec::new(String::new(), DType::F32, 1, rows, WeightKind::Vector);
            Some(self.weight(bias, layer, &[rows], WeightSpec { order, ..spec })?)
        } else {
            None
        };
        Ok(Projection { w, bias })
    }

    /// llama GGUF files store q and k for adjacent-pair rotation; everything else stores halves.
    fn row_order(&mut self, part: Part, rows: u32) -> RowOrder {
        let llama_file = self.is_gguf() && self.shape.family == Family::Llama;
        if llama_file && matches!(part, Part::Q | Part::K) {
            RowOrder::adjacent_pairs(rows, self.shape.head_dim)
        } else {
            RowOrder::AsStored
        }
    }
}

/// A matrix and its bias.
struct Projection {
    w: WeightId,
    bias: Option<WeightId>,
}

impl Projection {
    fn of(self, y: ignis_ops::BufferId) -> LinearPart {
        LinearPart { w: self.w, bias: self.bias, y }
    }
}
