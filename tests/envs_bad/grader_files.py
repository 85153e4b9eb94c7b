from envs_bad.sound import Sound

from miles_agents import Reply
from miles_agents.tools import PythonTool

TEST = "exec(open('solution.py').read())\nassert double(4) == 8\nprint('PASS')\n"


class Bad(Sound):
    """Its test lies in the sandbox where the model works, and is run there."""

    tools = (PythonTool(timeout_s=1),)

    async def begin(self, task):
        await self.sandbox.write_file("test_it.py", TEST.encode())

    async def reward(self, episode):
        result = await self.sandbox.exec("exec(open('test_it.py').read())", timeout_s=5)
        return float("PASS" in result.stdout)

    def oracle(self, task):
        from miles_agents.checks.env_play import calling

        yield calling(("python", {"code": "open('solution.py', 'w').write('def double(x): return 2 * x')"}))
        yield Reply.of("It is written.")
