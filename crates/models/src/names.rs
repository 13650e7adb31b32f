//! What each weight is called in each file format.

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
    DeltaQkv,
    DeltaZ,
    DeltaA,
    DeltaB,
    /// q, k, v and z of each key head together.
    DeltaQkvz,
    /// b and a of each key head together.
    DeltaBa,
    DeltaConv,
    DeltaDecay,
    DeltaDt,
    DeltaNorm,
    DeltaOut,
    Router,
    /// All experts in one tensor; gate and up may share it.
    ExpertsGate,
    ExpertsUp,
    ExpertsDown,
    ExpertsGateUp,
    SharedGate,
    SharedUp,
    SharedDown,
    SharedScale,
}

/// Name of `part` in `layer`, in the format of `checkpoint`.
pub(crate) fn name(checkpoint: &Checkpoint, part: Part, layer: u32, hybrid: bool) -> String {
    match checkpoint {
        Checkpoint::Gguf(_) => gguf(part, layer, hybrid),
        _ => safetensors(prefix(checkpoint), part, layer),
    }
}

/// Name of one expert's matrix, in a folder that has a tensor for each.
pub(crate) fn expert_name(checkpoint: &Checkpoint, part: Part, layer: u32, expert: u32) -> String {
    let matrix = match part {
        Part::ExpertsGate => "gate_proj",
        Part::ExpertsUp => "up_proj",
        _ => "down_proj",
    };
    let prefix = prefix(checkpoint);
    format!("{prefix}layers.{layer}.mlp.experts.{expert}.{matrix}.weight")
}

/// Multimodal checkpoints keep the language model in a room of its own.
fn prefix(checkpoint: &Checkpoint) -> &'static str {
    const INNER: &str = "model.language_model.";
    let has_room = checkpoint.tensor("model.language_model.embed_tokens.weight").is_some();
    if has_room { INNER } else { "model." }
}

fn gguf(part: Part, layer: u32, hybrid: bool) -> String {
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
        Part::MlpNorm if hybrid => "post_attention_norm.weight",
        Part::MlpNorm => "ffn_norm.weight",
        Part::Gate => "ffn_gate.weight",
        Part::Up => "ffn_up.weight",
        Part::Down => "ffn_down.weight",
        Part::DeltaQkv => "attn_qkv.weight",
        Part::DeltaZ => "attn_gate.weight",
        Part::DeltaA => "ssm_alpha.weight",
        Part::DeltaB => "ssm_beta.weight",
        Part::DeltaQkvz => "ssm_in.weight",
        Part::DeltaBa => "ssm_ba.weight",
        Part::DeltaConv => "ssm_conv1d.weight",
        Part::DeltaDecay => "ssm_a",
        Part::DeltaDt => "ssm_dt.bias",
        Part::DeltaNorm => "ssm_norm.weight",
        Part::DeltaOut => "ssm_out.weight",
        Part::Router => "ffn_gate_inp.weight",
        Part::ExpertsGate => "ffn_gate_exps.weight",
        Part::ExpertsUp => "ffn_up_exps.weight",
        Part::ExpertsDown => "ffn_down_exps.weight",
        Part::ExpertsGateUp => "ffn_gate_up_exps.weight",
        Part::SharedGate => "ffn_gate_shexp.weight",
        Part::SharedUp => "ffn_up_shexp.weight",
        Part::SharedDown => "ffn_down_shexp.weight",
        Part::SharedScale => "ffn_gate_inp_shexp.weight",
    };
    format!("blk.{layer}.{in_layer}")
}

fn safetensors(prefix: &str, part: Part, layer: u32) -> String {
    let in_layer = match part {
        Part::Embedding => return format!("{prefix}embed_tokens.weight"),
        Part::FinalNorm => return format!("{prefix}norm.weight"),
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
        Part::DeltaQkv => "linear_attn.in_proj_qkv.weight",
        Part::DeltaZ => "linear_attn.in_proj_z.weight",
        Part::DeltaA => "linear_attn.in_proj_a.weight",
        Part::DeltaB => "linear_attn.in_proj_b.weight",
        Part::DeltaQkvz => "linear_attn.in_proj_qkvz.weight",
        Part::DeltaBa => "linear_attn.in_proj_ba.weight",
        Part::DeltaConv => "linear_attn.conv1d.weight",
        Part::DeltaDecay => "linear_attn.A_log",
        Part::DeltaDt => "linear_attn.dt_bias",
        Part::DeltaNorm => "linear_attn.norm.weight",
        Part::DeltaOut => "linear_attn.out_proj.weight",
        Part::Router => "mlp.gate.weight",
        // One by one these have names of their own; fused, gate and up share a tensor.
        Part::ExpertsGate | Part::ExpertsUp | Part::ExpertsGateUp => "mlp.experts.gate_up_proj",
        Part::ExpertsDown => "mlp.experts.down_proj",
        Part::SharedGate => "mlp.shared_expert.gate_proj.weight",
        Part::SharedUp => "mlp.shared_expert.up_proj.weight",
        Part::SharedDown => "mlp.shared_expert.down_proj.weight",
        Part::SharedScale => "mlp.shared_expert_gate.weight",
    };
    format!("{prefix}layers.{layer}.{in_layer}")
}
