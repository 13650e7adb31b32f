"""Chat templates in the shapes that model files have, written for the tiny tokenizers."""

from __future__ import annotations

_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TOOLS = "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"

# Drops the thoughts of turns before the last user's, opens a thought in the prompt, and writes an
# empty one where an answer since then has none.
THINKS = (
    _TOOLS + "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "{% set answer = m.content.split('</think>')[-1].lstrip('\n') %}"
    "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ answer }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)

ALTERNATES = (
    "{% if messages[0].role == 'system' %}{% set said = messages[0].content %}"
    "{% set rest = messages[1:] %}{% else %}{% set said = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {% if loop.first and said %}<<SYS>>{{ said }}<</SYS>> "
    "{% endif %}{{ m.content | trim }} [/INST]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)

TEMPLATES: dict[str, str] = {
    "chatml": _TOOLS + _TURNS,
    "default system": (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful cat. "
        "You sat on the mat and the dog saw you there.<|im_end|>\n{% endif %}" + _TURNS
    ),
    "thinks": THINKS,
    "trims": _TURNS.replace("{{ m.content }}", "{{ m.content | trim }}"),
    "alternates": ALTERNATES,
    "no tokens of its own": (
        "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
    "tools after the first user": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% if tools and m.role == 'user' and loop.index0 < 2 %}[{{ tools | tojson }}]{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "tools before the last user": (
        "{% for m in messages %}{% if tools and m.role == 'user' and loop.last %}"
        "[{{ tools | tojson }}]{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "needs a user": (
        "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
        "{{ raise_exception('a user must speak') }}{% endif %}" + _TURNS
    ),
}
