"""A Docker daemon as it is looked at before anything runs: is it there, what can it do, has it the image, what is left
over. Synchronous, by docker-py; sessions go through `EngineBackend`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import docker.errors
import requests
from docker.context import ContextAPI

import docker
from miles_agents.errors import SandboxUnavailableError
from miles_agents.tools.sandboxes.docker.backend import ContainerError, ContainerRecord, EngineFacts

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_TIMEOUT_S = 60
_FAILURES = (docker.errors.DockerException, requests.RequestException)
