"""Making containers ahead, owning them from before they are made, and removing them whatever goes wrong."""

import asyncio
import itertools
import logging

import pytest

from miles_agents.contracts import SandboxCounters
from miles_agents.errors import SandboxError
from miles_agents.tools.sandboxes.docker import FakeContainerBackend
from miles_agents.tools.sandboxes.docker.backend import ContainerError, Removal
from miles_agents.tools.sandboxes.docker.launch import Launched
from miles_agents.tools.sandboxes.docker.pool import ContainerPool
from miles_agents.tools.sandboxes.docker.removals import Removals


class Launches:
    """Launches that take as long as the test wants."""

    def __init__(self, *, at_once=4, size=0):
        self.numbers = itertools.count()
        self.under_way = {}
        self.most = 0
        self.cancelled = []
        self.discarded = []
        self.error = None
        self.pool = ContainerPool(
            self.launch, lambda each: self.discarded.append(each.name), size=size, at_once=at_once
        )

    async def launch(self):
        name = str(next(self.numbers))
        self.under_way[name] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.under_way))
        try:
            await self.under_way[name]
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            del self.under_way[name]
        if self.error is not None:
            raise self.error
        return Launched(name, None, 0.0, 0.0)

    async def finish(self, count=1):
        await settle()
        for future in list(self.under_way.values())[:count]:
            future.set_result(None)
        await settle()


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_pool_fills_ahead_and_again_after_each_take():
    launches = Launches(size=2)
    launches.pool.fill()
    await launches.finish(2)
    assert launches.pool.ready == 2
    assert not launches.under_way
    assert (await launches.pool.take()).name == "0"
    await launches.finish()
    assert launches.pool.ready == 2
    await launches.pool.close()
    assert launches.discarded == ["1", "2"]


async def test_without_a_size_nothing_is_launched_ahead():
    launches = Launches()
    launches.pool.fill()
    await settle()
    assert not launches.under_way
    taking = asyncio.ensure_future(launches.pool.take())
    await launches.finish()
    assert (await taking).name == "0"
    await settle()
    assert not launches.under_way
    await launches.pool.close()


async def test_no_more_launches_at_once_than_allowed_and_first_come_first_served():
    launches = Launches(at_once=3)
    order = []

    async def take(number):
        await launches.pool.take()
        order.append(number)

    taking = [asyncio.ensure_future(take(number)) for number in range(10)]
    while len(order) < 10:
        await launches.finish()
    assert launches.most == 3
    assert order == list(range(10))
    await asyncio.gather(*taking)
    await launches.pool.close()


async def test_a_failed_launch_is_the_error_of_the_one_who_waits():
    launches = Launches()
    launches.error = SandboxError("no")
    taking = asyncio.ensure_future(launches.pool.take())
    await launches.finish()
    with pytest.raises(SandboxError, match="no"):
        await taking
    launches.error = None
    taking = asyncio.ensure_future(launches.pool.take())
    await launches.finish()
    await taking
    await launches.pool.close()


async def test_a_failed_refill_is_the_next_takes_error_and_is_not_tried_again_before_that():
    launches = Launches(size=1)
    launches.error = SandboxError("no")
    launches.pool.fill()
    await launches.finish()
    launches.pool.fill()
    await settle()
    assert not launches.under_way
    with pytest.raises(SandboxError, match="no"):
        await launches.pool.take()
    launches.error = None
    await launches.finish()
    assert launches.pool.ready == 1
    await launches.pool.close()


async def test_an_unexpected_error_is_raised_where_somebody_waits_and_never_hangs_him():
    launches = Launches()
    launches.error = ZeroDivisionError("a bug")
    taking = asyncio.ensure_future(launches.pool.take())
    await launches.finish()
    with pytest.raises(ZeroDivisionError):
        await taking
    await launches.pool.close()


async def test_one_who_stops_waiting_ends_a_launch_that_nobody_needs():
    launches = Launches()
    one, two = (asyncio.ensure_future(launches.pool.take()) for _ in range(2))
    await settle()
    assert len(launches.under_way) == 2
    one.cancel()
    await settle()
    assert launches.cancelled == ["1"]
    await launches.finish()
    assert (await two).name == "0"
    await launches.pool.close()


