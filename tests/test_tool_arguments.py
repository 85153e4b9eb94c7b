"""Arguments of every type: the schema says them, the function gets them, the model is told what is wrong with them."""

import dataclasses
import enum
import json
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from miles_agents import ToolError, tool
from miles_agents.contracts import ToolContext, as_tool
from miles_agents.errors import UsageError

CONTEXT = ToolContext()


class Colour(enum.Enum):
    """A colour of the rainbow.

    Not all of them are here.
    """

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Point:
    """A place on the map.

    Args:
        x: metres to the east.
        title: what stands there.
    """

    x: int
    title: str = "nothing"


class Box(BaseModel):
    """A rectangle.

    Attributes:
        corner: its lower left one.
    """

    corner: Point
    inner: list["Box"] = []
    label: Annotated[str, Field(description="written on it")] = ""


class Size(TypedDict):
    width: int


@tool
def draw(
    box: Box,
    level: Level,
    colour: Colour = Colour.RED,
    title: int | None = None,
    points: list[Point] = [],  # noqa: B006
    weights: dict[str, float] = {},  # noqa: B006
    names: int | list[str] = 3,
    count: Annotated[int, Field(ge=1, le=9, description="how often")] = 3,
    size: Size | None = None,
    day: date | None = None,
    kind: Literal[1, "x"] = 1,
    dashed: bool = False,
    shape: Point | Box | None = None,
    text: str = "",
    pair: tuple[int, str] = (1, "a"),
    tags: set[str] = frozenset(),
    note: Annotated[str, "for the reader"] = "",
) -> str:
    """Draw it.

    Args:
        box: what to draw.
        colour: of the line.
        note: is overruled by the annotation.
        count: is, too.
    """
    given.append(locals())
    return "drawn"


given: list[dict[str, Any]] = []
NEEDED = {"box": {"corner": {"x": 1}}, "level": 1}


async def drawn(**arguments):
    given.clear()
    await as_tool(draw).call({**NEEDED, **arguments}, CONTEXT)
    return given[0]


async def refusal(**arguments):
    with pytest.raises(ToolError) as caught:
        await as_tool(draw).call({**NEEDED, **arguments}, CONTEXT)
    prefix, _, message = str(caught.value).partition(": ")
    assert prefix == "bad arguments for 'draw'"
    return message


def parameters():
    return as_tool(draw).schema()["function"]["parameters"]


def test_the_schema_is_a_valid_one_and_takes_what_the_function_takes():
    schema = parameters()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    validator.validate(NEEDED)
    validator.validate({**NEEDED, "box": {"corner": {"x": 1}, "inner": [{"corner": {"x": 2, "title": "t"}}]}})
    assert not validator.is_valid({**NEEDED, "box": {"corner": {}}})
    assert not validator.is_valid({**NEEDED, "colour": "green"})
    assert not validator.is_valid({**NEEDED, "kind": "y"})


def test_titles_are_left_out_and_arguments_called_title_are_not():
    schema = parameters()
    assert "title" in schema["properties"]
    assert "title" in schema["$defs"]["Point"]["properties"]
    del schema["properties"]["title"], schema["$defs"]["Point"]["properties"]["title"]
    assert '"title"' not in json.dumps(schema)


def test_descriptions_come_from_docstrings_and_annotations_of_the_function_and_of_nested_classes():
    schema = parameters()
    properties, nested = schema["properties"], schema["$defs"]
    assert properties["box"]["description"] == "what to draw."
    assert properties["colour"]["description"] == "of the line."
    assert properties["note"]["description"] == "for the reader"
    assert properties["count"]["description"] == "how often"
    assert nested["Point"]["description"] == "A place on the map."
    assert nested["Point"]["properties"]["x"]["description"] == "metres to the east."
    assert nested["Point"]["properties"]["title"]["description"] == "what stands there."
    assert nested["Box"]["description"] == "A rectangle."
    assert nested["Box"]["properties"]["corner"]["description"] == "its lower left one."
    assert nested["Box"]["properties"]["label"]["description"] == "written on it"
    assert nested["Colour"]["description"] == "A colour of the rainbow."


def test_defaults_are_in_the_schema():
    properties = parameters()["properties"]
    assert properties["colour"]["default"] == "red"
    assert properties["points"]["default"] == []
    assert properties["title"]["default"] is None
    assert parameters()["required"] == ["box", "level"]


async def test_the_function_gets_real_instances():
    got = await drawn(
        colour="blue",
        level=2,
        points=[{"x": 4}],
        day="2026-01-31",
        shape={"corner": {"x": 5}},
        pair=[2, "b"],
        tags=["t", "t"],
        size={"width": 3},
        names=["n"],
    )
    assert got["box"] == Box(corner=Point(1))
    assert got["colour"] is Colour.BLUE
    assert got["level"] is Level.HIGH
    assert got["points"] == [Point(4, "nothing")]
    assert got["day"] == date(2026, 1, 31)
    assert got["shape"] == Box(corner=Point(5))
    assert (got["pair"], got["tags"], got["size"], got["names"]) == ((2, "b"), {"t"}, {"width": 3}, ["n"])


