"""The model families of the chat tests: templates in `templates/`, written to the families' documented behaviour.

On the test tokenizer, with each family's control tokens added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from chat_models import byte_level_spec

from miles_agents.chat import ChatFormat, TextTokenizer

TEMPLATES = Path(__file__).parent / "templates"
CHATML_ENDS = ("<|im_end|>", "<|im_end|>")


@dataclass(frozen=True)
class Family:
    """`tokens`: special ones, `tags`: added ones that are not. `ends`: of turns before a user's and a tool's."""

    template: str
    mode: str
    tokens: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    special: Mapping[str, str] = field(default_factory=lambda: {"eos_token": "<|im_end|>"})
    eos: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")
    ends: tuple[str, str] = CHATML_ENDS
    begins: tuple[str, ...] = ()  # what the tokenizer puts before a text
    history: str = "auto"
    variables: Mapping[str, Any] = field(default_factory=dict)
    tool_format: str = "hermes"
    shows_calls: bool = True
    shows_thinking: bool = False


def _llama() -> dict[str, Any]:
    tokens = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag")
    return {
        "template": "llama3",
        "tokens": tuple(f"<|{name}|>" for name in tokens),
        "special": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        "eos": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        "ends": ("<|eot_id|>", "<|eot_id|>"),
        "begins": ("<|begin_of_text|>",),
        "tool_format": "llama3",
    }


def _glm() -> dict[str, Any]:
    return {
        "template": "glm",
        "tokens": ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "tags": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        "special": {"eos_token": "<|endoftext|>"},
        "eos": ("<|endoftext|>", "<|user|>", "<|observation|>"),
        "ends": ("<|user|>", "<|observation|>"),
        "begins": ("[gMASK]", "<sop>"),
        "tool_format": "glm",
        "shows_thinking": True,
    }


FAMILIES = {
    "chatml": Family("chatml", "append"),
    "smollm2": Family("smollm2", "append", shows_calls=False),
    "qwen3-split": Family("qwen3", "split", shows_thinking=True),
    "qwen3-keep": Family("qwen3", "keep", history="keep", shows_thinking=True),
    "qwen3-coder": Family("qwen3_coder", "append", tool_format="qwen3_coder"),
    "llama3": Family(mode="append", **_llama()),
    "glm": Family(mode="append", variables={"clear_thinking": False}, **_glm()),
    "glm-split": Family(mode="split", **_glm()),
    "glm-keep": Family(mode="keep", history="keep", **_glm()),
}
SPLIT = [name for name, family in FAMILIES.items() if family.mode == "split"]
APPENDING = [name for name, family in FAMILIES.items() if family.mode != "split"]


def source(name: str) -> str:
    """The Jinja text of a family's template."""
    return (TEMPLATES / f"{FAMILIES[name].template}.jinja").read_text(encoding="utf-8")


def with_tokens(spec: str, family: Family) -> str:
    """A tokenizer.json with the family's control tokens added, and put before each text what the family puts there."""
    parsed = json.loads(spec)
    known = {entry["content"]: entry for entry in parsed["added_tokens"]}
    number = max(*parsed["model"]["vocab"].values(), *(entry["id"] for entry in known.values())) + 1
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for text in (*family.tokens, *family.tags):
        if text not in known:
            known[text] = {"id": number, "content": text, **plain, "special": text in family.tokens}
            number += 1
    parsed["added_tokens"] = list(known.values())
    if family.begins:
        parsed["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                *({"SpecialToken": {"id": text, "type_id": 0}} for text in family.begins),
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                text: {"id": text, "ids": [known[text]["id"]], "tokens": [text]} for text in family.begins
            },
        }
    return json.dumps(parsed)


def make(name: str, *, spec: str | None = None, **changes: Any) -> ChatFormat:
    """A family's format; `changes` are arguments of `ChatFormat`."""
    family = FAMILIES[name]
    tokenizer = TextTokenizer(with_tokens(spec or byte_level_spec(), family), special=dict(family.special))
    given: dict[str, Any] = {"history": family.history, "variables": family.variables, **changes}
    eos_ids = [tokenizer.id_of(text) for text in family.eos]
    return ChatFormat(tokenizer, source(name), eos_ids=[each for each in eos_ids if each is not None], **given)


@cache
def family_format(name: str) -> ChatFormat:
    """The format of one of `FAMILIES`."""
    return make(name)
