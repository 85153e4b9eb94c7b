"""`judge-v0`: an open task, one reply, points by a rubric from a model that judges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from miles_agents.contracts import ToolEnv
from miles_agents.envs.judge.asking import DEFAULT_SYSTEM, Case, ask
from miles_agents.envs.judge.files import loaded_tasks
from miles_agents.envs.judge.model_judge import JudgeSettings, ModelJudge
from miles_agents.envs.judge.rubric import PASSED, OpenTask, Rubric
from miles_agents.envs.judge.rules import can_judge, keyword_scores
from miles_agents.envs.judge.topics import built_in_tasks
from miles_agents.errors import ConfigError, DataError, GraderError, choose, did_you_mean
from miles_agents.registry import environments
from miles_agents.types import Episode, Message, Reply, Task

_SLACK_S = 60.0  # for the cache, and for a busy event loop
_FAILED = "judge_failed"


class JudgeKind(StrEnum):
    """Who gives the points."""

    MODEL = "model"  # behind an OpenAI-compatible server
    RULES = "rules"  # counted keywords, to try things out; see rules.py


@environments.register("judge-v0")
class Judged(ToolEnv):
    """Open-ended tasks of writing and explaining; a model gives points by a rubric.

    Rewards: each criterion of the task's rubric under its name, from 0 to 1, weighted as the rubric says, so that the
    reward is from 0 to 1; `answer`, 1 if the reward is `pass_mark` or more, which is what accuracy counts;
    `judge_failed`, 1 where the judge failed and `failure` is a number. An empty reply gets 0 and is not sent.

    Args:
        data: a JSONL file of tasks (`question`, `rubric`, optionally `reference`), a folder or a pattern with
            `{split}`; None takes the built-in ones.
        judge: model, or rules, which counts keywords and needs no server: to try things out.
        base_url: of an OpenAI-compatible server, e.g. http://127.0.0.1:30000/v1.
        model: the judge's name there.
        api_key_env: name of the environment variable that holds the key; "" sends none.
        failure: what becomes of an episode whose judge failed: error loses it (cause `grader`, counted, in no
            figure), a number from 0 to 1 is its score, and `judge_failed` says so.
        cache: a folder that keeps verdicts; the same reply is never asked about twice. "" keeps none.
        scale: the most points of one criterion; the judge gives whole ones.
        pass_mark: the reward from which a reply counts as right.
        retries: further questions after an answer that is no verdict.
        request_deadline_s: seconds for one answer of the judge, retries of the connection included.
        temperature: of the judge.
        max_tokens: of one answer of the judge, its thinking included.
        max_tokens_key: `max_tokens`, or `max_completion_tokens` for servers that want that.
        sends_seed: false for servers that refuse `seed`.
        extra_body: further keys of each request, a mapping.
        max_reply_chars: of a longer reply the middle is not shown to the judge.
        judge_prompt: the judge's system message; None is the built-in one; `{code}` becomes the code of the marks.
        system_prompt: the policy's system message; "" sends none.
        train_size: tasks of the train split; None is all there are. A smaller number takes the first.
        validation_size: tasks of the validation split, likewise.
        test_size: tasks of the test split, likewise.

    Raises:
        ConfigError: a value out of its range.
    """

    configurable: ClassVar[tuple[str, ...]] = ("shaping",)  # weights of criteria stand in the rubrics
    max_turns = 1

    def __init__(
        self,
        *,
        data: str | None = None,
        judge: str = "model",
        base_url: str = "",
        model: str = "",
        api_key_env: str = "",
        failure: Any = "error",  # str or float: a union that configuration schemas cannot express
        cache: str = "",
        scale: int = 4,
        pass_mark: float = 0.75,
        retries: int = 2,
        request_deadline_s: float = 120.0,
        temperature: float = 0.0,
        max_tokens: int = 2048,
        max_tokens_key: str = "max_tokens",
        sends_seed: bool = True,
        extra_body: Any = None,  # a mapping
        max_reply_chars: int = 20_000,
        judge_prompt: str | None = None,
        system_prompt: str = "",
        train_size: int | None = None,
        validation_size: int | None = None,
        test_size: int | None = None,
    ) -> None:
        self.data = data
        self.kind = choose(JudgeKind, judge, key="env.judge")
        self.failure = _failure(failure)
        self.scale = scale
        self.pass_mark = pass_mark
        self.max_reply_chars = max_reply_chars
        self.judge_prompt = DEFAULT_SYSTEM if judge_prompt is None else judge_prompt
        self.system_prompt = system_prompt
        self.settings = JudgeSettings(
            base_url=base_url,
            model=model,
            api_key_env=api_key_env,
            cache=cache,
            retries=retries,
            temperature=temperature,
            max_tokens=max_tokens,
            request_deadline_s=request_deadline_s,
            max_tokens_key=max_tokens_key,
            sends_seed=sends_seed,
            extra_body=_mapping(extra_body),
        )
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        self._check_ranges()
        self.reward_timeout_s = self.settings.whole_deadline_s + _SLACK_S
        self._judge: ModelJudge | None = None
        self._tasks: dict[str, tuple[Task, ...]] = {}

    async def open_shared(self) -> None:
        """Reach the judge.

        Raises:
            UsageError: there is none, it does not answer, it does not know the model, or the cache cannot be written.
        """
        await super().open_shared()
        if self.kind is JudgeKind.MODEL:
            if self._judge is None:
                self._judge = ModelJudge(self.settings)
            await self._judge.open()

    async def close_shared(self) -> None:
        """Leave the judge."""
        if self._judge is not None:
            await self._judge.close()
        await super().close_shared()

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split, always the same and in the same order.

        Raises:
            ConfigError: no such split.
            DataError: a missing or broken data file, or a rubric that `judge=rules` cannot count.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            found: Iterable[OpenTask] = built_in_tasks(split) if self.data is None else loaded_tasks(self.data, split)
            self._tasks[split] = tuple(self._task(each, split) for each in list(found)[: self._sizes[split]])
        return self._tasks[split]

    async def begin(self, task: Task) -> None:
        """The weights of the task's criteria; those of other rewards are 0."""
        self.reward_weights = {**Rubric.from_json(task.answer).weights(), PASSED: 0.0, _FAILED: 0.0}

    async def reward(self, episode: Episode) -> dict[str, float]:
        """Each criterion, `answer`, and `judge_failed`.

        Raises:
            GraderError: the judge failed, and `failure` is `error`.
        """
        rubric = Rubric.from_json(episode.task.answer)
        failed = 0.0
        try:
            scores = await self._scores(episode, rubric)
        except GraderError:
            if self.failure is None:
                raise
            scores, failed = dict.fromkeys(rubric.names, self.failure), 1.0
        whole = math.fsum(weight * scores[name] for name, weight in rubric.weights().items())
        return {**scores, PASSED: float(whole >= self.pass_mark - 1e-9), _FAILED: failed}

    def oracle(self, task: Task) -> list[Reply]:
        """The reference.

        Raises:
            GraderError: the task has none.
        """
        reference = Rubric.from_json(task.answer).reference
        if not reference:
            raise GraderError(f"task {task.id}: it has no reference to play")
        return [Reply.of(reference)]

    async def _scores(self, episode: Episode, rubric: Rubric) -> Mapping[str, float]:
        reply = episode.final.content
        if not reply.strip():
            return dict.fromkeys(rubric.names, 0.0)
        if self.kind is JudgeKind.RULES:
            return keyword_scores(rubric, reply)
        case = Case(question=episode.task.metadata["question"], rubric=rubric, reply=reply)
        asked = ask(case, scale=self.scale, system=self.judge_prompt, max_reply_chars=self.max_reply_chars)
        if self._judge is None:
            raise GraderError("the judge is not open: call open_shared() first")
        verdict = await self._judge.verdict(asked)
        return {name: points / self.scale for name, points in verdict.points.items()}

    def _task(self, task: OpenTask, split: str) -> Task:
        if self.kind is JudgeKind.RULES and not can_judge(task.rubric):
            raise DataError(
                f"task {task.id}: env.judge=rules counts keywords, and its rubric has none: add 'keywords' to a "
                "criterion, or let a model judge (env.base_url=… env.model=…)"
            )
        system = (Message.system(self.system_prompt),) if self.system_prompt else ()
        kind = {"kind": task.kind} if task.kind else {}
        return Task(
            id=f"{split}/{task.id}",
            prompt=(*system, Message.user(task.question)),
            answer=task.rubric.as_json(),
            metadata={"question": task.question, **kind},
            split=split,
        )

    def _check_ranges(self) -> None:
        settings = self.settings
        checks = [
            ("scale", self.scale, 1 <= self.scale <= 100, "from 1 to 100"),
            ("pass_mark", self.pass_mark, 0 < self.pass_mark <= 1, "above 0, at most 1"),
            ("retries", settings.retries, 0 <= settings.retries <= 20, "from 0 to 20"),
            ("max_tokens", settings.max_tokens, settings.max_tokens >= 16, "at least 16"),
            ("max_reply_chars", self.max_reply_chars, self.max_reply_chars >= 100, "at least 100"),
            ("temperature", settings.temperature, 0 <= settings.temperature < math.inf, "0 or more"),
            (
                "request_deadline_s",
                settings.request_deadline_s,
                0 < settings.request_deadline_s < math.inf,
                "above 0",
            ),
            *((f"{name}_size", size, size is None or size >= 1, "at least 1") for name, size in self._sizes.items()),
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))


def _failure(given: Any) -> float | None:
    """The score of an episode whose judge failed; None loses it."""
    if given == "error":
        return None
    if isinstance(given, (int, float)) and not isinstance(given, bool) and 0 <= given <= 1:
        return float(given)
    raise ConfigError(f"env.failure={given!r}: give error, or a number from 0 to 1 that such an episode scores")


def _mapping(given: Any) -> dict[str, Any]:
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise ConfigError(f"env.extra_body={given!r}: give keys and values, e.g. env.extra_body={{reasoning_effort: low}}")
