//! The program of every text family: embedding, layers of a mixer and an MLP, head.
//!
//! Source: MODELS section 2 of the design notes (transformers `LlamaForCausalLM`,
//! `Qwen2ForCausalLM`, `Qwen3ForCausalLM`, `Qwen3MoeForCausalLM`, `Qwen3NextForCausalLM`,
//! `Qwen3_5ForCausalLM`, `Qwen3_5MoeForCausalLM`, behaviour).

use ignis_formats::Checkpoint;
use ignis_ops::{
    Embed, GatherRows, KvShape, Linear, LinearPart, Op, Program, ProgramBuilder, Rows,
    SectionFormat, SectionSpec, WeightKind,
};
use ignis_types::DType;

use crate::error::ModelError;
use crate::names::Part;
use crate::shape::ModelShape;
use crate::writer::{Sections, Writer};

/// Writes the program of `shape`, whose weights are named and shaped as in `checkpoint`; a
/// checkpoint without tensors is taken to have them all, in `implied`.
pub(crate) fn program(
    checkpoint: &Checkpoint,
    shape: &ModelShape,
    implied: Option<DType>,
) -> Result<Program, ModelError> {
    let attention_layers = shape.delta.as_ref().map_or(shape.layers, |d| d.attention_layers());
    let (kv_heads, head_dim) = (shape.kv_heads, shape.head_dim);
    let kv = KvShape { layers: attention_layers, kv_heads, head_dim };
    let mut builder = ProgramBuilder::new(kv, shape.rope_table());
    let sections = shape.delta.as_ref().map(|delta| {
        let layers = shape.layers - attention_layers;
        let recurrence = SectionSpec {
            name: "recurrence",
            layers,
            elements: delta.value_heads * delta.key_dim * delta.value_dim,
            format: SectionFormat::F32,
        };
        let taps = SectionSpec {
            name: "conv taps",
            layers,
            elements: (delta.kernel - 1) * delta.channels(),
            format: SectionFormat::AsKv,
        };
        Sections { recurrence: builder.section(recurrence), taps: builder.section(taps) }
    });
    let x = builder.buffer("x", Rows::Round, shape.hidden);
    let last = builder.buffer("last", Rows::Logits, shape.hidden);
    let logits = builder.buffer("logits", Rows::Logits, shape.vocab);
    let mut writer = Writer::new(checkpoint, shape, implied, builder, x, sections);

    let table_kind = if shape.tied { WeightKind::TableAndMatrix } else { WeightKind::Table };
    let table = writer.matrix(Part::Embedding, 0, shape.vocab, shape.hidden, table_kind)?;
    writer.push(Op::Embed(Embed { table, y: x }))?;
    let (mut attending, mut recurrent) = (0, 0);
    for layer in 0..shape.layers {
        match &shape.delta {
            Some(delta) if delta.layers[layer as usize] => {
                writer.delta(layer, recurrent, delta)?;
                recurrent += 1;
            }
            _ => {
                writer.attention(layer, attending)?;
                attending += 1;
            }
        }
        match &shape.experts {
            Some(experts) => writer.experts(layer, experts)?,
            None => writer.mlp(layer)?,
        }
    }

    writer.builder.begin_head();
    writer.push(Op::GatherRows(GatherRows { x, y: last }))?;
    writer.norm(Part::FinalNorm, 0, shape.hidden, last, last)?;
    let head = if shape.tied {
        table
    } else {
        writer.matrix(Part::Head, 0, shape.vocab, shape.hidden, WeightKind::Matrix)?
    };
    writer.push(Op::Linear(Linear {
        x: last,
        parts: vec![LinearPart { w: head, bias: None, y: logits }],
        accumulate: false,
        precise: true,
    }))?;
    Ok(writer.builder.finish(logits))
}
