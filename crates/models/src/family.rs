//! Families of architectures: what sets their programs apart.

/// A family of architectures that share a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama, SmolLM2, Mistral without a window.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: norms on each head of q and k.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Gated DeltaNet in three layers of four, gated attention in the fourth, experts.
    Qwen3Next,
    /// As Qwen3-Next, without experts and with projections of their own.
    Qwen35,
    /// As Qwen3.5, with experts.
    Qwen35Moe,
}

impl Family {
    /// Names that a file may use.
    pub const SUPPORTED: &'static str =
        "llama, qwen2, qwen3, qwen3_moe, qwen3_next, qwen3_5, qwen3_5_moe";

    /// The family of an architecture's name in a file.
    pub fn of(name: &str) -> Option<Family> {
        match name {
            "llama" => Some(Family::Llama),
            "qwen2" => Some(Family::Qwen2),
            "qwen3" => Some(Family::Qwen3),
            "qwen3_moe" | "qwen3moe" => Some(Family::Qwen3Moe),
            "qwen3_next" | "qwen3next" => Some(Family::Qwen3Next),
            "qwen3_5" | "qwen3_5_text" | "qwen35" => Some(Family::Qwen35),
            "qwen3_5_moe" | "qwen3_5_moe_text" | "qwen35moe" => Some(Family::Qwen35Moe),
            _ => None,
        }
    }

    /// The name in a `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Qwen3Moe => "qwen3_moe",
            Family::Qwen3Next => "qwen3_next",
            Family::Qwen35 => "qwen3_5",
            Family::Qwen35Moe => "qwen3_5_moe",
        }
    }

    /// Some layers are recurrent, and the others gate what attention gives.
    pub fn is_hybrid(self) -> bool {
        matches!(self, Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
    }

    /// Layers have experts instead of one MLP.
    pub fn has_experts(self) -> bool {
        matches!(self, Family::Qwen3Moe | Family::Qwen3Next | Family::Qwen35Moe)
    }

    /// Each head of q and k has a norm.
    pub fn has_head_norms(self) -> bool {
        !matches!(self, Family::Llama | Family::Qwen2)
    }
}
