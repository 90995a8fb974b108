"""Attach to a real Python 3.14, which runs an app that has never heard of the client."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gpuagent.attach.attachment import attached
from gpuagent.attach.target import NotAttachable
from tests.client.blame.kinds import HERE, HOLDERS, marked_lines
from tests.client.conftest import APPS, ROOT, Apps
from tests.client.test_old_pythons import interpreter
from tests.fakes.agent_socket import FakeAgent
from tests.integration.agent import running_agent

pytestmark = pytest.mark.slow

CLIENT = str(ROOT / "client")
EMBEDDED = f"sys.path.append({CLIENT!r}); import gpuagent_client; gpuagent_client.start()"
FAKE = """
import faketorch
torch = faketorch.FakeTorch().install().start_cuda()
torch.allocate(faketorch.GIB)
"""
APP = """
import json, os, sys, threading

def look():
    import gc, logging, socket, select
    gc.collect()
    return {
        "path": sys.path,
        "modules": sorted(name for name in sys.modules if "gpuagent" in name),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "main": sorted(vars(sys.modules["__main__"])),
        "loggers": sorted(name for name in logging.root.manager.loggerDict if "gpuagent" in name),
        "objects": sorted({kind for kind in map(kind_of, gc.get_objects()) if "gpuagent_client" in kind}),
    }

def kind_of(one):
    return f"{type(one).__module__}.{type(one).__qualname__}"

def wait_for_a_line():
    '''In Python, so that the main thread has safe points: as a server's loop that wakes now and then.'''
    import select
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        pass
    return sys.stdin.readline()

look()
print(json.dumps(look()), flush=True)
while wait_for_a_line() == "look\\n":
    print(json.dumps(look()), flush=True)
"""
BLOCKED = """
import sys
print("ready", flush=True)
sys.stdin.readline()
for _ in range(1000):
    pass
print("went on", flush=True)
"""


LEAKING = """
import sys, threading, time
{first}
import holders

def work(serve):
    number = 0
    while True:
        serve(number)
        number += 1
        if number == 100:
            print("ready", flush=True)
        time.sleep(0.002)

threading.Thread(target=work, args=(holders.serve(sys.argv[1]),), daemon=True).start()
while True:
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def python() -> str:
    """A Python 3.14, or a skip."""
    return interpreter("3.14")


@pytest.fixture
def base() -> Iterator[str]:
    """Where script and socket go: the path of a socket must be short. Nothing is there afterwards."""
    with TemporaryDirectory(prefix="attach-", dir="/tmp") as folder:
        yield folder
        assert not list(Path(folder).iterdir())


def start(apps: Apps, code: str, python: str, *args: str, **environment: str) -> subprocess.Popen[str]:
    """An app that cannot import the client by itself."""
    return apps.code(code, *args, python=python, PYTHONPATH=str(APPS), **environment)


def look(app: subprocess.Popen[str]) -> Any:
    """What the app sees of itself."""
    assert app.stdin is not None
    app.stdin.write("look\n")
    app.stdin.flush()
    return read(app)


def settles(app: subprocess.Popen[str], before: Any, *, but: str = "") -> bool:
    """Whether the app soon sees itself as before: the thread that says that all is removed is the last to end."""
    different: dict[str, Any] = {}
    for _ in range(200):
        now = look(app)
        different = {key: (before[key], now[key]) for key in now if before[key] != now[key] and key != but}
        if not different:
            return True
    raise AssertionError(different)


def read(app: subprocess.Popen[str]) -> Any:
    """The next line of the app."""
    assert app.stdout is not None
    return json.loads(app.stdout.readline())


def test_nothing_stays(apps: Apps, agent: FakeAgent, python: str, base: str) -> None:
    """The agent gets figures and may look, not act; afterwards threads, descriptors and modules are as before."""
    app = start(apps, FAKE + APP, python)
    before = read(app)
    with attached(app.pid, client_directory=CLIENT, safe_point_seconds=60, base=base) as attachment:
        (client,) = agent.wait_for_client(having=lambda one: one.of("stats") and one.of("stats")[-1]["dev"])
        assert (client.pid, client.hello["caps"]) == (app.pid, ["census", "lines"])
        assert not client.ask("release")["ok"]
        assert "gpuagent-client" in look(app)["threads"]
        assert not list(Path(base).iterdir())

    assert attachment.left == ([], [], False)
    agent.wait(lambda: not client.connected)
    assert settles(app, before)
    assert app.communicate("end\n")[0] == ""


def test_a_command_that_is_lost_takes_the_client_along(apps: Apps, agent: FakeAgent, python: str, base: str) -> None:
    """As when it is killed: the process hears that the connection ends, and removes the client by itself."""
    app = start(apps, FAKE + APP, python)
    before = read(app)
    lost = attached(app.pid, client_directory=CLIENT, safe_point_seconds=60, base=base)
    lost.__enter__()
    (client,) = agent.wait_for_client()
    lost.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    agent.wait(lambda: not client.connected)
    assert settles(app, before)


