//! The shape of a model in a `transformers` folder.

use ignis_formats::{Checkpoint, ConfigJson};
use ignis_ops::{GateFunction, RopeScaling};
use ignis_types::DType;

use crate::error::ModelError;
use crate::family::Family;
use crate::shape::{DeltaShape, ExpertShape, ModelShape};

/// Reads `config.json`.
pub(crate) fn read(checkpoint: &Checkpoint, config: &ConfigJson) -> Result<ModelShape, ModelError> {
    let whole = config;
    let text = config.within("text_config");
    let config = text.as_ref().unwrap_or(config);
    let model_type = config.get_str("model_type")?;
    let family = Family::of(model_type).ok_or_else(|| ModelError::ArchitectureUnsupported {
        found: model_type.to_owned(),
        supported: Family::SUPPORTED,
    })?;
    let size = |key: &'static str| -> Result<u32, ModelError> { narrow(key, config.get_u64(key)?) };
    let size_or = |key: &'static str, default: u32| -> Result<u32, ModelError> {
        config.opt_u64(key)?.map_or(Ok(default), |n| narrow(key, n))
    };
    refuse_window(config)?;

    let hidden = size("hidden_size")?;
    let heads = size("num_attention_heads")?;
    let head_dim = size_or("head_dim", hidden.checked_div(heads).unwrap_or(0))?;
    let rotary = config
        .opt_f64("rope_parameters.partial_rotary_factor")?
        .or(config.opt_f64("partial_rotary_factor")?)
        .unwrap_or(if family.is_hybrid() { 0.25 } else { 1.0 });
    let theta = config
        .opt_f64("rope_parameters.rope_theta")?
        .or(config.opt_f64("rope_theta")?)
        .unwrap_or(10_000.0);
    let layers = size("num_hidden_layers")?;
    let experts = if family.has_experts() { Some(experts(config, family)?) } else { None };
    let delta = if family.is_hybrid() { Some(delta(config, layers)?) } else { None };
    let is_tied =
        whole.opt_bool("tie_word_embeddings")?.or(config.opt_bool("tie_word_embeddings")?);
    let has_no_head = !matches!(checkpoint, Checkpoint::Config(_))
        && checkpoint.tensor("lm_head.weight").is_none();
    let context_trained = size("max_position_embeddings")?;

    Ok(ModelShape {
        family,
        name: config.opt_str("_name_or_path")?.unwrap_or_default().to_owned(),
        layers,
        hidden,
        ffn: match &experts {
            Some(experts) => experts.inner,
            None => size("intermediate_size")?,
        },
        heads,
        kv_heads: size_or("num_key_value_heads", heads)?,
        head_dim,
        vocab: size("vocab_size")?,
        context_trained,
        rms_eps: config.get_f64("rms_norm_eps")? as f32,
        rope_theta: theta,
        rotary_dim: (f64::from(head_dim) * rotary) as u32,
        rope_scaling: rope_scaling(config, context_trained)?,
        rope_factors: Vec::new(),
        attention_bias: family == Family::Qwen2
            || config.opt_bool("attention_bias")?.unwrap_or(false),
        tied: is_tied.unwrap_or(false) || has_no_head,
        delta,
        experts,
    })
}

fn narrow(key: &'static str, value: u64) -> Result<u32, ModelError> {
    u32::try_from(value).map_err(|_| ModelError::ValueOutOfRange {
        key,
        found: value.to_string(),
        expected: "a 32-bit number".into(),
    })
}

/// The dtype of every tensor of a model of which only `config.json` is there.
pub(crate) fn implied_dtype(config: &ConfigJson) -> Result<DType, ModelError> {
    let refuse = |key, found: String, expected: &str| {
        Err(ModelError::ValueOutOfRange { key, found, expected: expected.into() })
    };
    if config.get("quantization_config").is_some_and(|value| !value.is_null()) {
        let expected = "none, or the headers of the safetensors files beside config.json";
        return refuse("quantization_config", "set".into(), expected);
    }
    for key in ["dtype", "torch_dtype", "text_config.dtype", "text_config.torch_dtype"] {
        match config.opt_str(key)? {
            Some("bfloat16") => return Ok(DType::BF16),
            Some("float16") => return Ok(DType::F16),
            Some("float32") => return Ok(DType::F32),
            Some(other) => {
                return refuse("dtype", format!("{other:?}"), "bfloat16, float16 or float32");
            }
            None => {}
        }
    }
    Ok(DType::BF16)
}