async def test_a_mutable_default_is_each_calls_own():
    (await drawn())["points"].append("spoilt")
    assert (await drawn())["points"] == []


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("count", "4", 4),
        ("count", 4.0, 4),
        ("count", None, 3),
        ("dashed", "true", True),
        ("text", 7, "7"),
        ("text", None, ""),
        ("points", '[{"x": 1}]', [Point(1)]),
        ("names", '["a"]', ["a"]),
        ("weights", ' {"a": 1}', {"a": 1.0}),
        ("box", '{"corner": {"x": 3}}', Box(corner=Point(3))),
        ("text", "[1]", "[1]"),
    ],
)
async def test_slips_that_lose_nothing_are_read_as_they_were_meant(name, written, read):
    assert (await drawn(**{name: written}))[name] == read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": "four"}, "'count' must be an integer, got \"four\""),
        ({"count": 3.5}, "'count' must be an integer, got 3.5"),
        ({"count": 0}, "'count' must be at least 1, got 0"),
        ({"colour": "green"}, "'colour' must be 'red' or 'blue', got \"green\""),
        ({"kind": "y"}, "'kind' must be 1 or 'x', got \"y\""),
        ({"dashed": "maybe"}, "'dashed' must be true or false, got \"maybe\""),
        ({"day": "tomorrow"}, "'day' must be a date such as 2026-01-31, got \"tomorrow\""),
        ({"text": ["a"]}, "'text' must be a string, got [\"a\"]"),
        ({"points": {"x": 1}}, "'points' must be a list, got {\"x\": 1}"),
        ({"points": [{"x": 1}, {"x": "a"}]}, "'points[1].x' must be an integer, got \"a\""),
        ({"points": "[{'x': 1}]"}, "'points' must be a list, got \"[{'x': 1}]\""),
        ({"points": "[NaN]"}, "'points' must be a list, got \"[NaN]\""),
        ({"weights": [1]}, "'weights' must be an object, got [1]"),
        ({"weights": {"a": "b"}}, "'weights.a' must be a number, got \"b\""),
        ({"box": {}}, "'box.corner' is missing"),
        ({"box": '{"corner": {"x": "a"}}'}, "'box.corner.x' must be an integer, got \"a\""),
        ({"box": {"corner": 3}}, "'box.corner' must be an object, got 3"),
        ({"points": [{"x": 1, "y": 2}]}, "'points[0].y' is no argument. Leave it out"),
        ({"size": {"width": 1, "depth": 2}}, "'size.depth' is no argument. Leave it out"),
        ({"level": None}, "'level' must be 1 or 2, got null"),
        ({"names": {}}, "'names' must be an integer or a list, got {}"),
        ({"shape": 7}, "'shape' must be an object, got 7"),
        (
            {"shape": {"corner": {"x": "a"}}},
            "'shape' fits none of its forms: (Point) 'shape.x' is missing / "
            "(Point) 'shape.corner' is no argument. Leave it out / "
            "(Box) 'shape.corner.x' must be an integer, got \"a\"",
        ),
    ],
)
async def test_the_model_is_told_which_argument_what_is_allowed_and_what_it_gave(arguments, message):
    assert await refusal(**arguments) == message


async def test_several_problems_are_one_bounded_line_without_the_librarys_words():
    message = await refusal(
        colour="y" * 9000, count="z", dashed=3, kind=3, size=4, day="q\n" * 900, **{"a\nb" * 900: 1}, box=[1] * 9000
    )
    assert len(message) < 400
    assert "\n" not in message
    assert message.endswith("; and 4 more")
    for word in ("pydantic", "http", "value_error", "Input should", "argument_0", "type="):
        assert word not in message


async def test_a_long_list_of_choices_is_shortened_to_the_nearest():
    def pick(name: Literal[tuple(f"city number {number}" for number in range(400))]) -> str:
        return name

    with pytest.raises(ToolError, match=r"'name' must be one of 400 values such as 'city number 12', ") as caught:
        await as_tool(pick).call({"name": "city no 12"}, CONTEXT)
    assert len(str(caught.value)) < 200


async def test_the_functions_own_check_speaks_in_its_own_words():
    class Even(BaseModel):
        n: int

        def model_post_init(self, context):
            if self.n % 2:
                raise ValueError(f"{self.n} is odd; give an even number")

    def half(even: Even) -> int:
        return even.n // 2

    assert (await as_tool(half).call({"even": {"n": 4}}, CONTEXT)).text == "2"
    with pytest.raises(ToolError, match="'even' 3 is odd; give an even number"):
        await as_tool(half).call({"even": {"n": 3}}, CONTEXT)


def test_types_that_no_json_can_say_are_refused_at_once():
    def callback(on_end: Opaque) -> None: ...
    def field_default(n: int = Field(3, ge=1)) -> None: ...

    for function, message in [
        (callback, "cannot be written as a JSON schema"),
        (field_default, r"write n: Annotated\[TYPE, Field\(…\)\] = DEFAULT"),
    ]:
        with pytest.raises(UsageError, match=message) as caught:
            tool(function)
        assert "http" not in str(caught.value)


class Opaque:
    """Nothing pydantic knows."""


@pytest.mark.parametrize(
    "limits", [{"timeout_s": 0}, {"max_concurrency": 0}, {"retries": -1}, {"timeout_s": float("inf")}]
)
def test_impossible_limits_are_refused(limits):
    with pytest.raises(UsageError, match=next(iter(limits))):
        tool(**limits)


async def test_dataclasses_and_models_that_a_tool_returns_are_shown_as_json():
    def point() -> Point:
        return Point(1)

    def box() -> Box:
        return Box(corner=Point(2))

    assert json.loads((await as_tool(point).call({}, CONTEXT)).text) == {"x": 1, "title": "nothing"}
    assert json.loads((await as_tool(box).call({}, CONTEXT)).text)["corner"] == {"x": 2, "title": "nothing"}
