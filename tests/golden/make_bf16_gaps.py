"""Write what bfloat16 costs transformers itself on the checkpoints beside this file.

usage: make_bf16_gaps.py        needs torch and transformers; writes bf16_gaps.json beside itself

A gap is the largest distance between two log-probabilities of a prompt's own tokens: of the model
run in bfloat16 on a CPU, and of the float32 logits in expected.safetensors. It is taken for each
family, for each length, and for two ways to compute attention, which differ in nothing but the
order of sums and where they round.
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

FOLDER = Path(__file__).parent
FAMILIES = ("llama", "llama-rope3", "llama-yarn", "qwen2", "qwen3")
LENGTHS = (5, 64, 65, 200)
WAYS = ("eager", "sdpa")


def gap(model, ids, expected):
    """Of one prompt `ids` [n], whose last positions' logits are `expected` [positions, vocab]."""
    with torch.no_grad():
        logits = model(ids[None]).logits[0, -len(expected) :]
    tokens = ids[-len(expected) + 1 :, None]  # what each position but the last foretold
    found, wanted = (
        rows.double().log_softmax(-1)[:-1].gather(1, tokens) for rows in (logits, expected)
    )
    return float((found - wanted).abs().max())


def gaps(family, way):
    """By length."""
    expected = load_file(FOLDER / family / "expected.safetensors")
    model = AutoModelForCausalLM.from_pretrained(
        FOLDER / family, dtype=torch.bfloat16, attn_implementation=way
    ).eval()
    return {n: round(gap(model, expected[f"ids.{n}"], expected[f"logits.{n}"]), 4) for n in LENGTHS}


made_with = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "cpu": torch.backends.cpu.get_cpu_capability(),
}
found = {way: {family: gaps(family, way) for family in FAMILIES} for way in WAYS}
text = json.dumps({"made_with": made_with, "gaps": found}, indent=1) + "\n"
(FOLDER / "bf16_gaps.json").write_text(text, encoding="utf-8")
