"""The functions behind the generated tasks: each computes expected values here and is the reference solution there.

Their source text, with the parameters filled in by a function of the task's own name, is what the oracle hands in.
They use builtins alone, so that the text stands by itself.
"""

from __future__ import annotations


def multiples_sum(n: int, *, a: int, b: int) -> int:
    """The sum of the positive integers below `n` that are divisible by `a` or `b`."""
    return sum(each for each in range(1, n) if each % a == 0 or each % b == 0)


def shift_letters(text: str, *, shift: int, step: int) -> str:
    """The k-th letter moved by `shift + k * step` places in the alphabet, case kept; other characters stay."""
    moved = []
    count = 0
    for character in text:
        if "a" <= character <= "z" or "A" <= character <= "Z":
            first = ord("a") if character.islower() else ord("A")
            moved.append(chr((ord(character) - first + shift + count * step) % 26 + first))
            count += 1
        else:
            moved.append(character)
    return "".join(moved)


def encode_runs(text: str, *, least: int, mark: str) -> str:
    """Runs of at least `least` equal characters as count, mark, character; shorter ones as they are."""
    parts = []
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or text[end] != text[start]:
            length = end - start
            parts.append(f"{length}{mark}{text[start]}" if length >= least else text[start:end])
            start = end
    return "".join(parts)


def best_window(numbers: list[int], *, width: int, skip: int) -> int | None:
    """The largest sum of `width` numbers that stand `skip` places apart; None if there are too few."""
    span = (width - 1) * skip + 1
    sums = [sum(numbers[start : start + span : skip]) for start in range(len(numbers) - span + 1)]
    return max(sums) if sums else None


def group_by_remainder(numbers: list[int], *, modulus: int, offset: int) -> dict[str, list[int]]:
    """The numbers by `(number + offset) % modulus`, as text, each group sorted without repeats."""
    groups: dict[str, set[int]] = {}
    for number in numbers:
        groups.setdefault(str((number + offset) % modulus), set()).add(number)
    return {key: sorted(members) for key, members in groups.items()}


def digit_game(number: int, *, base: int, power: int) -> int:
    """Steps until a number was seen before, when it becomes the sum of the powers of its digits in `base`."""
    seen = set()
    steps = 0
    while number not in seen:
        seen.add(number)
        total = 0
        while number:
            number, digit = divmod(number, base)
            total += digit**power
        number = total
        steps += 1
    return steps


def checked_mean(values: list[float], *, low: int, high: int) -> float:
    """The mean of the values.

    Raises:
        ValueError: there are none.
        OverflowError: one is below `low` or above `high`.
    """
    if not values:
        raise ValueError("no values")
    if any(value < low or value > high for value in values):
        raise OverflowError("out of range")
    return sum(values) / len(values)


def smooth(values: list[float], *, percent: int, drop: int) -> list[float]:
    """Each value moved from the smoothed one before it by `percent` per cent; the first `drop` are left out."""
    smoothed: list[float] = []
    for value in values:
        before = smoothed[-1] if smoothed else value
        smoothed.append(before + (value - before) * percent / 100)
    return smoothed[drop:]


def rotate_rings(rows: list[list[int]], *, turns: int, add: int) -> list[list[int]]:
    """A rectangle turned clockwise by quarter turns, `add` added to every number at each turn."""
    turned = [list(row) for row in rows]
    for _ in range(turns):
        turned = [[each + add for each in column] for column in zip(*turned[::-1], strict=True)]
    return turned


def tally_lines(text: str, *, separator: str, least: int) -> str:
    """Lines `name<separator>amount` summed by name: those of at least `least`, largest first, then by name."""
    totals: dict[str, int] = {}
    for line in text.splitlines():
        name, _, amount = line.partition(separator)
        if amount:
            totals[name.strip()] = totals.get(name.strip(), 0) + int(amount)
    kept = [(total, name) for name, total in totals.items() if total >= least]
    return "".join(f"{name} {total}\n" for total, name in sorted(kept, key=lambda each: (-each[0], each[1])))


def countdown(text: str, *, step: int, word: str) -> str:
    """The numbers from the first one of `text` down to 0 by `step`, one a line, then the word."""
    number = int(text.split()[0])
    lines = [str(each) for each in range(number, -1, -step)]
    return "\n".join([*lines, word]) + "\n"


def column_sums(text: str, *, skip: int, modulus: int) -> str:
    """The sums of the columns of the rows behind the first `skip` ones, modulo `modulus`, in one line."""
    rows = [[int(each) for each in line.split()] for line in text.splitlines()[skip:] if line.strip()]
    return " ".join(str(sum(column) % modulus) for column in zip(*rows, strict=True)) + "\n"
