"""Sandbox launchers. All isolate; none falls back to a plain subprocess."""

from miles_agents.tools.sandboxes.namespace import NamespaceSandboxes
from miles_agents.tools.sandboxes.probing import SandboxProbe, probe, refusal
from miles_agents.tools.sandboxes.runner_sandbox import RunnerSandbox
from miles_agents.tools.sandboxes.scripted import ScriptedSandbox, ScriptedSandboxes

__all__ = [
    "NamespaceSandboxes",
    "RunnerSandbox",
    "SandboxProbe",
    "ScriptedSandbox",
    "ScriptedSandboxes",
    "probe",
    "refusal",
]
