from envs_bad.sound import Sound


class Bad(Sound):
    """Calls a truncated episode a terminated one."""

    async def truncate(self, reason):
        return (await super().truncate(reason))._replace(terminated=True, truncated=False, info={"truncated_by": ""})
