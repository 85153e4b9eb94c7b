"""From a name to a session that is greeted and ready: one container's start."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes.docker.attached import LastWords, StdioChannel, listen
from miles_agents.tools.sandboxes.docker.backend import Attachment, ContainerBackend, ContainerError
from miles_agents.tools.sandboxes.docker.dial_in import SOCKET_NAME, Door, Doors
from miles_agents.tools.sandboxes.docker.hardening import MOUNT_POINT, ContainerPlan
from miles_agents.tools.sandboxes.docker.owner import Owner
from miles_agents.tools.sandboxes.docker.removals import Removals
from miles_agents.tools.sandboxes.docker.settings import Transport
from miles_agents.tools.sandboxes.runner_source import bootstrap_command, introduction
from miles_agents.tools.sandboxes.wire import Channel, SocketChannel, Wire, max_answer_bytes
