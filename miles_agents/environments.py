"""`python -m miles_agents.environments`: list environments, check one without a model, begin a new one.

python -m miles_agents.environments list
python -m miles_agents.environments check python_math env.level=1
python -m miles_agents.environments check ./my_env.py:MyEnv
python -m miles_agents.environments new my_env
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import math
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from miles_agents import assembly
from miles_agents.checks.env_attack import attack_env, describe_row, failures, place_of
from miles_agents.checks.env_row import CheckRow, Outcome
from miles_agents.checks.env_subject import AttackSettings
from miles_agents.command import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    compose_command,
    exit_code_of,
    finish,
    load_env_class,
)
from miles_agents.configs import schema
from miles_agents.configs.compose import Override, parse_overrides, to_object
from miles_agents.contracts import Env, SandboxProvider
from miles_agents.errors import ConfigError, MilesError, UsageError, did_you_mean
from miles_agents.interruption import terminate_as_interrupt
from miles_agents.listing import Listing, list_environments
from miles_agents.scaffold import check_name, class_name_of, write_package

T = TypeVar("T")

_PROGRAM = "python -m miles_agents.environments"
_LIST_TIMEOUT_S = 10.0
_CHECK_TIMEOUT_S = 300.0
_END_S = 5.0  # for what was left running to end


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code comes back: 0 fine, 1 a check failed, 2 bad input."""
    words = sys.argv[1:] if words is None else words
    terminate_as_interrupt()
    return exit_code_of(lambda: _dispatch(list(words)))


def _dispatch(words: list[str]) -> int:
    commands: dict[str, tuple[Callable[[], _Parser], Callable[[argparse.Namespace], int]]] = {
        "list": (_list_parser, _list),
        "check": (_check_parser, _check),
        "new": (_new_parser, _new),
    }
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(f"{(__doc__ or '').strip()}\n\nMore: {_PROGRAM} {'|'.join(commands)} --help\n")
        return EXIT_OK if words else EXIT_USAGE
    if words[0] not in commands:
        raise UsageError(f"unknown command {words[0]!r}. {did_you_mean(words[0], commands)}")
    make_parser, body = commands[words[0]]
    try:
        arguments = make_parser().parse_intermixed_args(words[1:])
    except SystemExit as end:  # --help
        return int(end.code or 0)
    return body(arguments)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one message."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. {' '.join(self.format_usage().split())}")


# --- list -------------------------------------------------------------------------------------------------------------


def _list_parser() -> _Parser:
    parser = _Parser(prog=f"{_PROGRAM} list", description="Every environment: tools, splits, what it is.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument(
        "--timeout-s",
        type=_positive,
        metavar="S",
        default=_LIST_TIMEOUT_S,
        help=f"for each environment; then what is known is shown ({_LIST_TIMEOUT_S:g})",
    )
    _add_config_dir(parser)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    listings = list_environments(timeout_s=arguments.timeout_s, config_dir=arguments.config_dir)
    if arguments.json:
        sys.stdout.write(json.dumps([each.as_json() for each in listings], indent=2, default=str) + "\n")
        return EXIT_OK
    width = max((len(each.name) for each in listings), default=0) + 2
    for listing in listings:
        first, *others = _lines(listing)
        sys.stdout.write(f"{listing.name:<{width}}{first}\n" + "".join(f"{'':<{width}}{line}\n" for line in others))
    if any(each.problem for each in listings):
        sys.stdout.write("\nNothing was fetched for this list; a run may fetch what is not here.\n")
    return EXIT_OK


def _lines(listing: Listing) -> list[str]:
    lines = [listing.description or "(its class has no docstring)"]
    if listing.settings:
        given = " ".join(f"env.{name}={_plain(value)}" for name, value in listing.settings.items())
        lines.append(f"{listing.id} with {given}")
    if listing.tools is not None:
        lines.append(f"tools: {', '.join(listing.tools) or 'none'}")
    if listing.splits:
        lines.append("tasks: " + ", ".join(f"{split} {size:,}" for split, size in listing.splits.items()))
    if listing.problem:
        first, *others = listing.problem.splitlines()
        lines += [f"not ready: {first}", *(f"  {line}" for line in others)]
    return lines


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- check ------------------------------------------------------------------------------------------------------------


def _check_parser() -> _Parser:
    parser = _Parser(
        prog=f"{_PROGRAM} check",
        description="Attack an environment without a model, and say what to mend. Exit code 0: nothing failed, "
        "1: something did, 2: it could not be tried.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME env.key=value …",
        help="a configuration, a registered name, file.py:Class or package.module:Class; then its keys, and those of "
        "the sandbox (sandbox.key=value)",
    )
    parser.add_argument("--tasks", type=_count, default=3, metavar="N", help="played of each split (3)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the episodes and of what is drawn (0)")
    parser.add_argument("--sandbox", default="auto", metavar="NAME", help="the launcher, if a tool needs one (auto)")
    parser.add_argument(
        "--timeout-s",
        type=_positive,
        default=_CHECK_TIMEOUT_S,
        metavar="S",
        help=f"of each check ({_CHECK_TIMEOUT_S:g})",
    )
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    _add_config_dir(parser)
    return parser


