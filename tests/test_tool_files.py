"""The `read`, `write` and `edit` tools: what they do, and what they tell a model that errs."""

import errno

import pytest
from sums_env import OPTIONS, TASK, calls

from miles_agents import ToolEnv, ToolError
from miles_agents.contracts import EnvResources, ToolContext
from miles_agents.errors import SandboxError, UsageError
from miles_agents.tools import EditTool, PythonTool, ReadFileTool, ShellTool, WriteFileTool
from miles_agents.tools.file_edits import replaced_once, split_lines
from miles_agents.tools.sandboxes import NamespaceSandboxes, ScriptedSandbox, probe, refusal
from miles_agents.types import ToolCall

CODE = (
    "def area(r):\n    pi = 3\n    return pi * r * r\n\n\ndef round_area(r):\n    pi = 3\n    return round(area(r))\n"
)


@pytest.fixture
def sandbox():
    return ScriptedSandbox(())


async def run(tool, sandbox, **arguments):
    return (await tool.call(arguments, ToolContext(sandbox=sandbox))).text


async def refused(tool, sandbox, **arguments):
    with pytest.raises(ToolError) as caught:
        await run(tool, sandbox, **arguments)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def shown(*lines, start=1):
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines, start))


# --- read -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "asked", "text"),
    [
        (b"a\nb\n", {}, shown("a", "b")),
        (b"a\nb", {}, shown("a", "b")),
        (b"a\r\nb\r\n", {}, shown("a", "b")),
        (b"\n\n", {}, shown("", "")),
        ("ü\x0b\u2028x\n".encode(), {}, shown("ü\x0b\u2028x")),  # lines end where editors end them
        (b"", {}, "(the file is empty)"),
        (b"a\nb\nc\n", {"start_line": 2}, shown("b", "c", start=2)),
        (b"a\nb\nc\n", {"start_line": 2, "end_line": 2}, shown("b", start=2) + "\n(the file has 3 lines)"),
        (b"a\nb\nc\n", {"end_line": 99}, shown("a", "b", "c")),
    ],
)
async def test_lines_are_shown_with_their_numbers(sandbox, data, asked, text):
    sandbox.files["f"] = data
    assert await run(ReadFileTool(), sandbox, path="f", **asked) == text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"path": "g"}, "there is no file 'g'"),
        ({"path": ""}, "'' is no path of a file"),
        ({"path": "f\0"}, r"'f\x00' is no path of a file"),
        ({"start_line": 4}, "'f' has 3 lines; there is no line 4"),
        ({"start_line": 3, "end_line": 2}, "end_line 2 is before start_line 3"),
        ({"start_line": 0}, "bad arguments for 'read': 'start_line' must be at least 1, got 0"),
        (
            {"path": "picture"},
            "'picture' is no text in UTF-8 but 6 bytes of something else; it cannot be shown or edited",
        ),
        ({"path": "latin"}, "'latin' is no text in UTF-8 but 1 bytes of something else; it cannot be shown or edited"),
    ],
)
async def test_what_cannot_be_read_is_said(sandbox, asked, message):
    sandbox.files |= {"f": b"a\nb\nc\n", "picture": b"\x89PNG\0\n", "latin": b"\xe9"}
    assert await refused(ReadFileTool(), sandbox, **{"path": "f", **asked}) == message


async def test_long_files_and_lines_are_shown_in_part_and_the_model_is_told_where_to_go_on(sandbox):
    sandbox.files["f"] = b"".join(b"line %d\n" % number for number in range(1, 1001))
    tool = ReadFileTool(max_lines=3)
    assert (await run(tool, sandbox, path="f")).splitlines()[2:] == [
        "     3\tline 3",
        "(lines 4 to 1000 are not shown; go on with start_line=4)",
    ]
    assert (await run(tool, sandbox, path="f", start_line=4)).splitlines()[0] == "     4\tline 4"
    assert len((await run(tool, sandbox, path="f", start_line=998)).splitlines()) == 3
    sandbox.files["f"] = b"x" * 5000 + b"\n" + b"y" * 90 + b"\n" + b"z" * 90
    text = await run(ReadFileTool(max_line_chars=20, max_output_chars=150), sandbox, path="f")
    assert text.startswith(shown("x" * 20 + "… (4980 characters more)") + "\n")
    text = await run(ReadFileTool(max_output_chars=100), sandbox, path="f", start_line=2)
    assert text.endswith("(lines 3 to 3 are not shown; go on with start_line=3)")


