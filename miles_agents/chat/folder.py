"""What a model folder says about its conversations."""

from __future__ import annotations

from pathlib import Path

from miles_agents.chat.tokenizer import TextTokenizer, read_json_file
from miles_agents.errors import TemplateError

HERMES = "hermes"
# What a template prints around calls, most telling first: several formats use the tag <tool_call>.
_TELLING = (
    ("<function=", "qwen3_coder"),
    ("<arg_key>", "glm"),
    ("<|python_tag|>", "llama3"),
    ("<tool_call>", HERMES),
    ("<|start_header_id|>", "llama3"),
)


def read_template(folder: Path) -> str:
    """The chat template of a model folder: `chat_template.jinja`, else the one in `tokenizer_config.json`.

    Raises:
        TemplateError: the folder has none.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = read_json_file(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # several by name, the older way
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("tool_use", named.get("default"))
    if not isinstance(found, str):
        raise TemplateError(
            f"{folder} has no chat template, so it cannot hold a conversation: put one beside its weights as "
            "chat_template.jinja, or take the instruction-tuned variant of the model"
        )
    return found


def read_eos_ids(folder: Path, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Every id that ends generation by `generation_config.json`, `config.json` and the tokenizer's EOS token."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = read_json_file(folder / name).get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or ())
    eos = tokenizer.id_of(tokenizer.special.get("eos_token", ""))
    return tuple(sorted(found if eos is None else {*found, eos}))


def guess_tool_format(template: str) -> str:
    """How a model of this template writes its calls, by what the template's own text prints around them."""
    return next((name for telling, name in _TELLING if telling in template), HERMES)
