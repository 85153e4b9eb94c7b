"""The arguments of a tool: a JSON schema from Python types and docstrings, and the check of what a model wrote.

The check is lenient where nothing is lost, because models slip there: `"3"` for an integer, `3` for a string, `"true"`
for a boolean, a list or object written as JSON text, `null` for an argument that may be left out. Everything else that
does not fit, unknown names included, is a `ToolError` that says which argument, what is allowed and what was given.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from miles_agents.contracts.argument_errors import describe_bad_arguments
from miles_agents.errors import ToolError, ToolErrorKind, UsageError

M = TypeVar("M", bound=BaseModel)

STRICT_NAMES = ConfigDict(extra="forbid", coerce_numbers_to_str=True)  # of every model that reads a call's arguments

_NAME_TO_SCHEMA = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
_NO_SCHEMA = frozenset({"default", "const", "enum", "examples", "required", "discriminator"})


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The OpenAI-style wrapper around a JSON schema of parameters."""
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": dict(parameters)},
    }


class ToolArguments(Generic[M]):
    """What a tool may be called with.

    Args:
        model: a pydantic model with `STRICT_NAMES`; an alias is the name the language model uses.
        classes: dataclasses, models and enumerations the arguments are made of, whose docstrings describe them.
    """

    def __init__(self, model: type[M], classes: Mapping[str, type] | None = None) -> None:
        self._model = model
        schema = _without_titles(model.model_json_schema(by_alias=True))
        schema.pop("description", None)  # of the model, not of the tool
        for name, described in schema.get("$defs", {}).items():
            if classes and name in classes:
                _describe_nested(described, inspect.getdoc(classes[name]) or "")
        self._schema = schema

    def schema(self) -> dict[str, Any]:
        """The JSON schema, a copy."""
        return copy.deepcopy(self._schema)

    def check(self, arguments: Mapping[str, Any], *, tool: str) -> M:
        """What the model wrote, as an instance of `model`.

        Raises:
            ToolError: it does not fit; the message is for the language model.
        """
        given = dict(arguments)
        try:
            return self._model.model_validate(given)
        except ValidationError as error:
            failure = error
        mended = self._mended(given, failure)
        if mended is not None:
            try:
                return self._model.model_validate(mended)
            except ValidationError as error:
                given, failure = mended, error
        message = describe_bad_arguments(tool, failure, given, allowed=self._schema.get("properties", {}))
        raise ToolError(message, kind=ToolErrorKind.BAD_ARGUMENTS) from failure

    def _mended(self, given: Mapping[str, Any], failure: ValidationError) -> dict[str, Any] | None:
        """With each wrong argument read once more where that is beyond doubt; None if there is none."""
        mended = dict(given)
        required = self._schema.get("required", ())
        for name in {each["loc"][0] for each in failure.errors(include_url=False) if each["loc"]}:
            value = given.get(cast(str, name))
            if name in given and value is None and name not in required:
                del mended[cast(str, name)]
            elif isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
                decoded = _decoded(value)
                if decoded is not None:
                    mended[cast(str, name)] = decoded
        return None if mended == given else mended


def _decoded(text: str) -> Any:
    """The JSON value written in a string; None if it is no strict JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a function says of itself as a tool."""

    description: str  # the first paragraph of its docstring
    arguments: ToolArguments[BaseModel]
    names: Mapping[str, str]  # fields of the arguments' model → names of the function's arguments


def read_signature(function: Callable[..., Any]) -> Signature:
    """The description and the arguments of a typed function, from its signature and Google-style docstring.

    Raises:
        UsageError: an argument has no type or a type that cannot be read, or cannot be given by name.
    """
    name = function.__name__
    doc = inspect.getdoc(function) or ""
    hints = _type_hints(function)
    described = _entries(doc)
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        _refuse_unusable(name, parameter, hints)
        # Numbered, with the argument's name as alias: pydantic refuses fields like `_x` and warns about `json`.
        field = f"argument_{len(names)}"
        names[field] = parameter.name
        fields[field] = (hints[parameter.name], _field(parameter, hints[parameter.name], described))
    classes: dict[str, type] = {}
    for hint in hints.values():
        _collect_classes(hint, classes)
    try:
        model = create_model(f"{name}_arguments", __config__=STRICT_NAMES, **fields)
        arguments = ToolArguments(cast(type[BaseModel], model), classes)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).split("\n", 1)[0]
        raise UsageError(f"tool '{name}': an argument's type cannot be written as a JSON schema: {reason}") from error
    return Signature(description=_summary(doc or name), arguments=arguments, names=names)


