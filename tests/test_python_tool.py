"""What the model is shown by the `python` and `shell` tools."""

import numpy as np
import pytest

from miles_agents.contracts import ExecResult, ExecStatus, Language, ToolContext, as_tool
from miles_agents.errors import SandboxError, ToolError, ToolErrorKind, UsageError
from miles_agents.tools import PythonTool, ShellTool
from miles_agents.tools.sandboxes import ScriptedSandboxes

TRACE = "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\nNameError: name 'x'\n"
LOST = "(the interpreter was restarted: earlier variables are gone)"


async def call(result: ExecResult, **arguments):
    provider = ScriptedSandboxes([result])
    context = ToolContext(sandbox=await provider.open(), np_random=np.random.default_rng(0))
    output = await PythonTool(**arguments).call({"code": "print(1)"}, context)
    assert provider.opened[0].calls[0].code == "print(1)"
    return output


@pytest.mark.parametrize(
    ("result", "text", "kind"),
    [
        (ExecResult(status=ExecStatus.OK, stdout="5535\n"), "5535", ""),
        (ExecResult(status=ExecStatus.OK, stdout="1\n2\n", stderr="warn\n"), "1\n2\nwarn", ""),
        (ExecResult(status=ExecStatus.OK), "(no output)", ""),
        (ExecResult(status=ExecStatus.ERROR, stdout="1\n", stderr=TRACE), "1\n" + TRACE.rstrip("\n"), "error"),
        (
            ExecResult(status=ExecStatus.TIMEOUT, stdout="1\n", stderr="KeyboardInterrupt\n"),
            "1\nError: timed out after 10 s",
            "timeout",
        ),
        (
            ExecResult(status=ExecStatus.TIMEOUT, state_lost=True),
            f"Error: timed out after 10 s\n{LOST}",
            "timeout",
        ),
        (
            ExecResult(status=ExecStatus.CRASHED, exit_code=-9, state_lost=True),
            f"Error: the interpreter died (signal 9)\n{LOST}",
            "crashed",
        ),
        (
            ExecResult(status=ExecStatus.CRASHED, exit_code=3, state_lost=True),
            f"Error: the interpreter died (exit code 3)\n{LOST}",
            "crashed",
        ),
        (
            ExecResult(status=ExecStatus.OUTPUT_LIMIT, stdout="x", state_lost=True),
            f"x\nError: stopped for printing too much\n{LOST}",
            "output_limit",
        ),
        (
            ExecResult(status=ExecStatus.OK, stdout="1\n", late_output="tick\n"),
            "1\n(printed by earlier code: tick)",
            "",
        ),
    ],
)
async def test_the_model_is_shown_what_happened(result, text, kind):
    output = await call(result)
    assert output.text == text
    assert output.error_kind.value == kind
    assert output.ok is (kind == "")
    died = {} if result.exit_code is None else {"exit_code": result.exit_code}
    assert output.info == {"status": result.status.value, "state_lost": result.state_lost, **died}


async def test_forged_frames_are_named_even_if_the_code_seemed_to_end_well():
    result = ExecResult(status=ExecStatus.OK, forged_frames=True, state_lost=True)
    output = await call(result)
    assert output.text == f"Error: the code wrote to the interpreter's own channel\n{LOST}"
    assert output.error_kind is ToolErrorKind.ERROR


@pytest.mark.parametrize(
    ("result", "text", "kind"),
    [
        (ExecResult(status=ExecStatus.OK, stdout="a\nb\n", exit_code=0), "a\nb", ""),
        (ExecResult(status=ExecStatus.OK, exit_code=0), "(no output)", ""),
        (
            ExecResult(status=ExecStatus.ERROR, stdout="1\n", stderr="ls: no such file\n", exit_code=2),
            "1\nls: no such file\n(exit code 2)",
            "error",
        ),
        (ExecResult(status=ExecStatus.CRASHED, exit_code=-9), "Error: the shell died (signal 9)", "crashed"),
        (
            ExecResult(status=ExecStatus.TIMEOUT, stdout="1\n", stderr="make: stuck\n"),
            "1\nmake: stuck\nError: timed out after 10 s",
            "timeout",
        ),
    ],
)
async def test_the_model_is_shown_what_a_shell_command_did(result, text, kind):
    sandbox = await ScriptedSandboxes([result]).open()
    output = await ShellTool().call({"command": "ls"}, ToolContext(sandbox=sandbox))
    assert (output.text, output.error_kind.value) == (text, kind)
    assert [(each.code, each.language) for each in sandbox.calls] == [("ls", Language.SHELL)]


async def test_the_deadline_outside_comes_after_the_limit_inside_the_sandbox():
    for tool in (PythonTool(timeout_s=100), ShellTool(timeout_s=100)):
        assert tool.limits.timeout_s > tool.timeout_s + 15  # the sandbox's own margin


async def test_long_output_is_cut_to_head_and_tail():
    output = await call(ExecResult(status=ExecStatus.OK, stdout="a" * 300 + "z" * 300), max_output_chars=100)
    assert output.text == "a" * 50 + "\n… [500 characters omitted] …\n" + "z" * 50


async def test_the_timeout_is_passed_on():
    provider = ScriptedSandboxes([ExecResult(status=ExecStatus.OK)])
    sandbox = await provider.open()
    await PythonTool(timeout_s=3.5).call({"code": "1"}, ToolContext(sandbox=sandbox))
    assert sandbox.calls[0].timeout_s == 3.5


@pytest.mark.parametrize("arguments", [{}, {"code": ["1"]}, {"code": "1", "language": "c"}, {"script": "1"}])
async def test_bad_arguments_are_the_models_error(arguments):
    sandbox = await ScriptedSandboxes(()).open()
    with pytest.raises(ToolError, match="bad arguments for 'python'"):
        await PythonTool().call(arguments, ToolContext(sandbox=sandbox))


async def test_a_lost_or_missing_sandbox_is_never_shown_to_the_model():
    with pytest.raises(SandboxError):
        await PythonTool().call({"code": "1"}, ToolContext())
    lost = await ScriptedSandboxes((), lost_after=0).open()
    with pytest.raises(SandboxError):
        await PythonTool().call({"code": "1"}, ToolContext(sandbox=lost))


def test_the_schema_has_one_required_text_argument():
    tool = as_tool(PythonTool())
    schema = tool.schema()["function"]
    assert tool.needs_sandbox
    assert schema["name"] == "python"
    assert schema["parameters"]["required"] == ["code"]
    assert schema["parameters"]["properties"]["code"]["type"] == "string"
    assert "title" not in str(schema)
    assert ShellTool().schema()["function"]["parameters"]["required"] == ["command"]


@pytest.mark.parametrize("arguments", [{"timeout_s": 0}, {"timeout_s": -1}, {"max_output_chars": 10}])
def test_impossible_settings_are_refused(arguments):
    with pytest.raises(UsageError):
        PythonTool(**arguments)
