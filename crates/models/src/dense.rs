//! The program of the dense families: Llama, SmolLM2, Qwen2, Qwen2.5 and Qwen3.
//!
//! Source: MODELS section 2 of the design notes (transformers `LlamaForCausalLM`,
//! `Qwen2ForCausalLM`, `Qwen3ForCausalLM`, behaviour).

use ignis_formats::{Checkpoint, TensorInfo};
use ignis_ops::{
    BufferId, Embed, GatherRows, KvAppend, KvShape, Linear, LinearPart, Op, PagedAttention,
    Program, ProgramBuilder, RmsNorm, Rope, RowOrder, Rows, SwiGlu, WeightId, WeightKind,
    WeightSpec,
};

use crate::error::ModelError;
use crate::names::{Part, name};
use crate::shape::{Family, ModelShape};

/// Writes the program of `shape`, whose weights are named and shaped as in `checkpoint`.
pub(crate) fn program(checkpoint: &Checkpoint, shape: &ModelShape) -> Result<Program, ModelError> {
    let kv = KvShape { layers: shape.layers, kv_heads: shape.kv_heads, head_dim: shape.head_dim };
    let builder = ProgramBuilder::new(kv, shape.rope_table());
    let mut writer = Writer { checkpoint, shape, builder };

    let (hidden, ffn) = (shape.hidden, shape.ffn);
    let q_width = shape.heads * shape.head_dim;
    let kv_width = shape.kv_heads * shape.head_dim;
    let mut buffer = |name, rows, width| writer.builder.buffer(name, rows, width);
    let buffers = Buffers {
        x: buffer("x", Rows::Round, hidden),
        normed: buffer("normed", Rows::Round, hidden),
        q: buffer("q", Rows::Round, q_width),
        k: buffer("k", Rows::Round, kv_width),
        v: buffer("v", Rows::Round, kv_width),
        attended: buffer("attended", Rows::Round, q_width),
        gate: buffer("gate", Rows::Round, ffn),
        up: buffer("up", Rows::Round, ffn),
    };
    let last = buffer("last", Rows::Logits, hidden);
    let logits = buffer("logits", Rows::Logits, shape.vocab);

    let table_kind = if shape.tied { WeightKind::TableAndMatrix } else { WeightKind::Table };
    let table = writer.matrix(Part::Embedding, 0, shape.vocab, hidden, table_kind)?;
    writer.builder.push(Op::Embed(Embed { table, y: buffers.x }))?;
    for layer in 0..shape.layers {
        writer.attention(layer, &buffers)?;
        writer.mlp(layer, &buffers)?;
    }

    writer.builder.begin_head();
    writer.builder.push(Op::GatherRows(GatherRows { x: buffers.x, y: last }))?;
    writer.norm(Part::FinalNorm, 0, hidden, last, last)?;
    let head = if shape.tied {
        table
    } else {
        writer.matrix(Part::Head, 0, shape.vocab, hidden, WeightKind::Matrix)?
    };
    writer.builder.push(Op::Linear(Linear {
        x: last,
        parts: vec![LinearPart { w: head, bias: None, y: logits }],
        accumulate: false,
        precise: true,
    }))?;
    Ok(writer.builder.finish(logits))
}

/// The activations of a layer; every layer uses the same.
struct Buffers {
    /// Residual stream `[rows, hidden]`.
    x: BufferId,
    /// Its norm `[rows, hidden]`.
    normed: BufferId,
    /// `[rows, heads * head_dim]`
    q: BufferId,
    /// `[rows, kv_heads * head_dim]`
    k: BufferId,
    /// `[rows, kv_heads * head_dim]`
    v: BufferId,
    /// `[rows, heads * head_dim]`
    attended: BufferId,
    /// `[rows, ffn]`
    gate: BufferId,
    /// `[rows, ffn]`
    up: BufferId,
}

struct Writer<'a> {
    checkpoint: &'a Checkpoint,
    shape: &'a ModelShape,
    builder: ProgramBuilder,
}