# --- write ------------------------------------------------------------------------------------------------------------


async def test_what_is_written_is_what_was_given_to_the_byte(sandbox):
    content = "  ü\t\r\n\n"
    assert await run(WriteFileTool(), sandbox, path="a/b", content=content) == "wrote 2 lines, 8 bytes, to a/b"
    assert sandbox.files == {"a/b": content.encode()}
    await run(WriteFileTool(), sandbox, path="a/b", content="")
    assert sandbox.files == {"a/b": b""}


async def test_what_cannot_be_written_is_said(sandbox):
    assert "at most 3 are allowed" in await refused(WriteFileTool(max_chars=3), sandbox, path="f", content="four")
    assert "half of a surrogate pair" in await refused(WriteFileTool(), sandbox, path="f", content="\ud800")

    async def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    sandbox.write_file = full
    assert await refused(WriteFileTool(), sandbox, path="f", content="x") == "'f': No space left on device"
    assert sandbox.files == {}


# --- edit -------------------------------------------------------------------------------------------------------------


async def test_a_text_that_is_there_once_is_replaced_and_the_lines_around_it_are_shown(sandbox):
    sandbox.files["f"] = CODE.encode()
    text = await run(EditTool(), sandbox, path="f", old_text="return pi * r", new_text="return pi * (\n        r")
    assert text == "edited f; it now says:\n" + shown(
        "def area(r):", "    pi = 3", "    return pi * (", "        r * r", "", ""
    )
    assert sandbox.files["f"].decode() == CODE.replace("return pi * r", "return pi * (\n        r")


@pytest.mark.parametrize(
    ("old", "message"),
    [
        (
            "pi = 3",
            "old_text is 2 times in 'f', at lines 2, 7; add lines before or after it until it is there just once",
        ),
        ("", "old_text is empty; give the text to replace, or write the whole file"),
        ("new", "old_text and new_text are the same; nothing to do"),
        (
            "def area(r):\n  pi = 3\n",
            "old_text is not in 'f'. Line 1 differs from it only in white space. Exactly it is:\n"
            "def area(r):\n    pi = 3",
        ),
        (
            "     1\tdef area(r):\n     2\t    pi = 3",
            "old_text is not in 'f'. Leave out the line numbers: they are not part of the file.",
        ),
        (
            "return round(area(r), 2)",
            "old_text is not in 'f'. The nearest line is\n     8\t    return round(area(r))\n"
            "Read the file there and copy the text exactly.",
        ),
        ("SELECT * FROM t", "old_text is not in 'f'. Read the file and copy the text from it."),
    ],
)
async def test_a_text_that_is_not_there_just_once_is_left_alone_and_the_model_told_what_to_do(sandbox, old, message):
    sandbox.files["f"] = CODE.encode()
    assert await refused(EditTool(), sandbox, path="f", old_text=old, new_text="new") == message
    assert sandbox.files["f"] == CODE.encode()


async def test_an_edit_needs_a_text_file_that_stays_within_its_size(sandbox):
    sandbox.files |= {"f": b"abc", "g": b"\0"}
    assert await refused(EditTool(), sandbox, path="h", old_text="a", new_text="b") == "there is no file 'h'"
    assert "no text in UTF-8" in await refused(EditTool(), sandbox, path="g", old_text="a", new_text="b")
    tool = EditTool(max_chars=5)
    assert "would have 6 characters" in await refused(tool, sandbox, path="f", old_text="b", new_text="bbbb")
    assert sandbox.files["f"] == b"abc"


