"""One client against an agent: what it says, what it does when asked, and how it comes back."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.commands import Limits
from gpuagent_client.connection import MAX_UNSENT_BYTES, Connection, ConnectionLost
from gpuagent_client.lifecycle import Client, Reconnector
from gpuagent_client.protocol import Declared
from gpuagent_client.settings import ClientState, Event, Notice, load_settings
from tests.client.apps.faketorch import GIB, FakeTorch
from tests.fakes.agent_socket import FakeAgent


class Running:
    """A client of this process, and what its app would have."""

    def __init__(self, path: Path, **given: Any) -> None:
        self.torch = FakeTorch()
        self.state = ClientState(load_settings({}, "app.py", socket=str(path), **given))
        door = Torch(self.torch.modules)
        allocator = Allocator(door)
        self.client = Client(self.state, door, allocator, Limits(self.state, door, allocator))


@contextmanager
def running(path: Path, **given: Any) -> Iterator[Running]:
    """Started, and stopped in the end."""
    made = Running(path, **given)
    made.client.start()
    yield made
    made.client.stop()


def test_a_client_says_who_it_is(agent: FakeAgent, socket_path: Path) -> None:
    """At once, without waiting for the agent's welcome."""
    with running(socket_path, app="whisper"):
        (client,) = agent.wait_for_client()

    hello = client.messages[0]
    assert (hello["t"], hello["v"], hello["app"], hello["pid"]) == ("hello", 1, "whisper", os.getpid())
    assert hello["caps"] == ["census", "limit", "lines", "notice", "rate", "release", "reset"]
    assert hello["torch"] == "2.13.0+cu130"
    assert "backend" not in hello


def test_hello_is_said_again_when_it_has_changed(agent: FakeAgent, socket_path: Path) -> None:
    """CUDA comes up, and needs are declared, long after the start."""
    with running(socket_path) as app:
        (client,) = agent.wait_for_client()
        app.torch.start_cuda()
        app.state.declared = Declared(typical_bytes=6 * GIB)
        agent.wait(lambda: client.hello.get("backend") == "native" and client.hello["declared"])

    assert client.hello["declared"] == {"typical_bytes": 6 * GIB}
    assert len(client.of("hello")) <= 3


def test_figures_follow_the_welcome(agent: FakeAgent, socket_path: Path) -> None:
    """First that CUDA is not up, then the figures, numbered."""
    with running(socket_path) as app:
        (client,) = agent.wait_for_client()
        agent.wait(lambda: client.of("stats"))
        app.torch.start_cuda()
        app.torch.allocate(GIB)
        agent.wait(lambda: client.of("stats")[-1]["dev"])

    stats = client.of("stats")
    assert (stats[0]["init"], stats[0]["dev"]) == (False, [])
    assert stats[-1]["dev"][0]["allocated_bytes"] == GIB
    assert [message["seq"] for message in stats] == list(range(1, len(stats) + 1))
    assert app.torch.forbidden_calls() == []


def test_an_agent_that_does_not_greet_gets_no_figures(socket_path: Path) -> None:
    """It may be hanging: its kernel accepts connections all the same."""
    with FakeAgent(socket_path, greet=False) as agent, running(socket_path):
        (client,) = agent.wait_for_client()
        client.say({"t": "level", "level": "ok"})
        assert client.of("stats") == []
        client.greet(0.2)
        agent.wait(lambda: client.of("stats"))


def test_events_are_sent_and_bounded(agent: FakeAgent, socket_path: Path) -> None:
    """What an app reports between two figures goes with the next; of too much, the last is kept."""
    made = Running(socket_path)
    made.state.events.extend(Event(f"step {number}", {"kind": "report"}) for number in range(100))
    made.client.start()
    (client,) = agent.wait_for_client()
    agent.wait(lambda: len(client.of("event")) == 16)
    made.client.stop()

    assert client.of("event")[-1] == {"t": "event", "name": "step 99", "fields": {"kind": "report"}}


def test_the_level_is_known_as_long_as_the_connection_stands(agent: FakeAgent, socket_path: Path) -> None:
    """What the agent last said of a GPU is not believed for ever."""
    with running(socket_path) as app:
        (client,) = agent.wait_for_client()
        client.say({"t": "level", "level": "critical", "free_bytes": {"GPU-1": 5}})
        agent.wait(lambda: app.state.level)
        assert app.state.level is not None
        assert (app.state.level.level, app.state.level.free_bytes) == ("critical", {"GPU-1": 5})
        agent.stop()
        wait_until(lambda: app.state.level is None)


