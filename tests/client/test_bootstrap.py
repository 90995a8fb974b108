"""What `gpuagent attach` runs in an app, on any Python: the app executes the script itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuagent.attach import attachment
from gpuagent.attach.attachment import Attachment, attached
from gpuagent.attach.target import NotAttachable, Target
from tests.client.conftest import Apps
from tests.client.test_attach import APP, CLIENT, EMBEDDED, FAKE, look, read, settles, start
from tests.fakes.agent_socket import FakeAgent

OBEDIENT = "line = ''\n" + APP.replace(
    'while wait_for_a_line() == "look\\n":\n',
    """while (line := wait_for_a_line()) != "end\\n":
    if line.startswith("run "):
        exec(__import__("pathlib").Path(line[4:].strip()).read_text(), {"__builtins__": __builtins__})
        continue
""",
)
Attach = Callable[[subprocess.Popen[str]], AbstractContextManager[Attachment]]


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attach]:
    """Attaches to an app of this Python, and leaves no file."""
    place = TemporaryDirectory(prefix="attach-", dir="/tmp")
    folder = Path(place.name)

    def run(app: subprocess.Popen[str]) -> AbstractContextManager[Attachment]:
        ticks = int(Path(f"/proc/{app.pid}/stat").read_text().rpartition(") ")[2].split()[19])
        target = Target(app.pid, ticks, os.getuid(), os.getgid(), sys.executable)
        monkeypatch.setattr(attachment, "read_target", lambda *_, **__: target)

        def inject(_: Target, script: str) -> None:
            assert app.stdin is not None
            app.stdin.write(f"run {script}\n")
            app.stdin.flush()

        return attached(app.pid, client_directory=CLIENT, safe_point_seconds=60, base=str(folder), inject=inject)

    with place:
        yield run
        assert not list(folder.iterdir())


def test_nothing_stays(apps: Apps, agent: FakeAgent, attach: Attach) -> None:
    """Twice in a row: threads, descriptors, modules, loggers and the names of `__main__` are as before each time."""
    app = start(apps, FAKE + OBEDIENT, sys.executable)
    before = read(app)
    for number in (1, 2):
        with attach(app) as attachment:
            client = agent.wait_for_client(having=lambda one: one.of("stats"))[-1]
            assert (client.pid, client.hello["caps"]) == (app.pid, ["census", "lines"])
            assert len(agent.clients) == number
            assert {"gpuagent-client", "gpuagent-attach"} < set(look(app)["threads"])
        assert attachment.left == ([], [], False)
        agent.wait(lambda client=client: not client.connected)  # type: ignore[misc]
        assert settles(app, before)

    assert app.communicate("end\n")[0] == ""


def test_an_app_with_the_client_keeps_it(apps: Apps, agent: FakeAgent, attach: Attach) -> None:
    """Nothing is brought in and nothing is removed; it obeys what the app allows, as before."""
    app = start(apps, f"import sys\n{EMBEDDED}\n{FAKE}{OBEDIENT}", sys.executable)
    read(app)
    (client,) = agent.wait_for_client()
    before = look(app)
    with attach(app) as attachment:
        assert "release" in client.hello["caps"]

    assert attachment.left is not None
    assert attachment.left.own
    assert settles(app, before, but="objects")
    assert client.connected
    assert len(agent.clients) == 1


def test_an_app_that_imported_it_and_never_started_it(apps: Apps, agent: FakeAgent, attach: Attach) -> None:
    """The app's own is used for the window, and stopped; its modules stay."""
    own = f"import sys\nsys.path.append({CLIENT!r})\nimport gpuagent_client\n"
    app = start(apps, own + FAKE + OBEDIENT, sys.executable)
    before = read(app)
    with attach(app):
        (client,) = agent.wait_for_client()

    agent.wait(lambda: not client.connected)
    after = look(app)
    assert "gpuagent_client" in after["modules"]
    assert set(before["modules"]) == set(after["modules"])
    assert "gpuagent-client" not in after["threads"]


def test_the_app_may_end_meanwhile(apps: Apps, agent: FakeAgent, attach: Attach) -> None:
    """Its exit status is its own, and nothing is said on its output."""
    app = start(apps, FAKE + OBEDIENT, sys.executable)
    read(app)
    with attach(app) as attachment:
        agent.wait_for_client()
        output, _ = app.communicate("end\n")

    assert (output, app.returncode) == ("", 0)
    assert attachment.left is None


def test_an_app_that_forbids_it(apps: Apps, agent: FakeAgent, attach: Attach) -> None:
    """GPUAGENT_DISABLE=1 holds for a client that is brought in too."""
    app = start(apps, OBEDIENT, sys.executable, GPUAGENT_DISABLE="1")
    before = read(app)
    with pytest.raises(NotAttachable, match="GPUAGENT_DISABLE is set"), attach(app):
        raise AssertionError

    assert settles(app, before)
    assert not agent.clients


def test_a_client_that_cannot_be_loaded(apps: Apps, attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason comes back, and nothing stays of the attempt."""
    monkeypatch.setattr("tests.client.test_bootstrap.CLIENT", "/nowhere")
    monkeypatch.setattr(attachment, "check_client", lambda *_: None)
    monkeypatch.setattr(attachment, "is_visible", lambda *_: True)
    app = start(apps, OBEDIENT, sys.executable)
    before = read(app)
    with pytest.raises(NotAttachable, match="FileNotFoundError"), attach(app):
        raise AssertionError

    assert settles(app, before)