def test_line_ends_of_the_file_are_kept():
    text = "a\r\nb\r\nc\r\n"
    assert replaced_once(text, "a\nb", "x\ny\r\nz", path="f").text == "x\r\ny\r\nz\r\nc\r\n"
    assert replaced_once("a\nb\n", "a\nb", "x\r\ny", path="f").text == "x\r\ny\n"


def test_indentation_and_line_ends_of_both_texts_are_exact():
    text = "if x:\n    if ok:\n        run()\n"
    assert replaced_once(text, "    if ok:\n        run()\n", "", path="f").text == "if x:\n"

    with pytest.raises(ToolError, match="only in white space"):
        replaced_once(text, "   if  ok:\n", "", path="f")


def test_places_that_overlap_are_not_one():
    with pytest.raises(ToolError, match="2 times"):
        replaced_once("aaa", "aa", "b", path="f")


def test_emptying_a_file_is_an_edit_like_any_other():
    assert replaced_once("abc", "abc", "", path="f") == ("", "(the file is empty)")
    assert split_lines("") == []


async def test_a_missing_or_lost_sandbox_is_never_shown_to_the_model():
    for tool in (ReadFileTool(), EditTool(), WriteFileTool()):
        arguments = {"path": "f", "old_text": "a", "new_text": "b", "content": "c"}
        arguments = {name: arguments[name] for name in tool.arguments.model_fields if name in arguments}
        with pytest.raises(SandboxError):
            await run(tool, None, **arguments)
        with pytest.raises(SandboxError):
            await run(tool, ScriptedSandbox((), lost_after=0), **arguments)


@pytest.mark.parametrize("settings", [{"max_lines": 0}, {"max_output_chars": 9}, {"max_line_chars": 1}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError, match="read tool: "):
        ReadFileTool(**settings)


# --- in a real sandbox, with the other tools --------------------------------------------------------------------------

FOUND = probe()


class Workshop(ToolEnv):
    tools = (PythonTool(), ShellTool(timeout_s=2), ReadFileTool(), WriteFileTool(), EditTool())

    def tasks(self, split):
        return [TASK]

    def reward(self, episode):
        return 1.0


@pytest.mark.sandbox
@pytest.mark.skipif(not FOUND.works, reason=refusal(FOUND))
async def test_files_shell_and_interpreter_share_one_working_folder():
    async with NamespaceSandboxes(preload=()) as sandboxes:
        env = Workshop()
        env.bind(EnvResources(sandboxes=sandboxes))
        await env.reset(seed=0, options=OPTIONS)

        async def do(name, **arguments):
            step = await env.step(calls(ToolCall(id="c", name=name, arguments=arguments, raw="…")))
            (event,) = step.info["tool_events"]
            return event.error_kind.value, event.result

        env.max_turns = 100
        assert await do("write", path="src/a.py", content="x = 1\n") == ("", "wrote 1 lines, 6 bytes, to src/a.py")
        assert (await do("edit", path="src/a.py", old_text="1", new_text="41"))[0] == ""
        assert await do("shell", command="cat src/a.py; cd src; echo y=1 > b.py") == ("", "x = 41")
        assert await do("shell", command="ls; exit 3") == ("error", "a.py\nb.py\n(exit code 3)")
        assert await do("python", code="exec(open('src/a.py').read()); print(x + 1)") == ("", "42")
        assert await do("python", code="print(x)") == ("", "41")
        assert await do("read", path="src/b.py") == ("", "     1\ty=1")
        assert await do("read", path="src") == ("error", "Error: 'src' is a folder, not a file")
        assert await do("write", path="src", content="") == ("error", "Error: 'src' is a folder, not a file")
        assert (await do("write", path="/proc/self/mem", content=""))[0] == "error"
        assert (await do("read", path="/etc/shadow"))[0] == "error"
        assert (await do("read", path="src/a.py/x"))[0] == "error"
        kind, text = await do("shell", command="echo begun; echo oops >&2; sleep 60")
        assert (kind, text) == ("timeout", "begun\noops\nError: timed out after 2 s")
        assert await do("python", code="print(x)") == ("", "41")
        await env.close()
