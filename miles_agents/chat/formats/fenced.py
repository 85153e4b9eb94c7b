"""Agents that act by code: a fenced block of a known language is a call of the tool that runs it.

Fences are those of CommonMark 0.31 (section "Fenced code blocks"), of backticks: a block ends at a line of at least as
many backticks as opened it and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from miles_agents.chat.arguments import MalformedCallError
from miles_agents.chat.formats.base import Call, CallReader, Ended, Ending, ToolFormat, cannot_say
from miles_agents.chat.schemas import ToolSchemas, as_json
from miles_agents.chat.source import Source

_FENCE = r"(?<![^\n]) {0,3}(`{3,99})[ \t]{0,8}([^\s`<]{0,32})[^\n`<]{0,64}\n"
_RUN = re.compile(r"(?m)^ {0,3}(`{3,})")
_LANGUAGE_BLOCK = re.compile(r"(?<![^\n]) {0,3}`{3,99}[ \t]{0,8}[^\s`<]{1,32}[^\n`<]{0,64}\n")
_LINE_OF_FENCE = re.compile(r"(?<![^\n])(?: {0,3}(?:`[^\n]{0,220})?)?\Z")
_PART_OF_CLOSING = re.compile(r"(?<![^\n]) {0,3}`{0,99}[ \t\r]{0,32}\Z")
_LAST_CHARS = 256


class CodeTool(NamedTuple):
    """The tool that runs a language, and the parameter that takes the code."""

    tool: str
    parameter: str


LANGUAGES: Mapping[str, CodeTool] = {
    "python": CodeTool("python", "code"),
    "py": CodeTool("python", "code"),
    "bash": CodeTool("shell", "command"),
    "sh": CodeTool("shell", "command"),
}


class FencedFormat(ToolFormat):
    """A block of a known language is a call; every other block is content, and so is what stands inside it.

    Where tools are given, only languages count whose tool is among them. A block that is not closed is run if the reply
    ended by itself (the model said it was through), and is an error if a token limit cut it.

    Args:
        languages: info strings, in lower case, and what runs them. `render_call` writes the first one of a tool.
    """

    name = "fenced"
    opening = re.compile(_FENCE)
    unfinished = re.compile(r"(?<![^\n]) {0,3}(?:`{1,99}(?:[ \t]{0,8}[^\s`<]{0,32}[^\n`<]{0,64})?)?\Z")

    def __init__(self, languages: Mapping[str, CodeTool] = LANGUAGES) -> None:
        self._languages = dict(languages)

    def reader(self, opening: str, schemas: ToolSchemas, *, strict: bool) -> CallReader:
        """A reader of the block."""
        fence = self.opening.match(opening)
        assert fence is not None
        code = self._languages.get(fence[2].lower())
        if code is not None and schemas and not schemas.knows(code.tool):
            code = None
        return _BlockReader(len(fence[1]), code, strict=strict)

    def render_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The block, its fence longer than any at the beginning of a line of the code."""
        for language, (tool, parameter) in self._languages.items():
            if tool == name and set(arguments) == {parameter} and isinstance(arguments[parameter], str):
                code = arguments[parameter]
                longest = max((len(run) for run in _RUN.findall(code)), default=2)
                if longest >= 99:
                    raise cannot_say(self, "its code holds a line of 99 backticks or more")
                fence = "`" * (longest + 1)
                return f"{fence}{language}\n{code}\n{fence}"
        raise cannot_say(self, f"a block holds one text for the tool that runs it, not {name} {as_json(arguments)}")


@cache
def _closing(length: int) -> re.Pattern[str]:
    """A pattern of the line that closes a block opened by that many backticks."""
    return re.compile(rf"(?<![^\n]) {{0,3}}`{{{length},99}}[ \t\r]{{0,32}}(?=\n|\Z)")


class _BlockReader(CallReader):
    """Reads up to the closing fence. The newlines behind the opening and before the closing one are the fences'."""

    def __init__(self, length: int, code: CodeTool | None, *, strict: bool) -> None:
        super().__init__(strict=strict)
        self._code = code
        self._closing = _closing(length)
        if code is not None:
            self.name = code.tool
            self.pieces.append(f'{{{as_json(code.parameter)}: "')

    def read(self, source: Source) -> Ended | None:
        found = self._closing.search(source.text, source.at)
        if self.strict:
            inner = _LANGUAGE_BLOCK.search(source.text, source.at)
            if inner is not None and (found is None or inner.start() < found.start()):
                return Ended(Ending.FAILED, 0)
        if found is not None and (found.end() < len(source.text) or source.final):
            begins = source.since_mark(found.start()) == 0
            stop = found.start() - (0 if begins else 1)
            self._pass_on(source.text[source.at : stop])
            source.at = found.end()
            return Ended(Ending.CLOSED if self._code else Ending.NO_CALL, source.since_mark(stop))
        stop = len(source.text) if source.final else self._certain(source)
        self._pass_on(source.text[source.at : stop])
        source.at = stop
        if not source.final:
            return None
        if self._code is None:
            return Ended(Ending.NO_CALL, source.since_mark(stop))
        return Ended(Ending.FAILED if self.strict else Ending.UNCLOSED, source.since_mark(stop))

    def _certain(self, source: Source) -> int:
        """Up to where the text is code, whatever follows; the newline before a line that may close it is not."""
        line = _LINE_OF_FENCE if self.strict else _PART_OF_CLOSING
        found = line.search(source.text, max(source.at, len(source.text) - _LAST_CHARS))
        if found is None:
            return len(source.text)
        return max(source.at, found.start() - 1)

    def _pass_on(self, text: str) -> None:
        if text and self._code is not None:
            self.pieces.append(as_json(text)[1:-1])

    def result(self, body: str, *, closed: bool, truncated: bool) -> Call:
        if not closed and truncated:
            raise MalformedCallError("the code block is not closed by ```: the reply was cut")
        assert self._code is not None
        self.pieces.append('"}')
        return Call(self._code.tool, {self._code.parameter: body})
