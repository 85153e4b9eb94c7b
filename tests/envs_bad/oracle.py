from envs_bad.sound import Sound, code_of


class Bad(Sound):
    """The tool writes the answer as its reward does not read it."""

    def answer(self, room):
        return f"{int(super().answer(room)):,}" if room == 0 else code_of(room)