def wait_until(condition: Any) -> None:
    """Poll for what no event tells of."""
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to be")


def test_an_agents_restart_is_survived(agent: FakeAgent, socket_path: Path) -> None:
    """The client is back by itself, and says everything anew."""
    with running(socket_path):
        agent.wait_for_client()
        agent.stop()
        agent.restart()
        (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))

    assert client.messages[0]["t"] == "hello"


def test_an_agent_that_starts_later_is_found(socket_path: Path) -> None:
    """Apps and agent start in any order."""
    with running(socket_path), FakeAgent(socket_path) as agent:
        agent.wait_for_client()


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xfe\n", b'{"t":"welcome","v":1}\n'])
def test_garbage_from_an_agent_costs_the_connection(agent: FakeAgent, socket_path: Path, garbage: bytes) -> None:
    """It is closed, and made anew: the app notices nothing."""
    with running(socket_path):
        (first,) = agent.wait_for_client()
        first.say(garbage)
        agent.wait(lambda: not first.connected)
        agent.wait(lambda: len(agent.clients) > 1 and agent.clients[-1].of("stats"))


def test_release_gives_back_what_is_cached(agent: FakeAgent, socket_path: Path) -> None:
    """It says how much was reserved before and after, and refuses a second one within a minute."""
    with running(socket_path) as app:
        app.torch.start_cuda().allocate(3 * GIB)
        app.torch.free(2 * GIB)
        (client,) = agent.wait_for_client()
        first, second = client.ask("release", collect=True), client.ask("release")

    result = first["r"]
    assert first["ok"]
    assert (result["reserved_before_bytes"], result["reserved_after_bytes"]) == (3 * GIB, GIB)
    assert result["collected"] is True
    assert not second["ok"]
    assert second["err"].startswith("too soon")


def test_what_the_app_forbids_is_not_done(agent: FakeAgent, socket_path: Path) -> None:
    """And what nobody knows is not either; hello says what remains."""
    with running(socket_path, allow=["rate"]):
        (client,) = agent.wait_for_client()
        forbidden, unknown = client.ask("release"), client.ask("teleport")

    assert client.hello["caps"] == ["rate"]
    assert (forbidden["ok"], forbidden["err"]) == (False, "forbidden: the app does not allow it")
    assert (unknown["ok"], unknown["err"]) == (False, "unsupported")


def test_the_agent_sets_the_pace(agent: FakeAgent, socket_path: Path) -> None:
    """Within bounds; and a pace that the app has set itself wins over the welcome."""
    with running(socket_path, interval=60):
        (client,) = agent.wait_for_client()
        answers = [client.ask("rate", interval=interval) for interval in (0, 3600, 0.2)]
        bad = client.ask("rate", interval="fast")
        agent.wait(lambda: len(client.of("stats")) > 2)

    assert [answer["r"]["interval"] for answer in answers] == [0.2, 60.0, 0.2]
    assert not bad["ok"]


def test_a_second_welcome_brings_a_new_pace(socket_path: Path) -> None:
    """After a reload of the agent, without a new connection; an app with an interval of its own says so."""
    with FakeAgent(socket_path, interval=60) as agent, running(socket_path):
        (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))
        client.greet(0.2)
        agent.wait(lambda: len(client.of("stats")) > 2)
        assert "interval" not in client.hello
    with FakeAgent(socket_path, interval=0.2) as agent, running(socket_path, interval=60):
        (client,) = agent.wait_for_client()
        assert client.hello["interval"] == 60


def test_one_command_at_a_time(agent: FakeAgent, socket_path: Path) -> None:
    """While one is carried out, another is told so, and the figures go on flowing."""
    entered, leave = threading.Event(), threading.Event()

    def unload() -> None:
        entered.set()
        leave.wait(30)

    with running(socket_path) as app:
        app.torch.start_cuda()
        app.state.on_reset.append(unload)
        (client,) = agent.wait_for_client()
        client.say({"t": "cmd", "id": 77, "cmd": "reset", "args": {}, "deadline_ms": 30000})
        assert entered.wait(30)
        second = client.ask("notice", action="kill", reason="leak", seconds=3)
        before = len(client.of("stats"))
        agent.wait(lambda: len(client.of("stats")) > before + 1)
        leave.set()
        answer = agent.wait(lambda: client.answer_to(77))

    assert second["err"].startswith("busy")
    assert answer["r"]["called"] == 1
    assert {"t": "res", "id": 77, "ok": True, "state": "running"} in client.messages


