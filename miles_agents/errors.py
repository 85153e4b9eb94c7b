"""The error tree. Every exception has one audience: the model, the trajectory, or the operator.

| audience | class | what happens |
|---|---|---|
| the model | `ToolError` | becomes a tool message; the episode goes on |
| the trajectory | `EpisodeError` | that episode is recorded as failed, kept out of the loss, counted |
| the operator | `UsageError` | one message that says what to type, exit code 2, no traceback |
| the operator | any other | the run stops with its traceback |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import StrEnum
from typing import TypeVar

Choice = TypeVar("Choice", bound=StrEnum)


class FailureCause(StrEnum):
    """Why an episode was lost; each lost episode has exactly one."""

    POLICY = "policy"
    TOOL = "tool"
    SANDBOX = "sandbox"
    ENGINE = "engine"
    GRADER = "grader"
    FRAMEWORK = "framework"


class ToolErrorKind(StrEnum):
    """What was wrong with a tool call that was answered by an error."""

    NONE = ""  # nothing
    BAD_ARGUMENTS = "bad_arguments"  # the tool exists, but not with these arguments
    UNKNOWN_TOOL = "unknown_tool"
    MALFORMED_CALL = "malformed_call"  # it could not be read as a call
    TIMEOUT = "timeout"  # the tool's deadline, or the time limit of a program it ran
    ERROR = "error"  # the tool's own refusal, or a program that failed
    CRASHED = "crashed"  # the interpreter or the shell died
    OUTPUT_LIMIT = "output_limit"  # a program was stopped for printing too much
    NOT_EXECUTED = "not_executed"  # one call too many in its turn, or written after the one that ended the episode


class MilesError(Exception):
    """Base of every error this package raises on purpose."""


class ToolError(MilesError):
    """A bad call, bad arguments or a tool's own refusal. Audience: the model, as a tool message.

    `kind` is counted in the metrics of the tool.
    """

    kind: ToolErrorKind = ToolErrorKind.ERROR

    def __init__(self, message: str, *, kind: ToolErrorKind | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind


class EpisodeError(MilesError):
    """The episode cannot go on (sandbox lost, engine lost, environment bug). Audience: the trajectory.

    `cause` is recorded in the ledger of lost episodes.
    """

    cause: FailureCause = FailureCause.FRAMEWORK

    def __init__(self, message: str, *, cause: FailureCause | None = None) -> None:
        super().__init__(message)
        if cause is not None:
            self.cause = cause


class InfrastructureError(EpisodeError):
    """What a tool depends on failed (a server is away, a connection broke), through no fault of the call.

    The call is tried again as often as the tool allows (`ToolLimits.retries`); if the fault stays, the episode is lost.
    """

    cause = FailureCause.TOOL


class SandboxError(EpisodeError):
    """A sandbox could not be set up, or was lost. Never shown to the model as program output."""

    cause = FailureCause.SANDBOX


class EngineError(EpisodeError):
    """The inference engine failed this request (crash, deadline, lost connection)."""

    cause = FailureCause.ENGINE


class GraderError(EpisodeError):
    """Scoring raised or gave something that is no finite number; never counted as reward 0."""

    cause = FailureCause.GRADER


class UsageError(MilesError):
    """Something the operator typed or set up is wrong; the message says what to type instead."""


class ConfigError(UsageError):
    """A configuration key, type or sum is wrong."""


class UnknownNameError(UsageError):
    """A name that is not registered; the message carries the nearest names."""


class DataError(UsageError):
    """A data file is missing, lacks a column or has a broken line; file and line are named."""


class TemplateError(UsageError):
    """A chat template or tokenizer that cannot be rendered append-only or lacks a needed token."""


class SandboxUnavailableError(UsageError):
    """This machine cannot give the asked isolation; the message prints the way out."""


class CheckpointError(UsageError):
    """A checkpoint cannot be written (disk full) or read; former ones are intact."""


class RunFolderError(UsageError):
    """The run folder exists already or is not a run folder."""


class FailureRateError(MilesError):
    """More episodes failed than `rollout.max_failure_rate` allows; carries the first cause."""


class NoTrainableTokensError(MilesError):
    """A training batch without a single sampled token."""


def did_you_mean(name: str, allowed: Iterable[str], *, listed: int = 12) -> str:
    """Return `"Did you mean 'x'? "` plus the allowed names, for the end of an error message."""
    names = sorted(set(allowed))
    near = get_close_matches(name, names, n=2, cutoff=0.6)
    hint = f"Did you mean {' or '.join(repr(match) for match in near)}? " if near else ""
    shown = ", ".join(names[:listed]) + (", …" if len(names) > listed else "")
    return f"{hint}Allowed: {shown or 'none'}."


def choose(kind: type[Choice], value: str, *, key: str) -> Choice:
    """The member of `kind` that the setting `key` names by its value.

    Raises:
        UsageError: no such member; the message lists the allowed ones.
    """
    try:
        return kind(value)
    except ValueError as error:
        raise UsageError(
            f"{key}: unknown value {value!r}. {did_you_mean(str(value), [member.value for member in kind])}"
        ) from error


class WeightSyncError(MilesError):
    """Weights did not arrive as sent; the engine keeps its former complete version."""


def single_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error to show: a bug before errors raised on purpose; the group itself if there are several bugs."""
    leaves = list(_leaves(group))
    bugs = [error for error in leaves if not isinstance(error, MilesError)]
    if len(bugs) > 1:
        return group
    return bugs[0] if bugs else leaves[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
