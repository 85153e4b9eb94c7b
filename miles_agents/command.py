"""What the command lines share: reading words, `--help`, `--cfg job`, and errors as one message with exit code 2.

Nothing here loads torch: `--help` and `--cfg job` answer at once.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from miles_agents import registry
from miles_agents.configs import schema
from miles_agents.configs.compose import (
    Override,
    all_keys,
    compose_config,
    config_names,
    env_id_of,
    env_schema,
    field_comments,
    listed_environments,
    parse_overrides,
    short_names,
    to_object,
)
from miles_agents.contracts import Env
from miles_agents.errors import ConfigError, MilesError, UnknownNameError, UsageError, did_you_mean
from miles_agents.interruption import terminate_as_interrupt

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_PIPE = 0, 1, 2, 130, 141


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command line, composed and checked.

    `config` is the typed object, `yaml` the same as text, `overrides` the words it came from. With `env=[…]`
    `environments` are the environments' configurations by short name, and `config` has the first of them.
    """

    config: Any
    yaml: str
    overrides: tuple[str, ...]
    environments: Mapping[str, schema.EnvConfig] = field(default_factory=dict)


def run_command(
    name: str,
    summary: str,
    body: Callable[[Invocation], int],
    *,
    words: Sequence[str] | None = None,
    saved_overrides: Callable[[Sequence[Override]], Sequence[str]] | None = None,
) -> int:
    """Run one command line and return its exit code.

    Args:
        name: `"train"`, `"evaluate"` or `"play"`: the command and its config file.
        summary: the first line of `--help`.
        body: the work; may raise.
        words: the command line's words; `sys.argv[1:]` by default.
        saved_overrides: gives the words a resumed run was started with; new words win over them.
    """
    words = sys.argv[1:] if words is None else words
    # OpenMP's threads spin while they wait for each other: with another process on one of the cores a step takes ten
    # times as long (measured). Read when PyTorch is loaded, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    terminate_as_interrupt()

    def run() -> int:
        flags, rest, config_dir = _split_flags(words)
        if "--help" in flags:
            sys.stdout.write(_help_text(name, summary, config_dir))
            return EXIT_OK
        overrides = parse_overrides(rest)
        if saved_overrides is not None:
            overrides = _merge_saved(parse_overrides(saved_overrides(overrides)), overrides)
        composed = compose_environments(name, overrides, config_dir)
        yaml = _yaml_of(composed)
        if "--cfg" in flags:
            sys.stdout.write(yaml)
            return EXIT_OK
        configs = {short: to_object(each) for short, each in composed.items()}
        environments = {short: config.env for short, config in configs.items()} if len(configs) > 1 else {}
        final_words = tuple(f"{override.key}={override.value}" for override in overrides)
        return body(Invocation(next(iter(configs.values())), yaml, final_words, environments))

    return exit_code_of(run)


def exit_code_of(run: Callable[[], int]) -> int:
    """Run a command's work; what it raises for people becomes one message and an exit code."""
    try:
        return run()
    except UsageError as error:
        sys.stderr.write(f"{type(error).__name__.removesuffix('Error')}: {error}\n")
        return EXIT_USAGE
    except MilesError as error:
        sys.stderr.write(f"stopped: {error}\n")
        return EXIT_FAILED
    except BrokenPipeError:
        return end_of_pipe()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED


def end_of_pipe() -> int:
    """The exit code of a command whose reader has left (`| head`); call it while handling a `BrokenPipeError`.

    Raises:
        BrokenPipeError: the present one, if it was not standard output's.
    """
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in watched.poll(0)):
        raise  # what the caller is handling
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())  # what is left to be flushed goes nowhere
    os.close(devnull)
    return EXIT_PIPE


def finish(code: int) -> None:
    """Leave the process with this code; SIGINT's default action is back for whatever is left to end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = end_of_pipe()
    sys.stderr.flush()
    sys.exit(code)


def compose_command(name: str, overrides: Sequence[Override], config_dir: Path | None = None) -> DictConfig:
    """Compose the configuration of a command; the environment's class is imported for its schema."""
    given = next((override.value for override in overrides if override.key == "env"), "python_math")
    is_config = given in config_names("env", config_dir)
    env_id = env_id_of(given, config_dir) if is_config else given
    env_class = load_env_class(env_id, config_dir)
    return compose_config(
        name,
        overrides,
        env_node=env_schema(env_class, env_id),
        env_is_config=is_config,
        config_dir=config_dir,
    )


def compose_environments(
    name: str, overrides: Sequence[Override], config_dir: Path | None = None
) -> dict[str, DictConfig]:
    """Compose the configuration of a command, once for each environment of `env=[…]`, by the environments' short names.

    A word `env.key=…` holds for every listed environment that has the key.

    Raises:
        ConfigError: several environments for a command that takes one, or a key that none of them has.
    """
    names = listed_environments(overrides)
    if not names:
        given = next((override.value for override in overrides if override.key == "env"), "python_math")
        return {short_names([given])[0]: compose_command(name, overrides, config_dir)}
    if len(names) > 1 and name != "evaluate":
        raise ConfigError(
            f"env=[{','.join(names)}]: only an evaluation takes several environments; write env={names[0]}"
        )
    own = [override for override in overrides if override.key.startswith("env.")]
    rest = [override for override in overrides if override.key != "env" and override not in own]
    bare = {each: compose_command(name, [Override("env", each), *rest], config_dir) for each in names}
    keys = {each: set(all_keys(config)) for each, config in bare.items()}
    for override in own:
        if not any(override.key in known for known in keys.values()):
            _refuse_env_key(name, names, override, config_dir)
    composed: dict[str, DictConfig] = {}
    for short, each in zip(short_names(names), names, strict=True):
        mine = [override for override in own if override.key in keys[each]]
        words = [Override("env", each), *rest, *mine]
        composed[short] = compose_command(name, words, config_dir) if mine else bare[each]
    return composed


