"""What the model is shown by the `python` tool."""

import numpy as np
import pytest

from miles_agents.contracts import ExecResult, ExecStatus, ToolContext, as_tool
from miles_agents.errors import SandboxError, ToolError, UsageError
from miles_agents.tools import PythonTool
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
    ("result", "text", "ok"),
    [
        (ExecResult(status=ExecStatus.OK, stdout="5535\n"), "5535", True),
        (ExecResult(status=ExecStatus.OK, stdout="1\n2\n", stderr="warn\n"), "1\n2\nwarn", True),
        (ExecResult(status=ExecStatus.OK), "(no output)", True),
        (ExecResult(status=ExecStatus.ERROR, stdout="1\n", stderr=TRACE), "1\n" + TRACE.rstrip("\n"), False),
        (
            ExecResult(status=ExecStatus.TIMEOUT, stdout="1\n", stderr="KeyboardInterrupt\n"),
            "1\nError: timed out after 10 s",
            False,
        ),
        (
            ExecResult(status=ExecStatus.TIMEOUT, state_lost=True),
            f"Error: timed out after 10 s\n{LOST}",
            False,
        ),
        (
            ExecResult(status=ExecStatus.CRASHED, exit_code=-9, state_lost=True),
            f"Error: the interpreter died (signal 9)\n{LOST}",
            False,
        ),
        (
            ExecResult(status=ExecStatus.CRASHED, exit_code=3, state_lost=True),
            f"Error: the interpreter died (exit code 3)\n{LOST}",
            False,
        ),
        (
            ExecResult(status=ExecStatus.OUTPUT_LIMIT, stdout="x", state_lost=True),
            f"x\nError: stopped for printing too much\n{LOST}",
            False,
        ),
        (
            ExecResult(status=ExecStatus.OK, stdout="1\n", late_output="tick\n"),
            "1\n(printed by earlier code: tick)",
            True,
        ),
    ],
)
async def test_the_model_is_shown_what_happened(result, text, ok):
    output = await call(result)
    assert output.text == text
    assert output.ok is ok
    assert output.info == {"status": result.status.value, "state_lost": result.state_lost}


async def test_forged_frames_are_named_even_if_the_code_seemed_to_end_well():
    result = ExecResult(status=ExecStatus.OK, forged_frames=True, state_lost=True)
    assert (await call(result)).text == f"Error: the code wrote to the interpreter's own channel\n{LOST}"


async def test_long_output_is_cut_to_head_and_tail():
    output = await call(ExecResult(status=ExecStatus.OK, stdout="a" * 300 + "z" * 300), max_output_chars=100)
    assert output.text == "a" * 50 + "\n… [500 characters omitted] …\n" + "z" * 50


async def test_the_timeout_is_passed_on():
    provider = ScriptedSandboxes([ExecResult(status=ExecStatus.OK)])
    sandbox = await provider.open()
    await PythonTool(timeout_s=3.5).call({"code": "1"}, ToolContext(sandbox=sandbox))
    assert sandbox.calls[0].timeout_s == 3.5


@pytest.mark.parametrize("arguments", [{}, {"code": 1}, {"code": "1", "language": "c"}, {"script": "1"}])
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


@pytest.mark.parametrize("arguments", [{"timeout_s": 0}, {"timeout_s": -1}, {"max_output_chars": 10}])
def test_impossible_settings_are_refused(arguments):
    with pytest.raises(UsageError):
        PythonTool(**arguments)