def test_a_main_thread_that_never_comes_by(apps: Apps, agent: FakeAgent, python: str, base: str) -> None:
    """It is said, and when the call into C returns at last, nothing is run and nothing printed."""
    app = start(apps, BLOCKED, python)
    assert app.stdout is not None
    app.stdout.readline()

    with (
        pytest.raises(NotAttachable, match="did not run Python code within"),
        attached(app.pid, client_directory=CLIENT, safe_point_seconds=0.5, base=base),
    ):
        raise AssertionError

    assert app.communicate("\n")[0] == "went on\n"
    assert not agent.clients


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"PYTHON_DISABLE_REMOTE_DEBUG": "1"}, "remote debugging disabled"),
        ({"GPUAGENT_DISABLE": "1"}, "GPUAGENT_DISABLE is set"),
    ],
)
def test_an_app_that_does_not_want_it(
    apps: Apps, python: str, base: str, environment: dict[str, str], why: str
) -> None:
    """Both ways of forbidding it are kept to, and the app goes on."""
    app = start(apps, APP, python, **environment)
    before = read(app)

    with (
        pytest.raises(NotAttachable, match=why),
        attached(app.pid, client_directory=CLIENT, safe_point_seconds=60, base=base),
    ):
        raise AssertionError

    assert settles(app, before)


KINDS = (
    "outputs_with_graph", "running_total", "global_dict", "forward_hook", "exception", "closure", "data_loader",
    "queue_of_a_worker", "future_results", "deque_attribute", "lru_cache", "class_attribute", "generator",
    "parameter_list", "partial",
)  # fmt: skip


def need_torch(apps: Apps, python: str) -> None:
    """Skip where the interpreter has no torch."""
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    if subprocess.run([python, "-c", probe], env=apps.environment(), check=False).returncode:
        pytest.skip("the Python 3.14 here has no torch")


def lay_out(folder: Path) -> None:
    """Put the app of holders into a folder, without a word of the client; its lines keep their numbers."""
    for name in ("driver.py", "noise.py"):
        shutil.copy(HERE / name, folder)
    source = HOLDERS.read_text().replace("from gpuagent_client import blame", "blame = None")
    (folder / "holders.py").write_text(source)


def ask_census(agent: FakeAgent, app: subprocess.Popen[str]) -> Any:
    """What a census of the app says; it has begun to serve."""
    *_, client = agent.wait_for_client(having=lambda one: one.pid == app.pid)
    answer = client.ask("census", window_seconds=5.0)
    assert answer["ok"], answer
    return answer["r"]


def await_ready(app: subprocess.Popen[str]) -> bool:
    """Whether the app says that it serves; it may warn before."""
    assert app.stdout is not None
    return any(line == "ready\n" for line in app.stdout)


def main_finding(answer: Any) -> tuple[object, ...]:
    """Holder, line and cause of what grows most."""
    growing = [group for group in answer["groups"] if group["growing"]]
    return tuple(growing[0][key] for key in ("container", "file", "line", "cause")) if growing else ()


@pytest.mark.few(2)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
def test_the_line_is_that_of_an_embedded_client(
    apps: Apps, agent: FakeAgent, python: str, base: str, tmp_path: Path, kind: str
) -> None:
    """LEAK-01: a real app with torch on Python 3.14, once with the client in it and once without."""
    need_torch(apps, python)
    lay_out(tmp_path)

    embedded = start(apps, LEAKING.format(first=EMBEDDED), python, kind)
    assert await_ready(embedded)
    with_client = main_finding(ask_census(agent, embedded))
    embedded.kill()
    app = start(apps, LEAKING.format(first=""), python, kind)
    assert await_ready(app)
    with attached(app.pid, client_directory=CLIENT, safe_point_seconds=60, base=base):
        brought_in = main_finding(ask_census(agent, app))

    assert with_client
    assert brought_in == with_client


@pytest.mark.timeout(240)
def test_the_command(apps: Apps, python: str, tmp_path: Path) -> None:
    """The whole way: a real agent, a real app with torch, `gpuagent attach`, and the line."""
    need_torch(apps, python)
    lay_out(tmp_path)
    with (
        TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        running_agent(Path(folder), "healthy") as agent,
    ):
        agent.wait_until_ready()
        client_socket = agent.folder / "cl" / "client.sock"
        app = start(apps, LEAKING.format(first=""), python, "global_dict", GPUAGENT_SOCKET=str(client_socket))
        assert await_ready(app)
        answer = agent.command("attach", str(app.pid), "--window", "6s", "--no-lines")

    assert answer.returncode == 0, answer.stderr
    assert f"holders.py:{marked_lines(HOLDERS)['global_dict']}" in answer.stdout.splitlines()[0]
    assert answer.stderr == ""