def _refuse_env_key(name: str, names: Sequence[str], override: Override, config_dir: Path | None) -> None:
    try:
        compose_command(name, [Override("env", names[0]), override], config_dir)
    except ConfigError as error:
        raise ConfigError(f"{error} None of {', '.join(names)} has it") from error


def _yaml_of(composed: Mapping[str, DictConfig]) -> str:
    """The configuration as text; of several environments, `env` holds each under its short name."""
    configs = list(composed.values())
    if len(configs) == 1:
        return OmegaConf.to_yaml(configs[0])
    whole = cast("dict[str, Any]", OmegaConf.to_container(configs[0]))
    whole["env"] = {short: OmegaConf.to_container(config.env) for short, config in composed.items()}
    return OmegaConf.to_yaml(OmegaConf.create(whole))


def load_env_class(env_id: str, config_dir: Path | None = None) -> type[Env]:
    """The class behind a registered id, `file.py:Class` or `package.module:Class`.

    Raises:
        UsageError: nothing of that name, or it is no `Env`.
    """
    if registry.is_object_spec(env_id):
        if not env_id.partition(":")[0].endswith(".py") and os.getcwd() not in sys.path:  # noqa: PTH109
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 — `package.module:Class` beside the user's files
        found = registry.load_object(env_id)
    elif env_id.endswith(".py"):
        raise ConfigError(f"env={env_id}: name the class too, env={env_id}:MyEnv")
    else:
        names = {*config_names("env", config_dir)}
        if env_id not in registry.environments:
            _refuse_unknown_env(env_id, names)
        found = registry.environments.get(env_id)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise ConfigError(f"env={env_id} is {found!r}, not a subclass of miles_agents.Env")
    return found


def _refuse_unknown_env(env_id: str, names: set[str]) -> None:
    bare = {known.rsplit("-v", 1)[0] for known in registry.environments.names()}
    raise UnknownNameError(
        f"unknown environment {env_id!r}. {did_you_mean(env_id, bare | names)} "
        "A class of your own: env=./file.py:Class or env=package.module:Class"
    )


def _split_flags(words: Sequence[str]) -> tuple[set[str], list[str], Path | None]:
    flags: set[str] = set()
    rest: list[str] = []
    config_dir: Path | None = None
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word in ("--help", "-h"):
            flags.add("--help")
        elif word in ("--cfg", "-c", "--cfg=job"):
            if word != "--cfg=job" and (not queue or queue.pop(0) != "job"):
                raise ConfigError("write --cfg job to print the composed configuration")
            flags.add("--cfg")
        elif word == "--config-dir" or word.startswith("--config-dir="):
            value = word.partition("=")[2] or (queue.pop(0) if queue else "")
            config_dir = Path(value).expanduser()
            if not value or not config_dir.is_dir():
                raise ConfigError(f"--config-dir {value or '?'}: no such folder")
        elif word.startswith("-"):
            raise ConfigError(f"unknown flag {word!r}. Flags: --help, --cfg job, --config-dir DIR; keys are key=value")
        else:
            rest.append(word)
    return flags, rest, config_dir


def _merge_saved(saved: Sequence[Override], given: Sequence[Override]) -> list[Override]:
    replaced = {override.key for override in given}
    return [*(override for override in saved if override.key not in replaced), *given]


def _help_text(name: str, summary: str, config_dir: Path | None) -> str:
    composed = to_object(compose_command(name, [], config_dir))
    lines = [
        f"{summary}",
        "",
        f"usage: python -m miles_agents.{name} [key=value …] [--cfg job] [--config-dir DIR] [--help]",
        "",
        "  --cfg job         print the composed configuration and stop",
        "  --config-dir DIR  a folder of your own with YAML files by group (DIR/trainer/mine.yaml → trainer=mine)",
        "",
        "choices",
    ]
    for group in ("env", *(each for each in schema.GROUPS if hasattr(composed, each))):
        names = config_names(group, config_dir)
        more = {"env": " | a registered id | file.py:Class", "model": " | a folder | a run folder | a hub id"}
        lines.append(f"  {group}=" + " | ".join(names) + more.get(group, ""))
    lines += ["", "keys (with their defaults)"]
    lines += _describe(composed, type(composed), "")
    return "\n".join(lines) + "\n"


def _describe(value: Any, cls: type[Any], prefix: str) -> list[str]:
    comments = {k: v for base in reversed(cls.__mro__) if is_dataclass(base) for k, v in _comments_of(base).items()}
    scalars: list[str] = []
    nested: list[str] = []
    for each in fields(cast(Any, value)):
        content = getattr(value, each.name)
        if is_dataclass(content) and not isinstance(content, type):
            nested += _describe(content, type(content), f"{prefix}{each.name}.")
        else:
            left = f"  {prefix}{each.name}={_shown(content)}"
            scalars.append(f"{left:<44} {comments.get(each.name, '')}".rstrip())
    return scalars + nested


def _comments_of(cls: type[Any]) -> dict[str, str]:
    try:
        return field_comments(cls)
    except (OSError, TypeError):  # a class made at run time (an environment's) has no source
        return {}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
