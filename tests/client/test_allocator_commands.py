"""What the agent may ask the app to do: done when it does no harm, refused with a reason otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.commands import AllocatorCommands, InterruptibleSleep, Limits, NoLimits
from gpuagent_client.errors import Refused
from gpuagent_client.protocol import Declared
from gpuagent_client.settings import ClientState, load_settings
from tests.client.apps.faketorch import GIB, FakeTorch


class Bench:
    """Remedies over a fake torch, by a clock that moves when somebody waits."""

    def __init__(self, fake: FakeTorch | None = None, **settings: Any) -> None:
        self.torch = fake or FakeTorch().start_cuda()
        self.state = ClientState(load_settings({}, "app.py", **settings))
        self.now = 1000.0
        self.stopping = False
        self.while_waiting: Callable[[], object] = lambda: None
        door = Torch(self.torch.modules)
        self.allocator = Allocator(door)
        self.limits = Limits(self.state, door, self.allocator)
        pause = InterruptibleSleep(self.wait, clock=lambda: self.now)
        self.allocator_commands = AllocatorCommands(self.state, door, self.allocator, self.limits, pause)

    def wait(self, seconds: float) -> bool:
        """Time passes."""
        self.now += seconds
        if seconds:
            self.while_waiting()
        return self.stopping


def test_release_empties_the_cache_only() -> None:
    """What tensors hold stays; without being asked the collector does not run."""
    bench = Bench()
    bench.torch.allocate(3 * GIB)
    bench.torch.free(GIB)

    result = bench.allocator_commands.release({}, 5.0)

    assert (result["reserved_before_bytes"], result["reserved_after_bytes"]) == (3 * GIB, 2 * GIB)
    assert result["collected"] is False


def test_release_waits_for_the_end_of_a_request() -> None:
    """Emptying the cache in the middle of one would stall it."""
    bench = Bench()
    bench.torch.allocate(GIB)
    busy = [True, True, False]
    bench.state.busy = lambda: busy.pop(0)

    bench.allocator_commands.release({}, 5.0)

    assert busy == []
    assert bench.torch.calls.count("empty_cache") == 1


def test_release_gives_up_at_its_deadline() -> None:
    """A server that is never idle is left alone, and asked again at once next time."""
    bench = Bench()
    bench.state.busy = lambda: True

    with pytest.raises(Refused, match="busy"):
        bench.allocator_commands.release({}, 5.0)
    bench.state.busy = lambda: False

    assert bench.allocator_commands.release({}, 5.0)["took_ms"] == 0


def test_release_waits_for_a_capture() -> None:
    """An emptied cache in the middle of a graph's capture breaks the capture."""
    bench = Bench()
    bench.torch.stream.capturing = True

    with pytest.raises(Refused, match="captured"):
        bench.allocator_commands.release({}, 1.0)
    assert "empty_cache" not in bench.torch.calls


def test_release_is_once_a_minute() -> None:
    """The second answer says how long it takes until the next."""
    bench = Bench()
    bench.allocator_commands.release({}, 5.0)
    bench.now += 20

    with pytest.raises(Refused, match="again in 40 s"):
        bench.allocator_commands.release({}, 5.0)
    bench.now += 41
    bench.allocator_commands.release({}, 5.0)


def test_without_cuda_there_is_nothing_to_release() -> None:
    """And CUDA is not started to find out."""
    bench = Bench(FakeTorch())

    with pytest.raises(Refused, match="nothing to release"):
        bench.allocator_commands.release({}, 5.0)
    assert bench.torch.calls == []


def test_nothing_is_begun_while_the_app_ends() -> None:
    """A thread inside torch at the interpreter's end aborts the process."""
    bench = Bench()
    bench.stopping = True

    with pytest.raises(Refused, match="stopping"):
        bench.allocator_commands.release({}, 5.0)
    assert "empty_cache" not in bench.torch.calls


def test_a_limit_is_set_on_every_gpu_in_use() -> None:
    """And on no other: it would start CUDA there."""
    bench = Bench(FakeTorch(devices=3).start_cuda())
    bench.torch.allocate(GIB, device=0)
    bench.torch.allocate(GIB, device=2)

    assert bench.allocator_commands.limit({"ratio": 0.5}, 5.0) == {"ratio": 0.5, "devices": 2}
    assert bench.torch.fraction == [0.5, 1.0, 0.5]


