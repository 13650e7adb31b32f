"""Geometries of real models, as their `config.json` gives them: what `--synthetic` fills at random.

Figures are those that the makers published with the weights.
"""

from __future__ import annotations

import json
from typing import Any

from ignis._native import RandomModel
from ignis.config.load import unknown_name
from ignis.errors import ConfigError
from ignis.plan.core import native_errors

FORMATS = ("bf16", "q8_0", "q4_k")

_QWEN3 = {
    "model_type": "qwen3",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "attention_bias": False,
    "hidden_act": "silu",
    "dtype": "bfloat16",
}

GEOMETRIES: dict[str, dict[str, Any]] = {
    "qwen3-8b": _QWEN3
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "qwen3-4b": _QWEN3
    | {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": _QWEN3
    | {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    # Llama 3.1 8B.
    "llama-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
}


def geometry(name: str) -> dict[str, Any]:
    """The `config.json` of a geometry. Raises ConfigError for an unknown one."""
    if name not in GEOMETRIES:
        known = list(GEOMETRIES)
        raise ConfigError(
            f"--synthetic {name}: unknown geometry{unknown_name(name, known)}; there are "
            f"{', '.join(known)}"
        )
    return GEOMETRIES[name]


def random_model(name: str, matrices: str, **changes: object) -> RandomModel:
    """Random weights of a geometry, some values of which may be changed."""
    with native_errors():
        return RandomModel(json.dumps(geometry(name) | changes), matrices)
