"""Reading a reply piece by piece: one machine for streams and whole replies, so that both say the same.

```
              <think>                      a call's opening
CONTENT ◄──────────────► THINKING    CONTENT ──────────────► CALL ──► CONTENT (with the call, or as content)
              </think>                     THINKING ────────► CANDIDATE ──► CONTENT (it was valid) or THINKING
```

CANDIDATE exists under `ThinkingPolicy.END_THINKING` alone. What is not decided yet is held back; what was passed on is
never taken back, with one exception: the arguments of a call that turns out to be malformed, which the reply then says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from miles_agents.chat.arguments import MalformedCallError, clipped
from miles_agents.chat.formats.base import Call, CallReader, Ended, Ending, ToolFormat
from miles_agents.chat.formats.table import get_format
from miles_agents.chat.schemas import Tools, ToolSchemas, as_json
from miles_agents.chat.segments import (
    THINK_CLOSE,
    THINK_OPEN,
    THOUGHT_ALONE,
    Delta,
    DeltaKind,
    Segment,
    SegmentKind,
    ThinkingPolicy,
)
from miles_agents.chat.source import Source, beginning_at_end
from miles_agents.types import Reply, ToolCall

MAX_ERROR_CHARS = 500  # of one line of `Reply.errors`, and of a call's error

_LAST_CHARS = 256  # in which an unfinished opening may begin
_DOUBTFUL = (
    "not executed: this reply holds a call that cannot be read, or closing tags without a call, so that the end of a "
    "call may be a piece of its data"
)


class _State(StrEnum):
    CONTENT = "content"
    THINKING = "thinking"
    CALL = "call"
    CANDIDATE = "candidate"


class _Patterns(NamedTuple):
    """What ends content, content behind a call that ended thinking, and thinking."""

    content: re.Pattern[str]
    behind_call: re.Pattern[str]
    thinking: re.Pattern[str]


@cache
def _patterns(opening: str) -> _Patterns:
    think, unthink, call = f"(?P<think>{THINK_OPEN})", f"(?P<unthink>{THINK_CLOSE})", f"(?P<opening>{opening})"
    found = (f"{think}|{call}", f"{think}|{unthink}|{call}", f"{unthink}|{call}")
    return _Patterns(*map(re.compile, found))


@dataclass(slots=True)
class _Open:
    """Content or thinking that goes on."""

    kind: SegmentKind
    opening: str = ""
    parts: list[str] = field(default_factory=list)


class StreamingParser:
    """Reads one reply as it comes.

    ```python
    parser = StreamingParser(format="hermes", tools=tools)
    for chunk in chunks:
        for delta in parser.feed(chunk): ...
    for delta in parser.flush(truncated=False): ...
    reply = parser.finish()
    ```

    Deltas joined by kind (and call) are the reply's `content`, `reasoning`, names and, as JSON, arguments, however the
    text was cut. Time is linear in the length of the text, also in pieces of one character.

    Args:
        format: a name of the table of formats, or a format.
        tools: OpenAI-style schemas of what may be called.
        opens_thinking: the prompt ended inside `<think>`, so the text begins with reasoning.
        first_call: number of the first call; ids are `call_0`, `call_1`, … over an episode.
        thinking: what calls inside thinking are.

    Raises:
        UsageError: no such format.
    """

    def __init__(
        self,
        *,
        format: str | ToolFormat = "hermes",
        tools: Tools = (),
        opens_thinking: bool = False,
        first_call: int = 0,
        thinking: ThinkingPolicy = ThinkingPolicy.IGNORE,
    ) -> None:
        self._format = get_format(format)
        self._schemas = ToolSchemas(tools)
        self._first_call = first_call
        self._policy = ThinkingPolicy(thinking)
        self._patterns = _patterns(self._format.opening.pattern)
        self._ended_by_call = False  # thinking was ended by a call; its closing tag may still come
        self._source = Source()
        self._text: list[str] = []
        self._segments: list[Segment] = []
        self._open: _Open | None = None
        self._state = _State.CONTENT
        self._opening = ""
        self._reader: CallReader | None = None
        self._announced = False  # the call's name was passed on
        self._sent_arguments = False  # and parts of its arguments
        self._calls: list[ToolCall] = []
        self._ending_calls = 0
        self._reasoning_unclosed = False
        self._deltas: list[Delta] = []
        self._truncated = False
        self._looked_at = 0
        if opens_thinking:
            self._begin(_Open(SegmentKind.REASONING))
            self._state = _State.THINKING

    def feed(self, chunk: str) -> list[Delta]:
        """Read on; what is certain by now.

        Raises:
            ValueError: the reply was flushed already.
        """
        if self._source.final:
            raise ValueError("the reply has ended; make a new StreamingParser for the next one")
        self._text.append(chunk)
        self._looked_at += len(chunk)
        self._source.add(chunk)
        return self._run()

    def flush(self, *, truncated: bool = False) -> list[Delta]:
        """Decide what was held back: no more text comes. `truncated`: a token limit cut the reply."""
        if self._source.final:
            return []
        self._source.final = True
        self._truncated = truncated
        deltas = self._run()
        self._end_open(closing="")
        return deltas

    def finish(self, *, truncated: bool = False) -> Reply:
        """The reply; flushes if that was not done."""
        self.flush(truncated=truncated)
        self._refuse_doubtful()
        reasoning = [segment.body for segment in self._segments if segment.kind is SegmentKind.REASONING]
        counted = sum(map(self._count_calls, reasoning))
        content = "".join(each.body for each in self._segments if each.kind is SegmentKind.CONTENT)
        return Reply(
            text="".join(self._text),
            content=content,
            reasoning="".join(reasoning),
            calls=tuple(self._calls),
            truncated=self._truncated,
            calls_in_reasoning=counted,
            reasoning_unclosed=self._reasoning_unclosed,
            calls_ending_reasoning=self._ending_calls,
            errors=self._errors(counted, thought_alone=any(reasoning) and not self._calls and not content.strip()),
        )

    @property
    def characters_read(self) -> int:
        """How many characters were looked at, those looked at twice counted twice: what reading has cost."""
        return self._looked_at + self._source.reread

    @property
    def segments(self) -> list[Segment]:
        """The stretches read so far; after `flush` their sources join to the text."""
        return list(self._segments)

    def _run(self) -> list[Delta]:
        while _STEPS[self._state](self):
            pass
        self._looked_at += self._source.waiting
        deltas, self._deltas = self._deltas, []
        return deltas

    # --- content and thinking -----------------------------------------------------------------------------------------

    def _read_content(self) -> bool:
        source = self._source
        pattern = self._patterns.behind_call if self._ended_by_call else self._patterns.content
        found = pattern.search(source.text, source.at)
        if found is None:
            tags = (THINK_OPEN, THINK_CLOSE) if self._ended_by_call else (THINK_OPEN,)
            self._pass_on(SegmentKind.CONTENT, self._held_from(tags, may_call=True))
            return False
        self._pass_on(SegmentKind.CONTENT, found.start())
        source.at = found.end()
        if found["think"] is not None:
            self._begin(_Open(SegmentKind.REASONING, THINK_OPEN))
            self._state = _State.THINKING
        elif found["opening"] is None:
            self._ended_by_call = False
            self._end_open(closing="")
            self._segments.append(Segment(SegmentKind.REASONING, "", "", THINK_CLOSE))
        else:
            self._begin_call(found["opening"], _State.CALL)
        return True

    def _read_thinking(self) -> bool:
        source = self._source
        may_call = self._policy is ThinkingPolicy.END_THINKING and bool(self._schemas)
        if may_call:
            found = self._patterns.thinking.search(source.text, source.at)
            start = found.start() if found else -1
        else:
            found, start = None, source.text.find(THINK_CLOSE, source.at)
        if start < 0:
            self._pass_on(SegmentKind.REASONING, self._held_from((THINK_CLOSE,), may_call=may_call))
            return False
        self._pass_on(SegmentKind.REASONING, start)
        if found is not None and found["opening"] is not None:
            source.at = found.end()
            self._begin_call(found["opening"], _State.CANDIDATE)
            return True
        source.at = start + len(THINK_CLOSE)
        self._end_open(closing=THINK_CLOSE)
        self._state = _State.CONTENT
        return True

    def _held_from(self, tags: tuple[str, ...], *, may_call: bool) -> int:
        """From where on the text may turn out to be a tag or a call."""
        source = self._source
        end = len(source.text)
        if source.final:
            return end
        held = beginning_at_end(source.text, source.at, *tags)
        if may_call:
            found = self._format.unfinished.search(source.text, max(source.at, end - _LAST_CHARS))
            held = min(held, found.start()) if found else held
        return held

    def _pass_on(self, kind: SegmentKind, stop: int) -> None:
        self._add(kind, self._source.text[self._source.at : stop])
        self._source.at = max(self._source.at, stop)

    def _add(self, kind: SegmentKind, text: str) -> None:
        if not text:
            return
        if self._open is None or self._open.kind is not kind:
            self._begin(_Open(kind))
        assert self._open is not None
        self._open.parts.append(text)
        content = kind is SegmentKind.CONTENT
        self._deltas.append(Delta(DeltaKind.CONTENT if content else DeltaKind.REASONING, text))

    def _begin(self, stretch: _Open) -> None:
        self._end_open(closing="")
        self._open = stretch

    def _end_open(self, *, closing: str, by_call: bool = False) -> None:
        stretch, self._open = self._open, None
        if stretch is None:
            return
        self._segments.append(Segment(stretch.kind, stretch.opening, "".join(stretch.parts), closing))
        if stretch.kind is SegmentKind.REASONING and not closing and not by_call:
            self._reasoning_unclosed = True

    # --- calls --------------------------------------------------------------------------------------------------------

    def _begin_call(self, opening: str, state: _State) -> None:
        self._opening = opening
        self._source.mark()
        self._reader = self._format.reader(opening, self._schemas, strict=state is _State.CANDIDATE)
        self._announced = self._sent_arguments = False
        self._state = state

    def _read_call(self) -> bool:
        assert self._reader is not None
        ended = self._reader.read(self._source)
        if ended is None:
            self._announce(self._reader)
            return False
        taken = self._source.taken()
        self._source.release()
        self._state = _State.CONTENT
        if ended.ending is Ending.NO_CALL:
            self._add(SegmentKind.CONTENT, self._opening + taken)
            return True
        self._end_open(closing="")
        call = self._call_of(self._reader, taken, ended)
        self._keep_call(self._reader, call, taken, ended)
        return True

    def _read_candidate(self) -> bool:
        assert self._reader is not None
        source = self._source
        ended = self._reader.read(source)
        if ended is None:
            return False
        taken = source.taken()
        if ended.ending is Ending.CLOSED:
            call = self._call_of(self._reader, taken, ended)
            if call.arguments is not None and self._schemas.accepts(call.name, call.arguments):
                source.release()
                self._end_open(closing="", by_call=True)
                self._keep_call(self._reader, call, taken, ended)
                self._ending_calls += 1
                self._ended_by_call = True
                self._state = _State.CONTENT
                return True
        self._state = _State.THINKING
        if ended.ending is Ending.NO_CALL:
            self._add(SegmentKind.REASONING, self._opening + taken)
        else:  # another call may begin right behind this opening
            source.back_to(0)
            self._add(SegmentKind.REASONING, self._opening)
            if not self._opening:
                self._pass_on(SegmentKind.REASONING, source.at + 1)
        source.release()
        return True

    def _call_of(self, reader: CallReader, taken: str, ended: Ended) -> ToolCall:
        call_id = f"call_{self._first_call + len(self._calls)}"
        body = taken[: ended.body]
        try:
            call = reader.result(body, closed=ended.ending is Ending.CLOSED, truncated=self._truncated)
        except MalformedCallError as error:
            return ToolCall(id=call_id, name=reader.name, arguments=None, raw=body, error=_bad_call(str(error)))
        return ToolCall(id=call_id, name=call.name, arguments=call.arguments, raw=body)

    def _keep_call(self, reader: CallReader, call: ToolCall, taken: str, ended: Ended) -> None:
        self._segments.append(Segment(SegmentKind.CALL, self._opening, call.raw, taken[ended.body :]))
        reader.name = call.name
        self._announce(reader, certainly=True)
        if call.arguments is not None and not self._sent_arguments:
            self._deltas.append(Delta(DeltaKind.ARGUMENTS, as_json(call.arguments), len(self._calls)))
        self._calls.append(call)

    def _announce(self, reader: CallReader, *, certainly: bool = False) -> None:
        """Pass on what is known of the call that is being read."""
        place = len(self._calls)
        if not self._announced and (reader.name or certainly):
            self._deltas.append(Delta(DeltaKind.CALL, reader.name, place))
            self._announced = True
        if self._announced and reader.pieces:
            self._deltas.append(Delta(DeltaKind.ARGUMENTS, "".join(reader.pieces), place))
            reader.pieces.clear()
            self._sent_arguments = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def _count_calls(self, reasoning: str) -> int:
        """How many complete calls stand in a piece of thinking; prose that mentions an opening hides none."""
        source = Source(reasoning, final=True)
        count = 0
        while found := self._format.opening.search(source.text, source.at):
            source.at = found.end()
            source.mark()
            reader = self._format.reader(found[0], self._schemas, strict=True)
            ended = reader.read(source)
            if ended is not None and ended.ending is Ending.CLOSED and _is_call(reader, source.taken()[: ended.body]):
                count += 1
            elif ended is None or ended.ending is not Ending.NO_CALL:
                source.back_to(0 if found[0] else 1)
        self._looked_at += len(reasoning) + source.reread
        return count

    def _refuse_doubtful(self) -> None:
        """Where nothing protects data, one fault makes every end of a call doubtful: then no call is executed."""
        if (
            self._format.strays is None
            or not self._calls
            or not (self._has_strays or any(c.error for c in self._calls))
        ):
            return
        self._calls = [
            call if call.error else replace(call, arguments=None, error=_bad_call(_DOUBTFUL)) for call in self._calls
        ]

    @property
    def _has_strays(self) -> bool:
        """Closing tags stand outside calls, behind the first of them or, if there is none, anywhere in content."""
        strays, behind = self._format.strays, not self._calls
        if strays is None:
            return False
        for segment in self._segments:
            called = segment.kind is SegmentKind.CALL
            looked_at = behind and not called and (self._calls or segment.kind is SegmentKind.CONTENT)
            if looked_at and strays.search(segment.source):
                return True
            behind |= called
        return False

    def _errors(self, counted: int, *, thought_alone: bool) -> tuple[str, ...]:
        lines = [f"{call.id}: {call.error}" for call in self._calls if call.error is not None]
        if not self._calls and self._has_strays:
            lines.append("closing tags of a call stand in the text, but no call begins before them")
        if counted:
            lines.append(f"calls inside thinking are not executed ({counted}): close the thinking first")
        if self._reasoning_unclosed:
            lines.append(f"the thinking is not closed by {THINK_CLOSE}")
        if thought_alone and not lines:
            lines.append(THOUGHT_ALONE)
        return tuple(clipped(line, MAX_ERROR_CHARS) for line in lines)


_STEPS: dict[_State, Callable[[StreamingParser], bool]] = {
    _State.CONTENT: StreamingParser._read_content,
    _State.THINKING: StreamingParser._read_thinking,
    _State.CALL: StreamingParser._read_call,
    _State.CANDIDATE: StreamingParser._read_candidate,
}


def _is_call(reader: CallReader, body: str) -> bool:
    try:
        call: Call | None = reader.result(body, closed=True, truncated=False)
    except MalformedCallError:
        call = None
    return call is not None


def _bad_call(reason: str) -> str:
    return clipped(f"bad tool call: {reason}", MAX_ERROR_CHARS)
