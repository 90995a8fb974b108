"""Apps of their own process with the client in them: start, fork, exit, and every way to hurt them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.client.conftest import Apps
from tests.fakes.agent_socket import FakeAgent

START = "import gpuagent_client; gpuagent_client.start(app='web')\n"
WAIT = "import sys; sys.stdin.readline()\n"
AS_A_FORK_MAY = "ignore:This process:DeprecationWarning"
"""Python 3.12 and newer warn of a fork in a process with threads, of which the client is one."""


def test_one_line_is_enough(apps: Apps, agent: FakeAgent) -> None:
    """The app appears under its name and its pid, as the kernel knows it."""
    app = apps.code(START + WAIT)
    (client,) = agent.wait_for_client()

    assert client.pid == client.hello["pid"] == app.pid
    assert client.hello["app"] == "web"


def test_an_app_ends_as_it_would_without_the_client(apps: Apps, agent: FakeAgent) -> None:
    """Exit code 0, nothing on its output, and the agent sees the end at once."""
    app = apps.code(START + WAIT)
    (client,) = agent.wait_for_client(having=lambda one: one.of("stats"))
    output, _ = app.communicate("\n")
    agent.wait(lambda: not client.connected)

    assert (app.returncode, output) == (0, "")


@pytest.mark.parametrize(
    ("ending", "code"),
    [("sys.exit(3)", 3), ("raise ValueError('own')", 1), ("os._exit(4)", 4), ("os.kill(os.getpid(), 15)", -15)],
)
def test_an_exit_code_is_the_apps(apps: Apps, agent: FakeAgent, ending: str, code: int) -> None:
    """However it ends, and with the client's thread alive."""
    app = apps.code(f"{START}import os\n{WAIT}{ending}\n")
    agent.wait_for_client()
    app.communicate("\n")

    assert app.returncode == code


def test_an_app_that_ends_at_once_ends_well(apps: Apps, agent: FakeAgent) -> None:
    """The thread may be anywhere at that moment: ten times out of ten the exit is clean."""
    ended = [apps.code(START) for _ in range(10)]

    assert [(app.communicate()[0], app.returncode) for app in ended] == [("", 0)] * 10


def test_without_an_agent_there_is_silence(apps: Apps) -> None:
    """Not a line in the app's log, at any level but debug."""
    app = apps.code(
        "import logging, time; logging.basicConfig(level=logging.INFO)\n" + START + "time.sleep(0.6); print('done')\n"
    )

    assert app.communicate()[0] == "done\n"


def test_a_wrong_argument_does_not_stop_an_app(apps: Apps) -> None:
    """It is told in one line; under pytest it would be raised."""
    app = apps.code("import gpuagent_client\ngpuagent_client.start(interval=-1)\nprint('served')\n")
    output, _ = app.communicate()

    assert output.splitlines()[-1] == "served"
    assert "interval must be 0.2 to 60.0 seconds" in output
    assert app.returncode == 0


def test_developers_see_their_mistakes(apps: Apps) -> None:
    """GPUAGENT_STRICT=1 raises what is otherwise only logged."""
    app = apps.code("import gpuagent_client\ngpuagent_client.start(interval=-1)\n", GPUAGENT_STRICT="1")

    assert "ValueError: interval must be" in app.communicate()[0]


def test_the_client_can_be_switched_off_from_outside(apps: Apps, agent: FakeAgent) -> None:
    """GPUAGENT_DISABLE=1: no thread, no connection, and the app runs as ever."""
    probe = "import threading; print([t.name for t in threading.enumerate()])\n"
    app = apps.code(START + probe, GPUAGENT_DISABLE="1")

    assert app.communicate()[0] == "['MainThread']\n"
    assert agent.clients == []


def test_start_may_be_called_often(apps: Apps, agent: FakeAgent) -> None:
    """One thread and one connection; a later name replaces an earlier one."""
    again = "gpuagent_client.start(); gpuagent_client.start(app='api')\n"
    apps.code(START + again + "import threading; print(threading.active_count(), flush=True)\n" + WAIT)
    (client,) = agent.wait_for_client(having=lambda one: one.hello["app"] == "api" and one.of("stats"))

    assert agent.clients == [client]


def test_a_forked_child_has_a_connection_of_its_own(apps: Apps, agent: FakeAgent) -> None:
    """Under its own pid: the kernel's word for the parent's connection would stay the parent's."""
    apps.code(f"{START}import os\n{WAIT}pid = os.fork()\n{WAIT}")
    app = apps.started[0]
    (parent,) = agent.wait_for_client()
    assert app.stdin is not None
    app.stdin.write("fork\n")
    app.stdin.flush()
    first, second = agent.wait_for_client(2)

    assert first is parent
    assert second.hello["ppid"] == parent.pid
    assert second.pid == second.hello["pid"] != parent.pid
    assert parent.connected


def test_a_parents_end_is_seen_while_its_children_live(apps: Apps, agent: FakeAgent) -> None:
    """A child that kept the parent's descriptor would keep the parent alive in the agent's eyes."""
    app = apps.code(f"{START}import os, time\nif os.fork() == 0: time.sleep(60)\n{WAIT}")
    parent = agent.wait_for_client(2, having=lambda one: one.of("stats"))[0]
    os.kill(app.pid, signal.SIGKILL)
    agent.wait(lambda: not next(one for one in agent.clients if one.pid == app.pid).connected)
    (child,) = [one for one in agent.clients if one.connected]

    assert parent is not child
    assert child.hello["ppid"] == app.pid