async def test_a_session_handed_to_one_who_was_cancelled_at_that_moment_goes_to_the_next():
    launches = Launches(at_once=1)
    one, two = (asyncio.ensure_future(launches.pool.take()) for _ in range(2))
    await settle()
    launches.pool.put(Launched("found", None, 0.0, 0.0))
    one.cancel()
    await settle()
    assert one.cancelled()
    assert two.result().name == "found"
    assert not launches.under_way
    await launches.pool.close()
    assert launches.discarded == []


async def test_closing_ends_launches_and_refuses_those_who_wait():
    launches = Launches(size=1)
    taking = [asyncio.ensure_future(launches.pool.take()) for _ in range(3)]
    await settle()
    await launches.pool.close()
    assert not launches.under_way
    for each in taking:
        with pytest.raises(SandboxError, match="closed"):
            await each
    with pytest.raises(SandboxError, match="not running"):
        await launches.pool.take()


# --- removals ---------------------------------------------------------------------------------------------------------


def removals_on(backend):
    return Removals(backend, SandboxCounters())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("miles_agents.tools.sandboxes.docker.removals._FIRST_PAUSE_S", 0.001)


async def test_a_cancelled_creation_goes_on_and_its_container_is_removed():
    backend = FakeContainerBackend(create_s=0.05)
    removals = removals_on(backend)
    removals.own("a")
    creating = asyncio.ensure_future(removals.create("a", backend.create("a", {})))
    await asyncio.sleep(0.01)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    removals.start("a")
    assert removals.owned == {"a"}
    assert await removals.finish(10) == set()
    assert (backend.created, backend.removed, backend.containers) == (["a"], ["a"], {})


async def test_a_creation_that_never_answered_is_looked_after_once_more(monkeypatch):
    monkeypatch.setattr("miles_agents.tools.sandboxes.docker.removals._UNCERTAIN_S", 0.1)
    backend = FakeContainerBackend()
    removals = removals_on(backend)

    async def lost_connection():
        asyncio.get_running_loop().call_later(0.03, lambda: late.append(asyncio.ensure_future(backend.create("a", {}))))
        raise ContainerError("the connection broke")

    late = []
    removals.own("a")
    with pytest.raises(ContainerError):
        await removals.create("a", lost_connection())
    removals.start("a")
    assert await removals.finish(10) == set()
    assert late
    assert backend.containers == {}
    assert backend.removed == ["a"]


async def test_failed_removals_are_tried_again_counted_and_reported(caplog):
    backend = FakeContainerBackend(fail_removals={0, 1})
    counters = SandboxCounters()
    removals = Removals(backend, counters)
    removals.own("a")
    await backend.create("a", {})
    removals.start("a")
    removals.start("a")  # changes nothing
    assert await removals.finish(10) == set()
    assert backend.removed == ["a"]
    assert backend.removal_attempts == 3
    assert counters.failed_removals == 2
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "removal 0 fails" in caplog.text


async def test_what_cannot_be_removed_is_tried_again_at_the_end_and_then_named():
    backend = FakeContainerBackend(fail_removals=range(1000))
    removals = removals_on(backend)
    removals.own("a")
    await backend.create("a", {})
    removals.start("a")
    assert await removals.finish(10) == {"a"}
    assert backend.removal_attempts == 12


async def test_a_removal_in_progress_is_waited_for_and_is_no_failure(monkeypatch):
    monkeypatch.setattr("miles_agents.tools.sandboxes.docker.removals._LOOK_AGAIN_S", 0.001)
    answers = iter([Removal.IN_PROGRESS, Removal.IN_PROGRESS, Removal.ABSENT])

    class Busy(FakeContainerBackend):
        async def remove(self, name):
            return next(answers)

    counters = SandboxCounters()
    removals = Removals(Busy(), counters)
    removals.own("a")
    removals.start("a")
    assert await removals.finish(10) == set()
    assert next(answers, None) is None
    assert counters.failed_removals == 0
