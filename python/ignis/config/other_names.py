"""What other servers call the options there are here, for whoever types from habit.

None of these names is accepted: the same word does not always mean quite the same, and an option
has one name. The message for an unknown name says which of ours it is.
"""

from __future__ import annotations

from collections.abc import Callable

from ignis.config.option import Option
from ignis.config.options import OPTIONS

# An option here, what it is in a few words, and its names elsewhere: as a flag without its dashes,
# words joined by underscores.
_NAMES: tuple[tuple[str, str, str], ...] = (
    ("server.bind", "the address", "host port"),
    ("server.api_key", "the key", "api_key"),
    ("server.request_timeout", "the longest wait for an answer", "timeout"),
    ("server.queue_max", "the longest queue", "max_queued_requests"),
    ("model.path", "the model", "m hf_repo"),
    ("model.id", "the name for clients", "a alias served_model_name"),
    ("model.chat_template", "the chat template", "chat_template chat_template_file"),
    ("model.max_context", "the longest sequence", "c ctx_size context_length max_model_len"),
    ("model.default_max_tokens", "the longest answer", "n predict n_predict"),
    ("model.lanes", "how many run at a time", "np parallel max_num_seqs max_running_requests"),
    (
        "model.prefill_chunk",
        "how much of a prompt a round computes",
        "b batch_size ub ubatch_size max_num_batched_tokens chunked_prefill_size",
    ),
    (
        "model.kv_format",
        "the format of keys and values",
        "ctk cache_type_k ctv cache_type_v kv_cache_dtype",
    ),
    ("device", "the device, for the whole model,", "ngl gpu_layers n_gpu_layers"),
    (
        "vram.headroom_bytes",
        "what is left of the device's memory",
        "gpu_memory_utilization mem_fraction_static",
    ),
    ("vram.kv_pool_bytes", "the KV pool", "kv_cache_memory_bytes num_gpu_blocks_override"),
    ("reuse.prompt", "the reuse of prompts", "cache_prompt enable_prefix_caching"),
    ("reuse.kv_host_pool_bytes", "the room for KV in RAM", "cram cache_ram swap_space"),
    ("cpu.threads", "the number of threads", "t threads"),
    ("cache.dir", "the folder for fetched models", "download_dir"),
)

OTHER_NAMES: dict[str, tuple[str, str]] = {
    name: (key, what) for key, what, names in _NAMES for name in names.split()
}


def our_name(word: str, spell: Callable[[Option], str]) -> str:
    """`; the address is --server-bind HOST:PORT` for a word of other servers, or nothing.

    `word` has no group and no dashes before it; `spell` writes an option as its reader would.
    """
    key, what = OTHER_NAMES.get(word.lower().replace("-", "_"), ("", ""))
    return f"; {what} is {spell(OPTIONS[key])}" if key else ""
