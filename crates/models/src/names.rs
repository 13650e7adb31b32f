//! What each weight of a dense model is called in each file format.

use ignis_formats::Checkpoint;

/// The parts of one layer, and of the model around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Embedding,
    FinalNorm,
    Head,
    AttentionNorm,
    Q,
    K,
    V,
    QBias,
    KBias,
    VBias,
    OBias,
    QNorm,
    KNorm,
    O,
    MlpNorm,
    Gate,
    Up,
    Down,
}

/// Name of `part` in `layer`, in the format of `checkpoint`.
pub(crate) fn name(checkpoint: &Checkpoint, part: Part, layer: u32) -> String {
    match checkpoint {
        Checkpoint::Gguf(_) => gguf(part, layer),
        Checkpoint::Safetensors { .. } => safetensors(part, layer),
    }
}

fn gguf(part: Part, layer: u32) -> String {
    let in_layer = match part {
        Part::Embedding => return "token_embd.weight".into(),
        Part::FinalNorm => return "output_norm.weight".into(),
        Part::Head => return "output.weight".into(),
        Part::AttentionNorm => "attn_norm.weight",
        Part::Q => "attn_q.weight",
        Part::K => "attn_k.weight",
        Part::V => "attn_v.weight",
        Part::QBias => "attn_q.bias",
        Part::KBias => "attn_k.bias",
        Part::VBias => "attn_v.bias",
        Part::OBias => "attn_output.bias",
        Part::QNorm => "attn_q_norm.weight",
        Part::KNorm => "attn_k_norm.weight",
        Part::O => "attn_output.weight",
        Part::MlpNorm => "ffn_norm.weight",
        Part::Gate => "ffn_gate.weight",
        Part::Up => "ffn_up.weight",
        Part::Down => "ffn_down.weight",
    };
    format!("blk.{layer}.{in_layer}")
}

fn safetensors(part: Part, layer: u32) -> String {
    let in_layer = match part {
        Part::Embedding => return "model.embed_tokens.weight".into(),
        Part::FinalNorm => return "model.norm.weight".into(),
        Part::Head => return "lm_head.weight".into(),
        Part::AttentionNorm => "input_layernorm.weight",
        Part::Q => "self_attn.q_proj.weight",
        Part::K => "self_attn.k_proj.weight",
        Part::V => "self_attn.v_proj.weight",
        Part::QBias => "self_attn.q_proj.bias",
        Part::KBias => "self_attn.k_proj.bias",
        Part::VBias => "self_attn.v_proj.bias",
        Part::OBias => "self_attn.o_proj.bias",
        Part::QNorm => "self_attn.q_norm.weight",
        Part::KNorm => "self_attn.k_norm.weight",
        Part::O => "self_attn.o_proj.weight",
        Part::MlpNorm => "post_attention_layernorm.weight",
        Part::Gate => "mlp.gate_proj.weight",
        Part::Up => "mlp.up_proj.weight",
        Part::Down => "mlp.down_proj.weight",
    };
    format!("model.layers.{layer}.{in_layer}")
}
