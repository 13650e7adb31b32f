//! The shape of a model in a `transformers` folder.

use ignis_formats::{Checkpoint, ConfigJson};
use ignis_ops::RopeScaling;

use crate::error::ModelError;
use crate::shape::{Family, ModelShape};

/// Reads `config.json`.
pub(crate) fn read(checkpoint: &Checkpoint, config: &ConfigJson) -> Result<ModelShape, ModelError> {
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
        .unwrap_or(1.0);
    let theta = config
        .opt_f64("rope_parameters.rope_theta")?
        .or(config.opt_f64("rope_theta")?)
        .unwrap_or(10_000.0);
    let context_trained = size("max_position_embeddings")?;

    Ok(ModelShape {
        family,
        name: config.opt_str("_name_or_path")?.unwrap_or_default().to_owned(),
        layers: size("num_hidden_layers")?,
        hidden,
        ffn: size("intermediate_size")?,
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
        tied: config.opt_bool("tie_word_embeddings")?.unwrap_or(false)
            || checkpoint.tensor("lm_head.weight").is_none(),
    })
}

fn narrow(key: &'static str, value: u64) -> Result<u32, ModelError> {
    u32::try_from(value).map_err(|_| ModelError::ValueOutOfRange {
        key,
        found: value.to_string(),
        expected: "a 32-bit number".into(),
    })
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