def test_a_notice_reaches_the_app(agent: FakeAgent, socket_path: Path) -> None:
    """Time to save work: what will be done, why, and when."""
    heard: list[Notice] = []
    with running(socket_path, on_notice=heard.append):
        (client,) = agent.wait_for_client()
        answer = client.ask("notice", action="kill", reason="leaks 1.9 GiB an hour", seconds=30)

    assert answer["r"] == {"callback": True}
    assert heard == [Notice("kill", "leaks 1.9 GiB an hour", 30.0)]


def test_a_limit_that_the_app_asked_for_is_set_once_cuda_is_up(agent: FakeAgent, socket_path: Path) -> None:
    """Setting it before would start CUDA: it waits until the app uses a GPU."""
    with running(socket_path) as app:
        app.state.limit_ratio = 0.5
        (client,) = agent.wait_for_client()
        agent.wait(lambda: len(client.of("stats")) > 2)
        assert app.torch.calls == []
        app.torch.start_cuda().allocate(GIB)
        agent.wait(lambda: any(device.get("fraction") == 0.5 for device in client.of("stats")[-1]["dev"]))

    assert app.torch.calls.count("set_per_process_memory_fraction") == 1


def test_a_stranger_is_not_obeyed(agent: FakeAgent, socket_path: Path) -> None:
    """A server that is neither root's, nor ours, nor the agent's gets figures, and no obedience."""
    made = Running(socket_path)
    stopping = made.client._stopping
    link = Reconnector(
        made.state, lambda: str(socket_path), made.client._new_session, stopping, trusted=lambda *_: False
    )
    thread = threading.Thread(target=link.run)
    thread.start()
    (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))
    answers = [client.ask("release"), client.ask("rate", interval=5)]
    stopping.set()
    link.interrupt()
    thread.join(30)

    assert client.hello["caps"] == []
    assert all(answer["err"].startswith("forbidden") for answer in answers)


def test_an_agent_that_does_not_read_holds_nothing_up(socket_path: Path) -> None:
    """Samples are dropped once the socket is full: the client neither waits nor keeps them."""
    with FakeAgent(socket_path, reads=False), open_connection(socket_path) as connection:
        line = b"x" * 1000 + b"\n"
        while not connection.has_unsent:
            connection.send(line)
        connection.flush()

        assert connection.has_unsent
        with pytest.raises(ConnectionLost, match="does not read"):
            connection.send(b"x" * MAX_UNSENT_BYTES)


class Unread(Connection):
    """One to an agent that does not read."""

    @property
    def has_unsent(self) -> bool:
        return True


def test_figures_that_are_dropped_leave_a_gap(socket_path: Path) -> None:
    """The agent sees from the numbers how many it has missed; the allocator is not asked for them."""
    made, connection = Running(socket_path), Unread()
    session = made.client._new_session(connection, trusted=True)
    for _ in range(3):
        session._report()
    connection.close()

    assert made.client._reporter.stats()["seq"] == 4
    assert made.torch.calls == []


@contextmanager
def open_connection(path: Path) -> Iterator[Connection]:
    """Connected, and closed in the end."""
    connection = Connection()
    connection.open(str(path))
    yield connection
    connection.close()


def test_a_descriptor_that_was_taken_away_is_not_written_to(agent: FakeAgent, socket_path: Path) -> None:
    """Daemonising code closes all descriptors; ours may be a file of the app's the next moment."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open_connection(socket_path) as connection:
        number = connection.socket.fileno()
        os.dup2(ours.fileno(), number)
        try:
            with pytest.raises(ConnectionLost, match="descriptor"):
                connection.send(b"for the agent only\n")
            connection.interrupt()
            connection.close()
            os.fstat(number)
        finally:
            os.close(number)
        theirs.setblocking(False)

        with pytest.raises(BlockingIOError):
            theirs.recv(1)


def test_a_stopped_client_is_gone(agent: FakeAgent, socket_path: Path) -> None:
    """Its thread has ended and its connection is closed."""
    with running(socket_path):
        (client,) = agent.wait_for_client()
    agent.wait(lambda: not client.connected)

    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("gpuagent")] == []
