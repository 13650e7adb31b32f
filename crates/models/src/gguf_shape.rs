//! The shape of a model in a GGUF file.

use ignis_formats::{Checkpoint, Gguf};
use ignis_ops::{GateFunction, RopeScaling};

use crate::error::ModelError;
use crate::family::Family;
use crate::shape::{DeltaShape, ExpertShape, ModelShape};

/// Reads `general.architecture` and the keys under it.
pub(crate) fn read(checkpoint: &Checkpoint, gguf: &Gguf) -> Result<ModelShape, ModelError> {
    let arch = gguf.get_str("general.architecture")?;
    let family = Family::of(arch).ok_or_else(|| ModelError::ArchitectureUnsupported {
        found: arch.to_owned(),
        supported: Family::SUPPORTED,
    })?;
    let key = |name: &str| format!("{arch}.{name}");
    let size =
        |name: &'static str| -> Result<u32, ModelError> { narrow(name, gguf.get_u64(&key(name))?) };
    let size_or = |name: &'static str, default: u32| -> Result<u32, ModelError> {
        gguf.opt_u64(&key(name))?.map_or(Ok(default), |n| narrow(name, n))
    };

    let hidden = size("embedding_length")?;
    let heads = size("attention.head_count")?;
    let kv_heads = size_or("attention.head_count_kv", heads)?;
    let head_dim = match gguf.opt_u64(&key("attention.key_length"))? {
        Some(n) => narrow("attention.key_length", n)?,
        None => hidden.checked_div(heads).unwrap_or(0),
    };
    // Draft layers lie behind the model's own.
    let drafts = size_or("nextn_predict_layers", 0)?;
    let layers = size("block_count")?.saturating_sub(drafts);
    let delta = if family.is_hybrid() { Some(delta(layers, &size, &size_or)?) } else { None };
    let experts = if family.has_experts() {
        let norm = gguf.opt_bool(&key("expert_weights_norm"))?.unwrap_or(true);
        Some(ExpertShape {
            count: size("expert_count")?,
            used: size("expert_used_count")?,
            inner: size("expert_feed_forward_length")?,
            shared_inner: match family {
                Family::Qwen3Moe => 0,
                _ => size("expert_shared_feed_forward_length")?,
            },
            renormalise: norm,
        })
    } else {
        None
    };
    let table = checkpoint.require("token_embd.weight")?;
    let vocab = narrow("token_embd.weight rows", table.shape.first().copied().unwrap_or(0))?;

    Ok(ModelShape {
        family,
        name: gguf.opt_str("general.name")?.unwrap_or_default().to_owned(),
        layers,
        hidden,
        ffn: match &experts {
            Some(experts) => experts.inner,
            None => size("feed_forward_length")?,
        },
        heads,
        kv_heads,
        head_dim,
        vocab,
        context_trained: size("context_length")?,
        rms_eps: gguf.get_f64(&key("attention.layer_norm_rms_epsilon"))? as f32,
        rope_theta: gguf.opt_f64(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        rotary_dim: size_or("rope.dimension_count", head_dim)?,
        rope_scaling: rope_scaling(gguf, &key)?,
        rope_factors: rope_factors(checkpoint)?,
        attention_bias: true,
        tied: checkpoint.tensor("output.weight").is_none(),
        delta,
        experts,
    })
}

/// Recurrent layers: every layer but each `full_attention_interval`-th.
fn delta(
    layers: u32,
    size: &dyn Fn(&'static str) -> Result<u32, ModelError>,
    size_or: &dyn Fn(&'static str, u32) -> Result<u32, ModelError>,
) -> Result<DeltaShape, ModelError> {
    let every = size_or("full_attention_interval", 4)?.max(1);
    let value_heads = size("ssm.time_step_rank")?;
    Ok(DeltaShape {
        layers: (1..=layers).map(|nth| nth % every != 0).collect(),
        key_heads: size("ssm.group_count")?,
        value_heads,
        key_dim: size("ssm.state_size")?,
        value_dim: size("ssm.inner_size")?.checked_div(value_heads).unwrap_or(0),
        kernel: size("ssm.conv_kernel")?,
        gate: GateFunction::Silu,
    })
}

fn narrow(key: &'static str, value: u64) -> Result<u32, ModelError> {
    u32::try_from(value).map_err(|_| ModelError::ValueOutOfRange {
        key,
        found: value.to_string(),
        expected: "a 32-bit number".into(),
    })
}

fn rope_scaling(gguf: &Gguf, key: &dyn Fn(&str) -> String) -> Result<RopeScaling, ModelError> {
    let kind = gguf.opt_str(&key("rope.scaling.type"))?;
    let legacy = gguf.opt_f64(&key("rope.scale_linear"))?.filter(|&factor| factor != 1.0);
    let factor = gguf.opt_f64(&key("rope.scaling.factor"))?.or(legacy);
    match (kind, factor) {
        (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
        (None | Some("none" | "linear"), _) => Ok(RopeScaling::None),
        (Some("yarn"), Some(factor)) => Ok(RopeScaling::Yarn {
            factor,
            original_context: gguf.get_f64(&key("rope.scaling.original_context_length"))?,
            beta_fast: gguf.opt_f64(&key("rope.scaling.yarn_beta_fast"))?.unwrap_or(32.0),
            beta_slow: gguf.opt_f64(&key("rope.scaling.yarn_beta_slow"))?.unwrap_or(1.0),
            attention_factor: None,
            truncate: true,
        }),
        (Some(kind), factor) => Err(ModelError::ValueOutOfRange {
            key: "rope.scaling.type",
            found: format!("{kind:?} with factor {factor:?}"),
            expected: "none, linear or yarn, with a factor".into(),
        }),
    }
}

/// `rope_freqs.weight`: the Llama 3 stretch as a divisor of each frequency. Headers without data
/// plan the same bytes, so they go without.
fn rope_factors(checkpoint: &Checkpoint) -> Result<Vec<f32>, ModelError> {
    let Some(tensor) = checkpoint.tensor("rope_freqs.weight") else {
        return Ok(Vec::new());
    };
    match checkpoint.data(tensor) {
        Ok(bytes) => Ok(bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()),
        Err(ignis_formats::FormatError::HeaderOnly { .. }) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