def _check(arguments: argparse.Namespace) -> int:
    overrides = _overrides(arguments)
    settings = AttackSettings(
        tasks_per_split=arguments.tasks, seed=arguments.seed, deadline_s=arguments.timeout_s, sandbox=arguments.sandbox
    )
    out = sys.stdout
    told: list[CheckRow] = []
    on_row = told.append if arguments.json else functools.partial(_write_row, out)
    with contextlib.redirect_stdout(sys.stderr):  # what the environment prints is no part of the report
        try:
            with _loading():
                config = to_object(compose_command("evaluate", overrides, arguments.config_dir))
                env_class = load_env_class(config.env.id, arguments.config_dir)
            rows = _run(_attack(config, env_class, settings, on_row))
        except _NotLoadedError as error:
            rows = [error.row]
            on_row(error.row)
    if arguments.json:
        out.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        out.write(_summary(rows))
    return EXIT_FAILED if failures(rows) else EXIT_OK


def _write_row(out: TextIO, row: CheckRow) -> None:
    out.write(describe_row(row) + "\n")
    out.flush()


def _summary(rows: Sequence[CheckRow]) -> str:
    counts = {outcome: sum(row.outcome is outcome for row in rows) for outcome in Outcome}
    told = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    failed = ", ".join(row.name for row in failures(rows))
    return f"{told}{f'; to be mended: {failed}' if failed else ''}\n"


def _overrides(arguments: argparse.Namespace) -> list[Override]:
    name, *words = arguments.words or [""]
    if not name or "=" in name:
        raise UsageError("say what to check: a name, file.py:Class or package.module:Class, then env.key=value")
    overrides = parse_overrides(words)
    for override in overrides:
        if not override.key.startswith(("env.", "sandbox.")):
            raise ConfigError(f"'{override.key}' is no key of a check: it takes env.key=value and sandbox.key=value")
    return [Override("env", name), Override("sandbox", arguments.sandbox), *overrides]


async def _attack(
    config: schema.EvaluateConfig, env_class: type[Env], settings: AttackSettings, on_row: Callable[[CheckRow], None]
) -> list[CheckRow]:
    make = assembly.make_env_factory(config.env, env_class)
    with _loading():
        catalogue = assembly.make_environments(config.env, env_class, None)
        async with catalogue.shared():
            needs_sandbox = assembly.needs_sandbox(catalogue)
    sandboxes: SandboxProvider | None = await assembly.open_sandboxes(config.sandbox) if needs_sandbox else None
    async with sandboxes or contextlib.nullcontext():
        return await attack_env(make, sandboxes=sandboxes, settings=settings, on_row=on_row)


class _NotLoadedError(Exception):
    """The environment's own code failed before it could be attacked."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        file, line = place_of(error)
        self.row = CheckRow(
            name="loading",
            must="the environment can be imported, made and asked for its tools",
            outcome=Outcome.FAILED,
            seen=f"it raised {type(error).__name__}: {error}, from {file}:{line}",
            advice="Mend this first; nothing else was tried. Something missing? pip install it.",
        )


@contextlib.contextmanager
def _loading() -> Iterator[None]:
    try:
        yield
    except MilesError:
        raise
    except Exception as error:  # seam: the user's own module, of which a row tells
        raise _NotLoadedError(error) from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but what ignores its cancellation is not waited for without end."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        running = loop.create_task(work)
        try:
            return loop.run_until_complete(running)
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=_END_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


# --- new --------------------------------------------------------------------------------------------------------------


def _new_parser() -> _Parser:
    parser = _Parser(prog=f"{_PROGRAM} new", description="Write a package with an environment to start from.")
    parser.add_argument("name", help="of the package and of the environment, e.g. my_env")
    parser.add_argument("--folder", type=Path, help="where to (./NAME)")
    return parser


def _new(arguments: argparse.Namespace) -> int:
    name = arguments.name
    check_name(name)
    folder = Path(name) if arguments.folder is None else arguments.folder.expanduser()
    for path in write_package(name, folder):
        sys.stdout.write(f"{path}\n")
    sys.stdout.write(
        f"\nnext: cd {shlex.quote(str(folder))}\n"
        f"      {_PROGRAM} check ./{name}/env.py:{class_name_of(name)}\n"
        "      pip install -e .\n"
    )
    return EXIT_OK


# --- arguments --------------------------------------------------------------------------------------------------------


def _add_config_dir(parser: _Parser) -> None:
    parser.add_argument(
        "--config-dir", type=_folder, metavar="DIR", help="a folder of your own with YAML files by group (DIR/env/…)"
    )


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {text}")
    return path


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text} is no number above 0")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return int(text)


if __name__ == "__main__":
    finish(main(sys.argv[1:]))