def _refuse_unusable(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise UsageError(f"tool '{name}' takes *args or **kwargs; name and type each argument")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise UsageError(f"tool '{name}': argument '{parameter.name}' is positional-only; remove the '/'")
    if parameter.name not in hints:
        raise UsageError(f"tool '{name}': give argument '{parameter.name}' a type")
    if isinstance(parameter.default, FieldInfo):
        raise UsageError(
            f"tool '{name}': argument '{parameter.name}' has Field(…) as default; write "
            f"{parameter.name}: Annotated[TYPE, Field(…)] = DEFAULT"
        )


def _field(parameter: inspect.Parameter, hint: Any, described: Mapping[str, str]) -> Any:
    settings: dict[str, Any] = {"alias": parameter.name}
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    texts = [each for each in metadata if isinstance(each, str)]
    own = any(isinstance(each, FieldInfo) and each.description is not None for each in metadata)
    description = texts[0] if texts else described.get(parameter.name)
    if description is not None and not own:
        settings["description"] = description
    return Field(**settings) if parameter.default is parameter.empty else Field(parameter.default, **settings)


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(
            f"tool '{function.__name__}': cannot read its types ({error}); import them at the top of the module, "
            "not under TYPE_CHECKING"
        ) from error
    hints.pop("return", None)
    return hints


def _summary(doc: str) -> str:
    return " ".join(re.split(r"\n\s*\n|\n\s*(?:Args|Attributes):", doc, maxsplit=1)[0].split())


def _entries(doc: str) -> dict[str, str]:
    """`name: text` entries of an `Args:` or `Attributes:` block; deeper-indented lines continue an entry."""
    block = re.search(r"^(?:Args|Attributes):\n((?:[ \t]+.*(?:\n|$)|\n)+)", doc, re.M)
    if block is None:
        return {}
    entries = re.findall(r"^ {4}(\w+)(?:\s*\([^)]*\))?:[ \t]*((?:.*)(?:\n {5,}.*)*)", block[1], re.M)
    return {name: " ".join(text.split()) for name, text in entries}


def _collect_classes(hint: Any, found: dict[str, type]) -> None:
    """Every dataclass, pydantic model, TypedDict and enumeration inside a type, by name."""
    for inner in get_args(hint):
        _collect_classes(inner, found)
    if not isinstance(hint, type) or hint.__name__ in found:
        return
    nested = dataclasses.is_dataclass(hint) or issubclass(hint, BaseModel) or is_typeddict(hint)
    if nested or issubclass(hint, Enum):
        found[hint.__name__] = hint
    if nested:
        try:
            inner_hints = get_type_hints(hint, include_extras=True)
        except NameError:  # a class made inside a function; pydantic may still know it
            return
        for inner in inner_hints.values():
            _collect_classes(inner, found)


def _describe_nested(schema: dict[str, Any], doc: str) -> None:
    """Say of a nested class what its docstring says: its summary, and its entries at their properties."""
    if "description" in schema:  # pydantic leaves out the docstrings that Python makes by itself
        schema["description"] = _summary(doc)
    for name, text in _entries(doc).items():
        if name in schema.get("properties", {}):
            schema["properties"][name].setdefault("description", text)


def _without_titles(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes of names; a property that is called `title` stays."""
    cleaned: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title":
            continue
        if key in _NAME_TO_SCHEMA:
            cleaned[key] = {name: _without_titles(inner) for name, inner in value.items()}
        elif isinstance(value, dict) and key not in _NO_SCHEMA:
            cleaned[key] = _without_titles(value)
        elif isinstance(value, list) and key not in _NO_SCHEMA:
            cleaned[key] = [_without_titles(each) if isinstance(each, dict) else each for each in value]
        else:
            cleaned[key] = value
    return cleaned
