"""How a model converses: `model.history` and the keys beside it, from the command line to the chat format."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from chat_families import FAMILIES, source, with_tokens
from chat_models import byte_level_spec, write_model_folder
from command_runs import PLAIN_ENV, SMALL, Done, command

from miles_agents import play
from miles_agents.chat import ChatFormat, History, ThinkingPolicy
from miles_agents.chat.settings import check_chat, make_chat
from miles_agents.configs import schema
from miles_agents.errors import ConfigError, UsageError
from miles_agents.opponents import Sampled, seated

GIVEN = (
    "model.history=split",
    "model.tool_format=qwen3_coder",
    "model.template_variables={enable_thinking: false}",
    "model.thinking_calls=end_thinking",
)
ARGUMENTS = {
    "history": "split",
    "tool_format": "qwen3_coder",
    "variables": {"enable_thinking": False},
    "thinking_calls": "end_thinking",
}
MODEL = schema.ModelConfig(
    name="m",
    source="m",
    history="split",
    tool_format="qwen3_coder",
    template_variables={"enable_thinking": False},
    thinking_calls="end_thinking",
)


class _SeenError(UsageError):
    """Ends a command once its format was asked for."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, dict[str, Any]]]:
    """What `ChatFormat.from_folder` is called with; the first call ends the command."""
    found: list[tuple[Path, dict[str, Any]]] = []

    def from_folder(folder: Path, **arguments: Any) -> ChatFormat:
        found.append((folder, arguments))
        raise _SeenError("seen")

    monkeypatch.setattr(ChatFormat, "from_folder", from_folder)
    return found


def played(*words: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = play.main(list(words))
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def env(tmp_path: Path) -> str:
    (tmp_path / "plain.py").write_text(PLAIN_ENV)
    return f"env={tmp_path / 'plain.py'}:Plain"


# --- from words to the format -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "evaluate", "play"])
def test_every_command_makes_the_format_that_its_words_ask_for(
    name: str, env: str, tiny_model: Path, asked: list[tuple[Path, dict[str, Any]]]
) -> None:
    words = (env, f"model={tiny_model}", *GIVEN)
    done = played(*words) if name == "play" else command(name, *words, *SMALL[: 2 if name == "train" else 0])
    assert (done.code, done.err.endswith("seen\n")) == (2, True)
    assert asked == [(tiny_model, ARGUMENTS)]


async def test_models_on_other_seats_converse_as_the_policy_does(
    tiny_model: Path, asked: list[tuple[Path, dict[str, Any]]]
) -> None:
    from miles_agents.envs.self_play import SelfPlay

    sampled = Sampled(schema.RolloutConfig(), schema.ClusterConfig(), MODEL, concurrency=1)
    with pytest.raises(_SeenError):
        async with seated({"second": str(tiny_model)}, SelfPlay(), sampled, key="opponents"):
            raise AssertionError
    assert asked == [(tiny_model, ARGUMENTS)]


def test_keys_that_are_not_given_leave_the_format_as_it_is_by_itself(
    env: str, tiny_model: Path, asked: list[tuple[Path, dict[str, Any]]]
) -> None:
    command("train", env, f"model={tiny_model}", *SMALL)
    plain = {"history": "auto", "tool_format": "auto", "variables": {}, "thinking_calls": "ignore"}
    assert asked == [(tiny_model, plain)]


def test_the_format_of_a_configuration_is_what_its_keys_say(tmp_path: Path) -> None:
    spec = with_tokens(byte_level_spec(), FAMILIES["qwen3-split"])
    folder = write_model_folder(tmp_path, template=source("qwen3-split"), spec=spec)
    chat = make_chat(MODEL, folder)
    assert (chat.history, chat.thinking_calls) == (History.SPLIT, ThinkingPolicy.END_THINKING)
    assert chat.tool_format.name == "qwen3_coder"
    assert chat.generation_prompt.endswith("<think>\n\n</think>\n\n")  # enable_thinking=false
    kept = make_chat(schema.ModelConfig(name="m", source="m", history="keep"), folder)
    assert (kept.history, kept.tool_format.name) == (History.KEEP, "hermes")


def test_a_run_with_a_split_history_trains_to_its_end(
    env: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ChatFormat] = []
    made = ChatFormat.from_folder

    def from_folder(folder: Path, **arguments: Any) -> ChatFormat:
        seen.append(made(folder, **arguments))
        return seen[-1]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ChatFormat, "from_folder", from_folder)
    words = ("model.history=split", "model.thinking_calls=end_thinking", "steps=1", "run_dir=run")
    done = command("train", env, f"model={tiny_model}", *SMALL, *words)
    assert done.code == 0, done.err
    assert {chat.history for chat in seen} == {History.SPLIT}
    assert {chat.thinking_calls for chat in seen} == {ThinkingPolicy.END_THINKING}


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train", "evaluate", "play"])
@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model.history=spilt", "model.history=spilt: unknown. Did you mean 'split'?"),
        ("model.thinking_calls=end", "model.thinking_calls=end: unknown."),
        ("model.tool_format=hermess", "model.tool_format: unknown tool-call format 'hermess'. Did you mean 'hermes'?"),
        ("model.tool_format=./none.py:Mine", "model.tool_format: "),
        ("model.tool_format=engine", "model.tool_format=engine: models that run here have no parser of their own"),
        ("model.template_variables={enable_thinkng: false}", "the chat template uses no variable 'enable_thinkng'."),
        ("model.template_variables={tools: []}", "the chat template's variable 'tools' is set here; leave it out"),
        ("model.template_variables=7", "model.template_variables"),
        ("model.histori=split", "model.history"),
    ],
)
def test_an_unknown_value_is_one_message_and_exit_code_2(
    name: str, word: str, said: str, env: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (env, f"model={tiny_model}", word)
    done = played(*words) if name == "play" else command(name, *words, *SMALL[: 2 if name == "train" else 0])
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert len(done.err) < 1000
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("word", GIVEN)
def test_a_model_on_a_server_takes_none_of_these_keys(word: str, env: str) -> None:
    done = command("evaluate", env, "engine=openai", "model=m", word)
    assert done.code == 2
    assert f"{word.partition('=')[0]}: the prompts of a model on a server are made there" in done.err
    assert "chat_template_kwargs" in done.err


def test_a_format_in_a_file_of_ones_own_is_a_value() -> None:
    own = str(Path(__file__).parents[1] / "examples/my_format.py") + ":MyFormat"
    check_chat(schema.ModelConfig(name="m", source="m", tool_format=own))
    with pytest.raises(ConfigError, match=r"model\.tool_format: .* is no tool-call format"):
        check_chat(schema.ModelConfig(name="m", source="m", tool_format="miles_agents.chat.history:History"))


def test_the_keys_have_the_values_that_the_format_knows() -> None:
    from miles_agents.configs.ranges import CHOICES

    assert CHOICES["model.history"] == tuple(each.value for each in History)
    assert CHOICES["model.thinking_calls"] == tuple(each.value for each in ThinkingPolicy)
