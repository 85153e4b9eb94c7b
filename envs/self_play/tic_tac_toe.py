"""Tic-tac-toe from any position of up to three marks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from miles_agents.answers import extract_boxed
from miles_agents.envs.self_play.game import FIRST, SEATS, SECOND, Game, Start

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_MARKS = {FIRST: "X", SECOND: "O"}
_EMPTY = "."
_BOARD = re.compile(r"^([XO1-9]) ([XO1-9]) ([XO1-9])$", re.MULTILINE)
_YOURS = re.compile(r"You are ([XO])")


class TicTacToe(Game):
    """X is the first seat. A win is worth 1, a draw 0.5, a loss 0."""

    rules = (
        "Play tic-tac-toe. Three equal marks in a row, column or diagonal win. The squares are numbered 1 to 9; answer "
        "with the number of a free square in \\boxed{}."
    )

    @classmethod
    def starts(cls) -> Iterator[Start]:
        """Boards of 0 to 3 marks, X and O in turn: 1 + 9 + 72 + 252."""
        for marks in range(4):
            crosses, noughts = (marks + 1) // 2, marks // 2
            for of_x in combinations(range(9), crosses):
                for of_o in combinations([square for square in range(9) if square not in of_x], noughts):
                    board = "".join("X" if s in of_x else "O" if s in of_o else _EMPTY for s in range(9))
                    yield Start(f"board-{board}", {"board": board})

    def __init__(self, setting: Mapping[str, Any]) -> None:
        self._board = str(setting["board"])

    @property
    def to_act(self) -> str:
        """X moves on an even number of marks."""
        return SEATS[(9 - self._board.count(_EMPTY)) % 2]

    def told(self, seat: str, *, at_first: bool) -> str:
        """The board; free squares show their numbers."""
        return f"You are {_MARKS[seat]}.\n{shown(self._board)}"

    def play(self, seat: str, text: str) -> str:
        """The number in the last box, or a reply that is nothing but a number."""
        boxed = extract_boxed(text)
        given = (text if boxed is None else boxed).strip()
        if not re.fullmatch(r"[1-9]", given):
            return "No move: answer with one number from 1 to 9 in \\boxed{}."
        square = int(given) - 1
        if self._board[square] != _EMPTY:
            return f"Square {given} is taken."
        self._board = _put(self._board, square, _MARKS[seat])
        return ""

    @property
    def result(self) -> Mapping[str, float] | None:
        """Decided by a line of three, or a full board."""
        winner = _winner(self._board)
        if winner:
            return {seat: float(mark == winner) for seat, mark in _MARKS.items()}
        return None if _EMPTY in self._board else dict.fromkeys(SEATS, 0.5)

    @classmethod
    def winning_line(cls, setting: Mapping[str, Any]) -> Sequence[str]:
        """O plays as badly as it can."""
        line = _fastest_win(str(setting["board"]))
        return [f"\\boxed{{{square + 1}}}" for square in line]


def shown(board: str) -> str:
    """Three rows of three."""
    cells = [str(square + 1) if mark == _EMPTY else mark for square, mark in enumerate(board)]
    return "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))


def _put(board: str, square: int, mark: str) -> str:
    return board[:square] + mark + board[square + 1 :]


def _winner(board: str) -> str:
    return next((board[a] for a, b, c in _LINES if board[a] != _EMPTY and board[a] == board[b] == board[c]), "")


def _free(board: str) -> list[int]:
    return [square for square, mark in enumerate(board) if mark == _EMPTY]


def _mark_to_move(board: str) -> str:
    return "XO"[len(board.replace(_EMPTY, "")) % 2]


@lru_cache(maxsize=8192)
def value(board: str) -> int:
    """Of best play for the side to move: 1 wins, 0 draws, −1 loses (minimax)."""
    if _winner(board):
        return -1
    free = _free(board)
    if not free:
        return 0
    mark = _mark_to_move(board)
    return max(-value(_put(board, square, mark)) for square in free)


def _fastest_win(board: str) -> tuple[int, ...]:
    """The shortest sequence of moves of both after which X has a line; breadth first."""
    boards: list[tuple[str, tuple[int, ...]]] = [(board, ())]
    while boards:
        longer: list[tuple[str, tuple[int, ...]]] = []
        for each, line in boards:
            if _winner(each) == "X":
                return line
            if _winner(each):
                continue
            mark = _mark_to_move(each)
            longer += [(_put(each, square, mark), (*line, square)) for square in _free(each)]
        boards = longer
    raise ValueError(f"X cannot win from {board!r} any more")


def _read(text: str) -> str:
    """The board in what a seat was told."""
    rows = _BOARD.findall(text)[-3:]
    return "".join(cell if cell in "XO" else _EMPTY for row in rows for cell in row)


def _at_random(text: str, rng: np.random.Generator) -> str:
    return f"\\boxed{{{int(rng.choice(_free(_read(text)))) + 1}}}"


def _perfect(text: str, rng: np.random.Generator) -> str:
    board = _read(text)
    mark = _mark_to_move(board)
    worth = {square: -value(_put(board, square, mark)) for square in _free(board)}
    best = [square for square, each in worth.items() if each == max(worth.values())]
    return f"\\boxed{{{int(rng.choice(best)) + 1}}}"


TicTacToe.opponents = {"random": _at_random, "perfect": _perfect}
