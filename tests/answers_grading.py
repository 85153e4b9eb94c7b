"""Grading elsewhere: in a spawned process and in a Ray actor. Importable there; holds no tests."""

from __future__ import annotations

from miles_agents.answers import equivalent


def grade(gold: str, answer: str) -> bool | None:
    """The verdict of this process."""
    return equivalent(gold, answer).correct


class Judge:
    """What a Ray actor does."""

    def grade(self, gold: str, answer: str) -> bool | None:
        """The verdict of the actor's process."""
        return grade(gold, answer)
