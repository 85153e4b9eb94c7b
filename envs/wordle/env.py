"""`wordle-v0`: a game of several turns, written as a `ToolEnv` with one tool of its own, `guess`."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence

from miles_agents.contracts import Observation, ToolEnv, ToolOutput, tool
from miles_agents.envs.splits import split_of
from miles_agents.envs.wordle.words import WORDS
from miles_agents.errors import ConfigError, did_you_mean
from miles_agents.registry import environments
from miles_agents.types import Episode, Message, Reply, Task, ToolCall

RIGHT, ELSEWHERE, ABSENT = "=", "~", "."

_SEED = 0  # the tasks of a split are always the same
_MARKS = re.compile(r"^[a-z]{5} ([=~.]{5})")
_SPARE_TURNS = 2  # for calls that could not be read


@environments.register("wordle-v0")
class Wordle(ToolEnv):
    """Find a word of five letters; each guess is marked letter by letter.

    The prompt lists the words it may be; any five letters may be guessed. A guess of another form is told so and
    counts. Rewards: `solved`, 1 if the word was found; `spared`, the share of guesses that were left when it was.

    Args:
        candidates: how many words the prompt lists.
        max_guesses: calls of `guess` that may be made.
        train_size: tasks of the train split.
        validation_size: tasks of the validation split.
        test_size: tasks of the test split.
        spared_weight: weight of the reward `spared`; 0 records it without training on it.

    Raises:
        ConfigError: a value out of its range.
    """

    def __init__(
        self,
        *,
        candidates: int = 24,
        max_guesses: int = 6,
        train_size: int = 2048,
        validation_size: int = 128,
        test_size: int = 256,
        spared_weight: float = 0.0,
    ) -> None:
        self.candidates = candidates
        self.max_guesses = max_guesses
        self.max_turns = max_guesses + _SPARE_TURNS
        self.reward_weights = {"solved": 1.0, "spared": spared_weight}
        self._sizes = {"train": train_size, "validation": validation_size, "test": test_size}
        checks = [
            ("candidates", candidates, 8 <= candidates <= 48, "from 8 to 48"),
            ("max_guesses", max_guesses, max_guesses >= 1, "at least 1"),
            ("spared_weight", spared_weight, math.isfinite(spared_weight), "a finite number"),
            *((f"{name}_size", size, 1 <= size <= 100_000, "from 1 to 100000") for name, size in self._sizes.items()),
        ]
        wrong = [f"env.{name}={value}: it must be {allowed}" for name, value, fine, allowed in checks if not fine]
        if wrong:
            raise ConfigError("; ".join(wrong))
        self.reward_range = (min(spared_weight, 0.0), 1.0 + max(spared_weight, 0.0))
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._secret = ""
        self._guesses = 0
        self._solved = False

    @tool(ends_episode=True)
    async def guess(self, word: str) -> ToolOutput:
        """Guess the word. `=` marks a letter at its place, `~` one that is elsewhere in the word, `.` one that is not.

        Args:
            word: five letters.
        """
        self._guesses += 1
        word = word.strip().lower()
        if not re.fullmatch("[a-z]{5}", word):
            said = "a guess is five letters from a to z; this one counts all the same"
        else:
            self._solved = word == self._secret
            said = f"{word} {marks(self._secret, word)}"
        left = self.max_guesses - self._guesses
        if self._solved or left == 0:
            return ToolOutput(f"{said} ({'found' if self._solved else 'no guess left'})", submitted=word)
        return ToolOutput(f"{said} ({left} {'guess' if left == 1 else 'guesses'} left)")

    def tasks(self, split: str) -> tuple[Task, ...]:
        """The tasks of a split: words that no other split has.

        Raises:
            ConfigError: no such split.
        """
        if split not in self.splits:
            raise ConfigError(f"unknown split {split!r}. {did_you_mean(split, self.splits)}")
        if split not in self._tasks:
            self._tasks[split] = tuple(self._generated(split))
        return self._tasks[split]

    async def begin(self, task: Task) -> None:
        """A new game."""
        self._secret = str(task.answer)
        self._guesses = 0
        self._solved = False

    async def reward(self, episode: Episode) -> dict[str, float]:
        """`solved` and `spared`."""
        spared = (self.max_guesses - self._guesses) / self.max_guesses if self._solved else 0.0
        return {"solved": float(self._solved), "spared": spared}

    def oracle(self, task: Task) -> Generator[Reply, Observation, None]:
        """Guess the word that leaves the fewest at worst; it knows the list of the prompt and not the secret."""
        left = re.findall(r"\b[a-z]{5}\b", task.prompt[0].text.rpartition("\n")[2])
        while True:
            word = best_guess(left)
            (said,) = yield _guess(word)
            if (seen := _MARKS.match(said.text)) is not None:
                left = [each for each in left if marks(each, word) == seen[1]]

    def _generated(self, split: str) -> Iterator[Task]:
        rng = random.Random(f"{_SEED}/{self.candidates}/{split}")
        words = [word for word in WORDS if split_of(f"wordle {word}") == split]
        seen: set[tuple[str, ...]] = set()
        while len(seen) < self._sizes[split]:
            listed = tuple(sorted(rng.sample(words, self.candidates)))
            if listed in seen:
                continue
            seen.add(listed)
            text = (
                f"Find the secret word of five letters with at most {self.max_guesses} calls of the guess tool. Each "
                f"guess is answered letter by letter: {RIGHT} right place, {ELSEWHERE} elsewhere in the word, {ABSENT} "
                f"not in the word. The secret is one of these words:\n{' '.join(listed)}"
            )
            yield Task(
                id=f"{split}/{len(seen) - 1}", prompt=(Message.user(text),), answer=rng.choice(listed), split=split
            )


def marks(secret: str, guess: str) -> str:
    """How a guess is marked. A letter is marked as often as the secret has it, right places first, then from the left.

    Args:
        secret: five letters.
        guess: five letters.
    """
    unplaced = Counter(true for true, said in zip(secret, guess, strict=True) if true != said)
    found = []
    for true, said in zip(secret, guess, strict=True):
        if true == said:
            found.append(RIGHT)
        elif unplaced[said] > 0:
            unplaced[said] -= 1
            found.append(ELSEWHERE)
        else:
            found.append(ABSENT)
    return "".join(found)


def best_guess(left: Sequence[str]) -> str:
    """The first of the words that leaves the fewest of them in the worst case."""
    return min(left, key=lambda word: max(Counter(marks(secret, word) for secret in left).values()))


def _guess(word: str) -> Reply:
    raw = json.dumps({"name": "guess", "arguments": {"word": word}})
    call = ToolCall(id="call_0", name="guess", arguments={"word": word}, raw=raw)
    return Reply(text=f"<tool_call>\n{raw}\n</tool_call>", calls=(call,))
