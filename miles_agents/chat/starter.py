"""The starter model's chat template: ChatML with Hermes calls, tools listed by name, as few tokens as possible."""

from __future__ import annotations

from importlib.resources import files

PAD_TOKEN = "<|endoftext|>"  # noqa: S105 — a token of a vocabulary
END_OF_TURN = "<|im_end|>"
CONTROL_TOKENS = (
    PAD_TOKEN,
    "<|im_start|>",
    END_OF_TURN,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


def starter_chat_template() -> str:
    """The Jinja source of the template. It only ever appends, and works in transformers as it stands."""
    return files("miles_agents.chat").joinpath("starter_template.jinja").read_text(encoding="utf-8")
