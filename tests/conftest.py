"""Model folders and a Docker daemon that several test files use; made when the first test asks for one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def starter() -> Path:
    """The starter model, from the user's cache or made now (about a minute)."""
    from miles_agents.starter.build import ensure_starter

    return ensure_starter(on_progress=lambda text: None)


@pytest.fixture(scope="session")
def tiny_model(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Qwen3 with the starter's tokenizer and template: 27k parameters, speaks noise."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from miles_agents.models.loading import save_causal_lm
    from miles_agents.starter.shape import SHAPE

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "head_dim": 16, "intermediate_size": 48}
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**{**SHAPE, **sizes}, eos_token_id=2, pad_token_id=0, dtype="float32"))
    save_causal_lm(model, folder, tokenizer_from=starter)
    return folder


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of a Docker daemon that has the sandbox image; the test is skipped where there is none."""
    from docker_daemon import NoDockerError, docker_daemon

    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(docker_daemon())
        except NoDockerError as error:
            pytest.skip(str(error))
        yield host


@pytest.fixture
def short_tmp_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made during the test; short enough for the paths of sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


_SLOW_FIXTURES = {"starter": 400, "docker_host": 600}  # seconds; making the model, making the image


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test is the first to ask for something has to make it."""
    for item in items:
        names = {*getattr(item, "fixturenames", ()), *(["docker_host"] if item.get_closest_marker("docker") else [])}
        limits = [seconds for name, seconds in _SLOW_FIXTURES.items() if name in names]
        if limits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(max(limits)))