def test_a_limit_below_what_is_held_is_refused() -> None:
    """It would make the next allocation fail; the answer says what would do."""
    bench = Bench()
    bench.torch.allocate(12 * GIB)

    with pytest.raises(
        Refused, match=r"9\.60 GiB is below the 12\.00 GiB that the app has reserved.*lowest ratio is 0\.5"
    ):
        bench.allocator_commands.limit({"ratio": 0.4}, 5.0)
    assert bench.torch.fraction == [1.0]


def test_a_limit_below_what_was_declared_is_refused() -> None:
    """What an app says that it needs is the floor, however little it holds now."""
    bench = Bench()
    bench.torch.allocate(GIB)
    bench.state.declared = Declared(minimum_bytes=6 * GIB)

    with pytest.raises(Refused, match=r"6\.00 GiB that the app has declared"):
        bench.allocator_commands.limit({"ratio": 0.2}, 5.0)
    bench.allocator_commands.limit({"ratio": 0.3}, 5.0)


def test_a_limit_can_always_be_lifted() -> None:
    """1.0 means none, and is never below anything."""
    bench = Bench()
    bench.torch.allocate(GIB)
    bench.state.declared = Declared(minimum_bytes=100 * GIB)

    assert bench.allocator_commands.limit({"ratio": 1.0}, 5.0)["ratio"] == 1.0


@pytest.mark.parametrize("ratio", [None, 0, -0.5, 1.5, "0.5", True, float("nan")])
def test_a_limit_is_a_share(ratio: object) -> None:
    """More than nothing, at most all; anything else is refused before torch sees it."""
    bench = Bench()
    bench.torch.allocate(GIB)

    with pytest.raises(Refused, match="ratio must be"):
        bench.allocator_commands.limit({"ratio": ratio}, 5.0)


def test_an_allocator_without_limits_says_so() -> None:
    """A pluggable allocator has neither figures nor limits."""
    bench = Bench(FakeTorch(backend="pluggable").start_cuda())
    bench.torch.allocate(GIB)

    with pytest.raises(Refused, match="nothing to limit"):
        bench.allocator_commands.limit({"ratio": 0.5}, 5.0)
    with pytest.raises(NoLimits, match="does not yet support"):
        bench.limits.set(0, 0.5)


@pytest.mark.slow
def test_reset_unloads_then_collects_and_empties() -> None:
    """In the order of registration; one that fails does not keep the others from it."""
    bench = Bench()
    bench.torch.allocate(3 * GIB)
    order: list[str] = []

    def unload_model() -> None:
        order.append("model")
        bench.torch.free(2 * GIB)

    def broken() -> None:
        order.append("broken")
        raise KeyError("secret")

    bench.state.on_reset.extend([broken, unload_model])
    result = bench.allocator_commands.reset({}, 5.0)

    assert order == ["broken", "model"]
    assert result["called"] == 2
    assert result["collected"] is True
    assert result["reserved_after_bytes"] == GIB
    (failed,) = result["failed"]
    assert failed.endswith("broken: KeyError")
    assert "secret" not in failed


def test_reset_needs_somebody_who_unloads() -> None:
    """Without a callback it would be a release under another name."""
    with pytest.raises(Refused, match="nothing with on_reset"):
        Bench().allocator_commands.reset({}, 5.0)


def test_a_notice_that_nobody_hears_is_at_least_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The app's log says who ended it, and why."""
    result = Bench().allocator_commands.notice(
        {"action": "kill", "reason": "leaks 1.9 GiB an hour", "seconds": 30}, 5.0
    )

    assert result == {"callback": False}
    assert "gpuagent: kill in 30 s: leaks 1.9 GiB an hour" in caplog.text


def test_a_callback_that_fails_is_an_answer() -> None:
    """The app's own error is told by its kind only; its text may be anything."""

    def broken(_: object) -> None:
        raise RuntimeError("secret")

    assert Bench(on_notice=broken).allocator_commands.notice({}, 5.0) == {"callback": True, "failed": "RuntimeError"}


def test_a_notice_lets_a_worker_drain() -> None:
    """After the app's own callback, which may save what would be lost; the answer says that it will end."""
    order: list[object] = []

    def drain(why: str) -> bool:
        order.append(f"drain: {why}")
        return True

    bench = Bench(on_notice=lambda notice: order.append(notice.reason))
    bench.state.drain = drain

    result = bench.allocator_commands.notice({"action": "remedy", "reason": "too much", "seconds": 30}, 5.0)

    assert result == {"callback": True, "draining": True}
    assert order == ["too much", "drain: too much"]