/// Recurrent layers: `layer_types`, or every layer but each `full_attention_interval`-th.
fn delta(config: &ConfigJson, layers: u32) -> Result<DeltaShape, ModelError> {
    let size = |key: &'static str| -> Result<u32, ModelError> { narrow(key, config.get_u64(key)?) };
    let recurrent = match config.opt_array("layer_types")? {
        Some(types) => {
            let kinds = types.iter().map(|kind| match kind.as_str() {
                Some("linear_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(ModelError::ValueOutOfRange {
                    key: "layer_types",
                    found: kind.to_string(),
                    expected: "linear_attention or full_attention".into(),
                }),
            });
            kinds.collect::<Result<_, _>>()?
        }
        None => {
            let every = config.opt_u64("full_attention_interval")?.unwrap_or(4).max(1);
            (1..=u64::from(layers)).map(|nth| nth % every != 0).collect()
        }
    };
    if config.opt_bool("attn_output_gate")? == Some(false) {
        return Err(ModelError::ValueOutOfRange {
            key: "attn_output_gate",
            found: "false".into(),
            expected: "true".into(),
        });
    }
    let gate = match config.opt_str("output_gate_type")? {
        None | Some("swish" | "silu") => GateFunction::Silu,
        Some("sigmoid") => GateFunction::Sigmoid,
        Some(other) => {
            return Err(ModelError::ValueOutOfRange {
                key: "output_gate_type",
                found: format!("{other:?}"),
                expected: "swish or sigmoid".into(),
            });
        }
    };
    Ok(DeltaShape {
        layers: recurrent,
        key_heads: size("linear_num_key_heads")?,
        value_heads: size("linear_num_value_heads")?,
        key_dim: size("linear_key_head_dim")?,
        value_dim: size("linear_value_head_dim")?,
        kernel: size("linear_conv_kernel_dim")?,
        gate,
    })
}

/// Experts of every layer; a mixture of layers with and without has no program.
fn experts(config: &ConfigJson, family: Family) -> Result<ExpertShape, ModelError> {
    let size = |key: &'static str| -> Result<u32, ModelError> { narrow(key, config.get_u64(key)?) };
    let dense_layers = config.opt_array("mlp_only_layers")?.is_some_and(|list| !list.is_empty());
    if dense_layers || config.opt_u64("decoder_sparse_step")?.unwrap_or(1) != 1 {
        return Err(ModelError::ValueOutOfRange {
            key: "mlp_only_layers or decoder_sparse_step",
            found: "layers without experts".into(),
            expected: "experts in every layer".into(),
        });
    }
    let count = match config.opt_u64("num_experts")? {
        Some(count) => narrow("num_experts", count)?,
        None => size("num_local_experts")?,
    };
    let shared_inner =
        if family == Family::Qwen3Moe { 0 } else { size("shared_expert_intermediate_size")? };
    let renormalise = match family {
        Family::Qwen35Moe => true,
        other => config.opt_bool("norm_topk_prob")?.unwrap_or(other == Family::Qwen3Next),
    };
    let (used, inner) = (size("num_experts_per_tok")?, size("moe_intermediate_size")?);
    Ok(ExpertShape { count, used, inner, shared_inner, renormalise })
}

/// Sliding-window attention has no op yet; running such a model without it would be wrong text.
fn refuse_window(config: &ConfigJson) -> Result<(), ModelError> {
    let windowed = config.opt_bool("use_sliding_window")?.unwrap_or(true)
        && config.opt_u64("sliding_window")?.is_some();
    if !windowed {
        return Ok(());
    }
    Err(ModelError::ValueOutOfRange {
        key: "sliding_window",
        found: "set".into(),
        expected: "null: sliding-window attention is not supported".into(),
    })
}

/// `rope_parameters` (transformers 5) or `rope_scaling` (before).
fn rope_scaling(config: &ConfigJson, context: u32) -> Result<RopeScaling, ModelError> {
    let at =
        |field: &str| ["rope_parameters", "rope_scaling"].map(|group| format!("{group}.{field}"));
    let number = |field: &str| -> Result<Option<f64>, ModelError> {
        let [new, old] = at(field);
        Ok(config.opt_f64(&new)?.or(config.opt_f64(&old)?))
    };
    let text = |field: &str| -> Result<Option<&str>, ModelError> {
        let [new, old] = at(field);
        Ok(config.opt_str(&new)?.or(config.opt_str(&old)?))
    };
    let kind = text("rope_type")?.or(text("type")?).unwrap_or("default");
    let needed = |field: &'static str| -> Result<f64, ModelError> {
        number(field)?.ok_or_else(|| ModelError::ValueOutOfRange {
            key: "rope_parameters",
            found: format!("{kind} without {field}"),
            expected: format!("a number in {field}"),
        })
    };
    let original =
        number("original_max_position_embeddings")?.unwrap_or_else(|| f64::from(context));
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: needed("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_context: original,
        }),
        "yarn" => {
            let truncate = config.opt_bool("rope_parameters.truncate")?.unwrap_or(true);
            Ok(RopeScaling::Yarn {
                factor: needed("factor")?,
                original_context: original,
                beta_fast: number("beta_fast")?.unwrap_or(32.0),
                beta_slow: number("beta_slow")?.unwrap_or(1.0),
                attention_factor: number("attention_factor")?,
                truncate,
            })
        }
        other => Err(ModelError::ValueOutOfRange {
            key: "rope_type",
            found: format!("{other:?}"),
            expected: "default, linear, llama3 or yarn".into(),
        }),
    }
}
