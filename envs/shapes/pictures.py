"""Pictures of coloured shapes, drawn with numpy and written as PNG.

H, W are pixels of a picture or of one of its cells; a picture is an array (H, W) uint8 of indices into `PALETTE`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CELLS = 5  # in each direction; a cell has at most one shape, so that none covers another
SIZE = 200  # pixels in each direction

COLOURS = {"red": (214, 39, 40), "green": (44, 160, 44), "blue": (31, 80, 200), "orange": (255, 150, 0)}
KINDS = ("circle", "square", "triangle", "cross")
PALETTE = ((250, 250, 250), *COLOURS.values())
_CELL = SIZE // CELLS
_SMALLEST, _LARGEST = 11, 16  # half the size of a shape, in pixels


class Shape(NamedTuple):
    """One shape of a picture."""

    kind: str  # of KINDS
    colour: str  # of COLOURS
    cell: int  # row by row, from the top left
    radius: int  # half its width, in pixels
    shift: tuple[int, int]  # of its middle from the middle of the cell, in pixels: right, down


def place(kinds: Sequence[tuple[str, str]], rng: np.random.Generator) -> list[Shape]:
    """Put shapes (kind and colour of each) into cells of their own, of any size, a little off the middle.

    Args:
        kinds: at most CELLS².
        rng: where and how large.
    """
    cells = rng.permutation(CELLS * CELLS)[: len(kinds)]
    placed = []
    for (kind, colour), cell in zip(kinds, cells, strict=True):
        radius = int(rng.integers(_SMALLEST, _LARGEST + 1))
        room = _CELL // 2 - radius - 2
        right, down = (int(each) for each in rng.integers(-room, room + 1, size=2))
        placed.append(Shape(kind, colour, int(cell), radius, (right, down)))
    return placed


def draw(shapes: Sequence[Shape]) -> NDArray[np.uint8]:
    """The picture (SIZE, SIZE) of the shapes on a plain ground."""
    picture_HW = np.zeros((SIZE, SIZE), np.uint8)
    down_HW, right_HW = np.mgrid[:_CELL, :_CELL]
    for shape in shapes:
        row, column = divmod(shape.cell, CELLS)
        cell_HW = picture_HW[row * _CELL : (row + 1) * _CELL, column * _CELL : (column + 1) * _CELL]
        x_HW = right_HW - (_CELL // 2 + shape.shift[0])
        y_HW = down_HW - (_CELL // 2 + shape.shift[1])
        cell_HW[_inside(shape, x_HW, y_HW)] = list(COLOURS).index(shape.colour) + 1
    return picture_HW


def _inside(shape: Shape, x_HW: NDArray[np.int64], y_HW: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The pixels of a shape; x goes right and y down, from its middle."""
    r = shape.radius
    box_HW: NDArray[np.bool_] = (abs(x_HW) <= r) & (abs(y_HW) <= r)
    match shape.kind:
        case "circle":
            return np.asarray(x_HW**2 + y_HW**2 <= r**2)
        case "square":
            return np.asarray(box_HW)
        case "triangle":
            return np.asarray(box_HW & (2 * abs(x_HW) <= y_HW + r))
        case _:
            arm = max(2, r // 3)
            return np.asarray(box_HW & ((abs(x_HW) <= arm) | (abs(y_HW) <= arm)))


def encode_png(picture_HW: NDArray[np.uint8]) -> bytes:
    """A PNG (ISO/IEC 15948) of a picture: 8-bit indices into PALETTE, no interlacing, every row unfiltered."""
    height, width = picture_HW.shape
    rows = np.zeros((height, width + 1), np.uint8)  # before each row the number of its filter: 0, none
    rows[:, 1:] = picture_HW
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", bytes(value for colour in PALETTE for value in colour)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
