from envs_bad.sound import ROOMS, Sound, code_of


class Bad(Sound):
    """A room that does not exist is a bug, where it should be an answer to the model."""

    def answer(self, room):
        return {each: code_of(each) for split in ROOMS.values() for each in split}[room]
