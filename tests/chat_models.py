"""Small tokenizers and templates in the manner of the families in use, for the chat tests. Our own words."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from miles_agents.chat import ChatFormat, TextTokenizer, starter_chat_template

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
END = 2  # <|im_end|> in these tokenizers
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "python",
            "description": "Runs code & prints <b>.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        },
    },
)
CORPUS = [
    "system\nYou are helpful.\nuser\nassistant\nWhat is 2 + 3? It is 5. The answer is 42.\n",
    "if a <| b: x <|= y; <too <tool <|im <|im_start\n" * 4,
    '{"name": "python", "arguments": {"code": "print(1 + 2)"}}\nTools: python\nError: busy, try again\n',
] * 20

_HEADER = "{{- '<|im_start|>' + m.role + '\\n' }}"
_TOOL_TURN = """
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"""
_CALLS = """
{%- for c in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}"""
_GENERATE = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

# Qwen2.5's manner: a system turn by default, tools listed in it, tool messages grouped in a user turn.
QWEN25 = (
    """{%- set given = messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + (messages[0].content if given else 'You are Probe, a helpful assistant.') }}
{%- if tools %}{{- '\\n\\n# Tools\\n<tools>' }}
{%- for t in tools %}{{- '\\n' + (t | tojson) }}{%- endfor %}{{- '\\n</tools>' }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- for m in messages %}
{%- if m.role == 'tool' %}"""
    + _TOOL_TURN
    + "{%- elif m.role == 'assistant' %}"
    + _HEADER
    + "{{- m.content }}"
    + _CALLS
    + "{{- '<|im_end|>\\n' }}{%- elif m.role != 'system' or not loop.first %}"
    + _HEADER
    + "{{- m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    + _GENERATE
)

# SmolLM2's manner: a default system turn, no tools, every role printed alike.
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a small helpful assistant<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# The plain ChatML of case C01: header, text, end + newline; a default system turn.
TOY = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nDefault.<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}" + _HEADER + "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}" + _GENERATE
)


def qwen3(*, strips_thinking: bool, opens_thinking: bool = False) -> str:
    """Qwen3's manner: reasoning taken out of the content; kept always, or only after the last user turn."""
    kept = "loop.index0 > ns.last" if strips_thinking else "true"
    generate = "<|im_start|>assistant\\n<think>\\n" if opens_thinking else "<|im_start|>assistant\\n"
    return (
        """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- if messages[0].role == 'system' or tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
{%- for t in tools or [] %}{{- (t | tojson) + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}"""
        + _TOOL_TURN
        + """{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}
{%- set content = m.content %}{%- set thought = '' %}
{%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if thought and """
        + kept
        + """ %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}{{- content }}"""
        + _CALLS
        + "{{- '<|im_end|>\\n' }}{%- elif m.role != 'system' or not loop.first %}"
        + _HEADER
        + "{{- m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
        + "{%- if add_generation_prompt %}{{- '"
        + generate
        + "' }}{%- endif %}"
    )


@cache
def byte_level_spec(*, splits_words: bool = True, bos: bool = False) -> str:
    """A byte-level BPE tokenizer.json: control tokens special, tool and thinking tags added but not special.

    `splits_words=False`: no word regex, digits apart, as the starter model has it. `bos`: post-processing adds BOS.
    """
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits_words)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    special = [*SPECIAL, "<s>"] if bos else list(SPECIAL)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return str(tokenizer.to_str())


def tokenizer(*, splits_words: bool = True, bos: bool = False) -> TextTokenizer:
    """The tokenizer of `byte_level_spec`."""
    return TextTokenizer(
        byte_level_spec(splits_words=splits_words, bos=bos),
        special={"eos_token": "<|im_end|>", "bos_token": "<s>"} if bos else {"eos_token": "<|im_end|>"},
    )


def chat_format(template: str, *, splits_words: bool = True, bos: bool = False) -> ChatFormat:
    """A format of that template on the test tokenizer."""
    return ChatFormat(tokenizer(splits_words=splits_words, bos=bos), template)


TEMPLATES = {
    "qwen2.5": QWEN25,
    "smollm2": SMOLLM2,
    "toy": TOY,
    "qwen3-kept": qwen3(strips_thinking=False),
    "starter": starter_chat_template(),
}


@cache
def family(name: str) -> ChatFormat:
    """The format of one of `TEMPLATES`; the starter's on a tokenizer without word splitting."""
    return chat_format(TEMPLATES[name], splits_words=name != "starter")


def write_model_folder(folder: Path, *, template: str | None, spec: str | None = None, bos: bool = False) -> Path:
    """A Hugging Face model folder without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(spec or byte_level_spec(bos=bos))
    special = {"eos_token": "<|im_end|>", **({"bos_token": "<s>"} if bos else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
