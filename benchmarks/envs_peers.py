"""Other projects' environments, as `benchmarks.envs` measures them, each in a virtual environment of its own.

verifiers plays whole episodes by itself. gem and skyrl-gym are libraries of environments, whose actions are texts; what
asks the model is the loop by hand.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from typing import Any

from benchmarks import envs_work
from benchmarks.envs_loop import completion, session_of, together
from benchmarks.envs_rounds import Plan
from benchmarks.envs_work import Outcome

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class Verifiers:
    """`ToolEnv.generate` with verifiers' own client (the openai package)."""

    def __init__(self) -> None:
        import verifiers as vf
        from datasets import Dataset

        async def look(place: str) -> str:
            """Look into a place.

            Args:
                place: name of the place
            """
            return envs_work.look(place)

        async def right(completion: Any, answer: str) -> float:
            return float(completion[-1].content == answer)

        rows = {"prompt": [envs_work.prompt()], "answer": [envs_work.ANSWER]}
        self._env = vf.ToolEnv(
            tools=[look],
            max_turns=envs_work.TURNS,
            eval_dataset=Dataset.from_dict(rows),
            rubric=vf.Rubric(funcs=[right]),
        )
        self.description = f"verifiers {_version('verifiers')}: ToolEnv.generate with its own client, as it comes"

    async def play(self, plan: Plan) -> list[Outcome]:
        """See `Subject.play`."""
        from verifiers.types import ClientConfig

        made = await self._env.generate(
            inputs=self._env._get_eval_inputs(1, plan.episodes),
            client=ClientConfig(api_base_url=plan.base_url, api_key_var="NO_KEY"),
            model=envs_work.MODEL,
            sampling_args={"max_tokens": envs_work.MAX_TOKENS, "temperature": 1.0},
            max_concurrent=plan.together,
            independent_scoring=True,  # else all samples of one task are one group that is begun together
            on_start=_nothing,
            on_progress=_nothing,
            on_log=_nothing,
        )
        return [_of_messages(each["completion"]) for each in made["outputs"]]


class Gem:
    """gem's `ToolEnvWrapper` around an environment of one question; the loop by hand asks the model."""

    def __init__(self) -> None:
        from gem.core import Env
        from gem.tools.base_tool import BaseTool

        class Question(Env):
            def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
                super().reset(seed)
                return envs_work.QUESTION, {}

            def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
                return "", float(action == envs_work.ANSWER), True, False, {}

        class Look(BaseTool):
            tool_type = envs_work.TOOL_NAME
            name = envs_work.TOOL_NAME

            def instruction_string(self) -> str:
                return envs_work.TOOL_DESCRIPTION

            def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
                found = _CALL.search(action)
                if found is None:
                    return False, True, "", ""
                return True, False, envs_work.look(**json.loads(found[1])["arguments"]), action

        self._question, self._look = Question, Look
        self.description = f"gem-llm {_version('gem-llm')}: ToolEnvWrapper, driven by the loop by hand; calls as text"

    async def play(self, plan: Plan) -> list[Outcome]:
        """See `Subject.play`."""
        from gem.tools.tool_env_wrapper import ToolEnvWrapper

        async with session_of(plan) as session:

            async def episode() -> Outcome:
                env = ToolEnvWrapper(self._question(), tools=[self._look()])
                observation, _ = env.reset()
                messages = [envs_work.prompt()[0], {"role": "user", "content": observation}]
                while True:
                    message = await completion(session, plan.base_url, messages, model=envs_work.TEXT_MODEL)
                    observation, _, terminated, truncated, info = env.step(message["content"])
                    if terminated or truncated:
                        return Outcome(info["tool_success_counter"], message["content"])
                    messages += [message, {"role": "user", "content": observation}]

            return await together(plan, episode)


class SkyRL:
    """skyrl-gym's `BaseTextEnv` with a `ToolGroup`; the loop by hand asks the model."""

    def __init__(self) -> None:
        from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
        from skyrl_gym.tools.core import ToolGroup, tool

        class Places(ToolGroup):
            def __init__(self) -> None:
                super().__init__(name="Places")

            @tool
            def look(self, place: str) -> str:
                return envs_work.look(place)

        class House(BaseTextEnv):
            def __init__(self) -> None:
                super().__init__()
                self.max_turns = envs_work.TURNS
                self.calls = 0
                self.init_tool_groups([Places()])

            def step(self, action: str) -> Any:
                self.turns += 1
                found = _CALL.search(action)
                if found is None or self.turns >= self.max_turns:
                    reward = float(action == envs_work.ANSWER)
                    return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})
                call = json.loads(found[1])
                result = self._execute_tool("Places", call["name"], list(call["arguments"].values()))
                self.calls += 1
                observations = [{"role": "user", "content": result}]
                return BaseTextEnvStepOutput(observations=observations, reward=0.0, done=False, metadata={})

        self._house = House
        self.description = f"skyrl-gym {_version('skyrl-gym')}: BaseTextEnv, driven by the loop by hand; calls as text"

    async def play(self, plan: Plan) -> list[Outcome]:
        """See `Subject.play`."""
        async with session_of(plan) as session:

            async def episode() -> Outcome:
                env = self._house()
                messages, _ = env.init(envs_work.prompt())
                while True:
                    message = await completion(session, plan.base_url, messages, model=envs_work.TEXT_MODEL)
                    step = env.step(message["content"])
                    if step["done"]:
                        env.close()
                        return Outcome(env.calls, message["content"])
                    messages += [message, *step["observations"]]

            return await together(plan, episode)


def _of_messages(messages: Any) -> Outcome:
    plain = [each if isinstance(each, dict) else each.model_dump() for each in messages]
    return Outcome(sum(each["role"] == "tool" for each in plain), plain[-1]["content"])


def _nothing(*_: Any, **__: Any) -> None:
    """Show no progress."""


def _version(package: str) -> str:
    return importlib.metadata.version(package)
