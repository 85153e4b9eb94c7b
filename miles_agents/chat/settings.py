"""The keys of a model's configuration that say how it converses (`model.history`, …): checked, and made a format of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_agents.chat.format import AUTO, ChatFormat
from miles_agents.chat.formats import get_format
from miles_agents.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from miles_agents.configs.schema import ModelConfig

# Keys of `ModelConfig` → arguments of `ChatFormat`.
_ARGUMENTS: Mapping[str, str] = {
    "history": "history",
    "tool_format": "tool_format",
    "template_variables": "variables",
    "thinking_calls": "thinking_calls",
}
_WITHOUT_TEXT = "engine"  # a format whose calls no text holds


def make_chat(config: ModelConfig, folder: Path) -> ChatFormat:
    """The format of the model in `folder`, as its configuration wants it.

    Raises:
        TemplateError: its template cannot be used in that way, or takes no such variable.
        UsageError: an unknown value.
    """
    given: dict[str, Any] = {argument: getattr(config, key) for key, argument in _ARGUMENTS.items()}
    return ChatFormat.from_folder(folder, **given)


def check_chat(config: ModelConfig, *, on_server: bool = False) -> None:
    """What can be said of these keys before the model is there.

    Args:
        config: the model's.
        on_server: it is spoken to in messages: a server makes its prompts and reads its calls.

    Raises:
        ConfigError: a tool-call format that is none, or a key that a model on a server does not take.
    """
    if on_server:
        _refuse_on_server(config)
    if config.tool_format == _WITHOUT_TEXT:
        raise ConfigError(
            "model.tool_format=engine: models that run here have no parser of their own; leave it out, or name the "
            "format in which the model writes its calls (docs/tool-formats.md)"
        )
    if config.tool_format != AUTO:
        try:
            get_format(config.tool_format)
        except UsageError as error:
            raise ConfigError(f"model.tool_format: {error}") from error


def _refuse_on_server(config: ModelConfig) -> None:
    for each in fields(config):
        value = getattr(config, each.name)
        if each.name in _ARGUMENTS and value not in (each.default, {}):
            raise ConfigError(
                f"model.{each.name}: the prompts of a model on a server are made there; leave it out. SGLang and vLLM "
                "take variables of the template in engine.extra_body={chat_template_kwargs: {enable_thinking: false}}"
            )