impl Writer<'_> {
    /// x += o_proj(attention(rope(qkv(norm(x)))))
    fn attention(&mut self, layer: u32, b: &Buffers) -> Result<(), ModelError> {
        let shape = self.shape;
        let (hidden, head_dim) = (shape.hidden, shape.head_dim);
        let (q_width, kv_width) = (shape.heads * head_dim, shape.kv_heads * head_dim);

        self.norm(Part::AttentionNorm, layer, hidden, b.x, b.normed)?;
        let parts = vec![
            self.projection(Part::Q, Part::QBias, layer, q_width, hidden, b.q)?,
            self.projection(Part::K, Part::KBias, layer, kv_width, hidden, b.k)?,
            self.projection(Part::V, Part::VBias, layer, kv_width, hidden, b.v)?,
        ];
        self.linear(b.normed, parts, false)?;
        if shape.family == Family::Qwen3 {
            self.norm(Part::QNorm, layer, head_dim, b.q, b.q)?;
            self.norm(Part::KNorm, layer, head_dim, b.k, b.k)?;
        }
        self.builder.push(Op::Rope(Rope { x: b.q, head_dim }))?;
        self.builder.push(Op::Rope(Rope { x: b.k, head_dim }))?;
        self.builder.push(Op::KvAppend(KvAppend { layer, k: b.k, v: b.v }))?;
        let scale = 1.0 / (head_dim as f32).sqrt();
        let attention = PagedAttention { layer, q: b.q, o: b.attended, scale };
        self.builder.push(Op::PagedAttention(attention))?;
        let out = self.projection(Part::O, Part::OBias, layer, hidden, q_width, b.x)?;
        self.linear(b.attended, vec![out], true)
    }

    /// x += down(silu(gate(norm(x))) * up(norm(x)))
    fn mlp(&mut self, layer: u32, b: &Buffers) -> Result<(), ModelError> {
        let (hidden, ffn) = (self.shape.hidden, self.shape.ffn);
        self.norm(Part::MlpNorm, layer, hidden, b.x, b.normed)?;
        let matrix = WeightKind::Matrix;
        let gate = self.matrix(Part::Gate, layer, ffn, hidden, matrix)?;
        let up = self.matrix(Part::Up, layer, ffn, hidden, matrix)?;
        let down = self.matrix(Part::Down, layer, hidden, ffn, matrix)?;
        let parts = vec![
            LinearPart { w: gate, bias: None, y: b.gate },
            LinearPart { w: up, bias: None, y: b.up },
        ];
        self.linear(b.normed, parts, false)?;
        self.builder.push(Op::SwiGlu(SwiGlu { gate: b.gate, up: b.up, y: b.gate }))?;
        self.linear(b.gate, vec![LinearPart { w: down, bias: None, y: b.x }], true)
    }

    fn linear(
        &mut self,
        x: BufferId,
        parts: Vec<LinearPart>,
        accumulate: bool,
    ) -> Result<(), ModelError> {
        let op = Linear { x, parts, accumulate, precise: false };
        Ok(self.builder.push(Op::Linear(op))?)
    }

    fn norm(
        &mut self,
        part: Part,
        layer: u32,
        width: u32,
        x: BufferId,
        y: BufferId,
    ) -> Result<(), ModelError> {
        let w = self.vector(part, layer, width)?;
        let eps = self.shape.rms_eps;
        Ok(self.builder.push(Op::RmsNorm(RmsNorm { x, w, y, eps }))?)
    }

    /// A projection of the attention block, with its bias where the file has one.
    fn projection(
        &mut self,
        part: Part,
        bias: Part,
        layer: u32,
        rows: u32,
        cols: u32,
        y: BufferId,
    ) -> Result<LinearPart, ModelError> {
        let w = self.matrix(part, layer, rows, cols, WeightKind::Matrix)?;
        let bias_name = name(self.checkpoint, bias, layer);
        let has_bias = self.shape.attention_bias && self.checkpoint.tensor(&bias_name).is_some();
        let bias = if has_bias { Some(self.vector(bias, layer, rows)?) } else { None };
        Ok(LinearPart { w, bias, y })
    }

    fn matrix(
        &mut self,
        part: Part,
        layer: u32,
        rows: u32,
        cols: u32,
        kind: WeightKind,
    ) -> Result<WeightId, ModelError> {
        let expected = vec![u64::from(rows), u64::from(cols)];
        self.weight(part, layer, rows, cols, kind, expected)
    }

    fn vector(&mut self, part: Part, layer: u32, width: u32) -> Result<WeightId, ModelError> {
        self.weight(part, layer, 1, width, WeightKind::Vector, vec![u64::from(width)])
    }

    fn weight(
        &mut self,
        part: Part,
        layer: u32,
        rows: u32,
        cols: u32,
        kind: WeightKind,
        expected: Vec<u64>,
    ) -> Result<WeightId, ModelError> {
        let name = name(self.checkpoint, part, layer);
        let TensorInfo { dtype, shape: found, .. } = self.checkpoint.require(&name)?;
        if *found != expected {
            let found = found.clone();
            return Err(ModelError::TensorShape { tensor: name, found, expected });
        }
        let order = self.row_order(part);
        let spec = WeightSpec { name, dtype: *dtype, rows, cols, kind, order };
        Ok(self.builder.weight(spec))
    }

    /// llama GGUF files store q and k for adjacent-pair rotation; everything else stores halves.
    fn row_order(&self, part: Part) -> RowOrder {
        let paired = matches!(self.checkpoint, Checkpoint::Gguf(_))
            && self.shape.family == Family::Llama
            && matches!(part, Part::Q | Part::K | Part::QBias | Part::KBias);
        if paired {
            RowOrder::AdjacentPairs { head_dim: self.shape.head_dim }
        } else {
            RowOrder::AsStored
        }
    }
}
