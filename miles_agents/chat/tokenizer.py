"""Text ⇄ ids for one model, with control tokens kept apart from text.

Two views of the same `tokenizer.json` are held: the *plain* one, which recognises control tokens, and the *neutral*
one, which spells them out with ordinary tokens. Templates are read by the first, outside text by the second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from miles_agents.errors import TemplateError
from miles_agents.types import IntArray

LONG_TEXT_CHARS = 20_000
_CACHED_CHARS = 2_000
_MARKUP = re.compile(r"^[<\[{|｜].*[>\]}|｜]$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ControlToken:
    """An added token that stands for structure. `lstrip`/`rstrip`: it swallows white space on that side."""

    text: str
    id: int
    lstrip: bool
    rstrip: bool


class TextTokenizer:
    """The tokenizer of a model folder.

    Args:
        spec: the content of `tokenizer.json`.
        special: names of special tokens and their texts (`{"bos_token": "<s>", …}`), from `tokenizer_config.json`.
        adds_bos: overrides whether the tokenizer's own post-processing begins a text with BOS.
    """

    def __init__(self, spec: str, *, special: dict[str, str] | None = None, adds_bos: bool | None = None) -> None:
        self.special = special or {}
        self._plain = _without_limits(Tokenizer.from_str(spec))
        parsed = json.loads(spec)
        entries = [entry for entry in parsed["added_tokens"] if _is_control(entry)]
        for entry in entries:
            entry["special"] = True
        self._neutral = _without_limits(Tokenizer.from_str(json.dumps(parsed)))
        self._neutral.encode_special_tokens = True
        self.control: dict[str, ControlToken] = {
            entry["content"]: ControlToken(entry["content"], entry["id"], entry["lstrip"], entry["rstrip"])
            for entry in entries
        }
        # Text without a token of its own becomes the unknown token: that is no structure.
        unknown = {_unknown_token(parsed["model"]), self.special.get("unk_token")}
        self._control_ids = frozenset(token.id for token in self.control.values() if token.text not in unknown)
        longest_first = sorted(self.control, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self.bos_ids = self._begin_ids(adds_bos)
        self._cached = lru_cache(maxsize=4096)(self._neutral_ids)

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Read `tokenizer.json` and `tokenizer_config.json`.

        Raises:
            TemplateError: no `tokenizer.json`.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TemplateError(
                f"no {path}: save the tokenizer there in its fast form, "
                "AutoTokenizer.from_pretrained(…).save_pretrained(folder)"
            )
        config = read_json_file(folder / "tokenizer_config.json")
        adds_bos = config.get("add_bos_token")
        return cls(
            path.read_text(encoding="utf-8"),
            special=_special_tokens(config),
            adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
        )

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id."""
        return max(self._plain.get_vocab(with_added_tokens=True).values()) + 1

    def id_of(self, token: str) -> int | None:
        """The id of a token's exact text, None if there is no such token."""
        found = self._plain.token_to_id(token)
        return None if found is None else int(found)

    def split_control(self, text: str) -> list[str | ControlToken]:
        """Cut template text at its control tokens, as the tokenizer would; empty texts are left out."""
        parts: list[str | ControlToken] = []
        at = 0
        for match in self._control_pattern.finditer(text):
            parts += [text[at : match.start()], self.control[match[0]]]
            at = match.end()
        parts.append(text[at:])
        return [part for part in _strip_around(parts) if part != ""]

    def has_control(self, text: str) -> bool:
        """True if `text` spells a control token."""
        return self._control_pattern.search(text) is not None

    def encode_control(self, text: str) -> list[int]:
        """Ids of text in which control tokens count (templates, replies written by hand). No BOS is added."""
        return _ids(self._plain, text)

    def encode_text(self, text: str) -> Sequence[int]:
        """Ids of outside text: what spells a control token becomes ordinary tokens. No BOS is added.

        Raises:
            TemplateError: the tokenizer has no other tokens for that text.
        """
        if len(text) <= _CACHED_CHARS:
            return self._cached(text)
        return self._neutral_ids(text)

    def encode_plain(self, text: str) -> IntArray:
        """Ids (T,) int32 of a text that is no chat: the tokenizer's single BOS, if it has one, then the text."""
        return np.array([*self.bos_ids, *self.encode_text(text)], np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens visible."""
        return self._plain.decode([int(token) for token in ids], skip_special_tokens=False)

    def _neutral_ids(self, text: str) -> tuple[int, ...]:
        text = text.encode("utf-8", "backslashreplace").decode()  # unpaired surrogates have no bytes, so no ids
        ids = _ids(self._neutral, text)
        if self._control_ids.isdisjoint(ids):
            return tuple(ids)
        # Some models find control tokens as whole words of their own vocabulary: cut inside the spelling.
        cut = [piece for part in self.split_control(text) for piece in _cut(part)]
        ids = [token for piece in cut for token in _ids(self._neutral, piece)]
        if not self._control_ids.isdisjoint(ids):
            raise TemplateError(f"this tokenizer cannot spell {text[:60]!r} without control tokens")
        return tuple(ids)

    def _begin_ids(self, adds_bos: bool | None) -> tuple[int, ...]:
        bos = self.id_of(self.special.get("bos_token", ""))
        if adds_bos is not None:
            return (bos,) if adds_bos and bos is not None else ()
        begin: list[int] = []
        for token in self._plain.encode("a", add_special_tokens=True).ids:
            if token not in self._control_ids:
                break
            begin.append(token)
        return tuple(begin)


def read_json_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file; `{}` if there is no such file.

    Raises:
        TemplateError: the file holds no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise TemplateError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise TemplateError(f"{path} holds no JSON object")
    return found


def _without_limits(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _is_control(entry: dict[str, Any]) -> bool:
    """Special tokens, and those spelled like markup (`<tool_call>`); runs of spaces and plain words are text."""
    return bool(entry["content"].strip()) and (entry["special"] or bool(_MARKUP.match(entry["content"])))


def _unknown_token(model: dict[str, Any]) -> str | None:
    if isinstance(model.get("unk_id"), int):
        return str(model["vocab"][model["unk_id"]][0])
    return model.get("unk_token")


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if len(text) > LONG_TEXT_CHARS:  # the batch call alone lets other threads run meanwhile
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return tokenizer.encode(text, add_special_tokens=False).ids


def _strip_around(parts: list[str | ControlToken]) -> list[str | ControlToken]:
    stripped = list(parts)
    for index, part in enumerate(parts):
        if not isinstance(part, ControlToken):
            continue
        before, after = stripped[index - 1], stripped[index + 1]
        if part.lstrip and isinstance(before, str):
            stripped[index - 1] = before.rstrip()
        if part.rstrip and isinstance(after, str):
            stripped[index + 1] = after.lstrip()
    return stripped


def _cut(part: str | ControlToken) -> list[str]:
    return [part] if isinstance(part, str) else [part.text[:1], part.text[1:]]
