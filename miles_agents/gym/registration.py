"""Our environments in Gymnasium's registry, as `miles_agents/NAME`."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from miles_agents import registry
from miles_agents.contracts import Env

NAMESPACE = "miles_agents"
_ENTRY_POINT = "miles_agents.gym.environment:TextEnv"
_log = logging.getLogger(__name__)


def register_all() -> None:
    """Register every environment, and from now on each that `miles_agents.register` adds. Loads none of them.

    May be called again.
    """
    registry.environments.subscribe(_register)


def make(env: str | type[Env], **keys: Any) -> gymnasium.Env[str, str]:
    """`gymnasium.make` for a registered name, `file.py:Class`, `package.module:Class` or a class.

    Args:
        env: which environment; a bare name means its newest version.
        keys: of `TextEnv`, of `gymnasium.make` (`max_episode_steps`, `disable_env_checker`) and the environment's own.

    Raises:
        UsageError: no such environment or key; the message lists the nearest ones.
    """
    if isinstance(env, str) and not registry.is_object_spec(env):
        return gymnasium.make(f"{NAMESPACE}/{registry.environments.full_name(env)}", **keys)
    name = env.rpartition(":")[2] if isinstance(env, str) else env.__name__
    nothing: tuple[WrapperSpec, ...] = ()
    spec = EnvSpec(id=f"{NAMESPACE}/{name}", entry_point=_ENTRY_POINT, kwargs={"env": env}, additional_wrappers=nothing)
    return gymnasium.make(spec, **keys)


def _register(name: str) -> None:
    env_id = f"{NAMESPACE}/{name}"
    if env_id in gymnasium.registry:
        return
    try:
        gymnasium.register(id=env_id, entry_point=_ENTRY_POINT, kwargs={"env": name})
    except gymnasium.error.Error as error:  # a name that Gymnasium has no use for must not break the one that has it
        _log.warning("%s is not in Gymnasium's registry: %s", name, " ".join(str(error).split()))