@pytest.mark.slow
def test_a_hundred_forks_under_load(apps: Apps, agent: FakeAgent) -> None:
    """Forks at any moment of the thread, of the log's locks, of the client's calls: every child answers and ends."""
    apps.code(
        f"""{START}
import logging, os, threading
stop = threading.Event()
def busy():
    while not stop.is_set():
        with gpuagent_client.measure("load"):
            gpuagent_client.describe()
for _ in range(2):
    threading.Thread(target=busy).start()
for number in range(100):
    pid = os.fork()
    if pid == 0:
        gpuagent_client.report("in the child")
        gpuagent_client.start(app=f"child {{number}}")
        gpuagent_client.stop()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, number
stop.set()
print("forked", flush=True)
""",
        PYTHONWARNINGS=AS_A_FORK_MAY,
    )
    output, _ = apps.started[0].communicate(timeout=60)

    assert (output, apps.started[0].returncode) == ("forked\n", 0)


def test_a_child_of_a_worker_is_no_worker(apps: Apps, agent: FakeAgent) -> None:
    """What ends a worker for its successor is not inherited by a process that has none."""
    app = apps.code(
        f"{START}import os\nfrom gpuagent_client import lifecycle\nlifecycle.state.drain = lambda why: True\n"
        "pid = os.fork()\nif pid == 0:\n    os._exit(lifecycle.state.drain is not None)\n"
        "print(os.waitpid(pid, 0)[1], lifecycle.state.drain is not None)",
        PYTHONWARNINGS=AS_A_FORK_MAY,
    )
    output, _ = app.communicate()

    assert output == "0 True\n"


def test_a_child_of_a_threads_fork_starts_anew(apps: Apps, agent: FakeAgent) -> None:
    """A fork from any thread, and a fork of the fork, is a process like any other."""
    apps.code(
        f"""{START}
import os, threading, time
def fork_twice():
    if os.fork() == 0:
        os.fork()
        time.sleep(60)
threading.Thread(target=fork_twice).start()
time.sleep(60)
"""
    )
    clients = agent.wait_for_client(3, having=lambda one: one.of("stats"))

    assert len({client.pid for client in clients}) == 3


def test_a_child_that_starts_another_program_never_connects(apps: Apps, agent: FakeAgent) -> None:
    """Fork and exec by hand: the program that runs then has nothing to do with the client."""
    app = apps.code(
        f"{START}import os\npid = os.fork()\nif pid == 0: os.execv('/bin/true', ['true'])\nos.waitpid(pid, 0)\n{WAIT}"
    )
    agent.wait_for_client()
    app.communicate("\n")

    assert {client.pid for client in agent.clients} == {app.pid}


def test_cuda_in_the_parent_is_none_in_the_child(apps: Apps, agent: FakeAgent) -> None:
    """The child of a process with CUDA says that it has none, and the parent's figures go on."""
    apps.code(
        f"""
from faketorch import FakeTorch
FakeTorch().install().start_cuda().allocate(1 << 30)
{START}import os, time
os.fork()
time.sleep(60)
"""
    )
    clients = agent.wait_for_client(2, having=lambda one: one.of("stats"))
    figures = {client.hello["pid"] == apps.started[0].pid: client.of("stats")[-1] for client in clients}

    assert (figures[True]["init"], len(figures[True]["dev"])) == (True, 1)
    assert (figures[False]["init"], figures[False]["dev"]) == (False, [])


def test_a_cache_that_is_being_emptied_at_exit_is_waited_for(apps: Apps, agent: FakeAgent) -> None:
    """A thread inside torch while the interpreter ends would abort the process."""
    app = apps.code(
        f"""
import sys, time
from faketorch import FakeTorch
torch = FakeTorch().install().start_cuda()
torch.allocate(1 << 30)
def slow():
    print("emptying", flush=True)
    time.sleep(0.7)
    print("emptied", flush=True)
sys.modules["torch.cuda"].empty_cache = slow
{START}{WAIT}"""
    )
    (client,) = agent.wait_for_client()
    client.say({"t": "cmd", "id": 1, "cmd": "release", "args": {}, "deadline_ms": 5000})
    assert app.stdout is not None
    assert app.stdout.readline() == "emptying\n"
    output, _ = app.communicate("\n")

    assert (output, app.returncode) == ("emptied\n", 0)


def test_a_multiprocessing_child_that_is_spawned_has_a_client(apps: Apps, agent: FakeAgent) -> None:
    """A new interpreter imports the app's module, and so starts the client, as uvicorn's workers do."""
    apps.code(
        f"""{START}
import multiprocessing, time
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,)).start()
    time.sleep(60)
"""
    )
    clients = agent.wait_for_client(2)

    assert {client.hello["app"] for client in clients} == {"web"}


def test_a_stopped_agent_is_waited_for_without_harm(apps: Apps, socket_path: Path) -> None:
    """An agent that accepts and then hangs: the app goes on, and ends when it wants to."""
    with FakeAgent(socket_path, greet=False, reads=False) as agent:
        app = apps.code(START + "print('served', flush=True)\n" + WAIT)
        agent.wait(lambda: agent.clients)
        output, _ = app.communicate("\n")

    assert (output, app.returncode) == ("served\n", 0)
