"""Text in and out: tokenizers, chat templates, detokenising, stop strings.

Knows nothing of engines, plans or HTTP. Key properties: text of a client never becomes a control
token, and a streamed answer equals the one sent whole.
"""

from ignis.text.chat_template import ChatTemplate
from ignis.text.detokenizer import Detokenizer
from ignis.text.marks import ChatMarks, PromptMark, marks_of_text
from ignis.text.messages import Message, normalise_messages, normalise_tools
from ignis.text.rendering import render_chat
from ignis.text.segments import Segment, text_of
from ignis.text.stops import STOPS_MAX, StopMatcher, stops_of
from ignis.text.template_source import TemplateSource, find_template
from ignis.text.tokenizer import Tokenizer
from ignis.text.tokenizer_gguf import from_gguf
from ignis.text.tokenizer_json import from_tokenizer_json

__all__ = [
    "Tokenizer",
    "from_gguf",
    "from_tokenizer_json",
    "ChatTemplate",
    "TemplateSource",
    "find_template",
    "Message",
    "normalise_messages",
    "normalise_tools",
    "render_chat",
    "ChatMarks",
    "PromptMark",
    "marks_of_text",
    "Segment",
    "text_of",
    "Detokenizer",
    "StopMatcher",
    "stops_of",
    "STOPS_MAX",
]
