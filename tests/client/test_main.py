"""`python -m gpuagent_client`: the client in an app whose code nobody changes."""

from __future__ import annotations

import os
import venv
from pathlib import Path

import pytest

from gpuagent_client.__main__ import INHERITED
from tests.client.conftest import Apps
from tests.fakes.agent_socket import FakeAgent

RUN = ("-m", "gpuagent_client")
SHOW = "import sys; print(sys.argv, __name__, sys.path[0], sep='|')\n"


def test_a_script_runs_as_it_would_alone(apps: Apps, tmp_path: Path, socket_path: Path) -> None:
    """Its arguments, its name, and its folder as the first place to import from."""
    script = tmp_path / "sub" / "app.py"
    script.parent.mkdir()
    script.write_text(SHOW + "import beside; print(__file__)\n")
    (script.parent / "beside.py").touch()

    output, _ = apps.start(*RUN, script, "--port", "80").communicate()

    assert output == f"['{script}', '--port', '80']|__main__|{script.parent}\n{script}\n"


def test_a_module_runs_as_it_would_alone(apps: Apps, tmp_path: Path) -> None:
    """As with `python -m`: found from the working directory, its own path as the first argument."""
    package = tmp_path / "served"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SHOW)

    output, _ = apps.start(*RUN, "-m", "served", "app:app").communicate()

    assert output == f"['{package}/__main__.py', 'app:app']|__main__|{tmp_path}\n"


def test_the_client_is_there_before_the_app(apps: Apps, agent: FakeAgent, tmp_path: Path) -> None:
    """Named after the script, unless the environment names it."""
    (tmp_path / "whisper.py").write_text("input()\n")
    apps.start(*RUN, "whisper.py")
    apps.start(*RUN, "whisper.py", GPUAGENT_APP="speech")

    clients = agent.wait_for_client(2)

    assert {client.hello["app"] for client in clients} == {"whisper", "speech"}


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("1 / 0", 1), ("", 0)])
def test_the_exit_code_is_the_apps(apps: Apps, tmp_path: Path, ending: str, code: int) -> None:
    """A supervisor sees what it would have seen."""
    (tmp_path / "app.py").write_text(f"import sys\n{ending}\n")
    app = apps.start(*RUN, "app.py")
    app.communicate()

    assert app.returncode == code


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--reload", "app.py"], ["nowhere.py"]])
def test_a_wrong_call_says_what_is_right(apps: Apps, arguments: list[str]) -> None:
    """In words, not as a traceback."""
    app = apps.start(*RUN, *arguments)
    output, _ = app.communicate()

    assert app.returncode == 2
    assert output.startswith(("usage: python -m gpuagent_client", "gpuagent_client: there is no nowhere.py"))


def test_help_is_help(apps: Apps) -> None:
    """--help names every environment variable."""
    app = apps.start(*RUN, "--help")
    output, _ = app.communicate()

    assert app.returncode == 0
    assert all(name in output for name in ("GPUAGENT_APP", "GPUAGENT_SOCKET", "GPUAGENT_DISABLE"))


def test_new_interpreters_below_it_have_the_client_too(apps: Apps, agent: FakeAgent, tmp_path: Path) -> None:
    """Uvicorn --workers and torchrun start their workers so; Python's own helpers are left out."""
    (tmp_path / "server.py").write_text(
        """
import multiprocessing, subprocess, sys, time
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    context.Process(target=time.sleep, args=(60,)).start()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(multiprocessing.resource_tracker._resource_tracker._pid, flush=True)
    time.sleep(60)
"""
    )
    app = apps.start(*RUN, "server.py")
    clients = agent.wait_for_client(3, having=lambda one: one.of("stats"))
    assert app.stdout is not None
    tracker = int(app.stdout.readline())

    assert {client.hello["app"] for client in clients} == {"server"}
    assert len({client.pid for client in clients}) == 3
    assert tracker not in {client.pid for client in agent.clients}


def test_an_administrators_sitecustomize_is_not_lost(apps: Apps, tmp_path: Path) -> None:
    """Python loads the first that it finds, which is now ours: ours loads the next."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins; builtins.FROM_SITE = 'kept'\n")
    child = "[sys.executable, '-c', 'print(FROM_SITE)']"
    (tmp_path / "app.py").write_text(f"import subprocess, sys\nprint(subprocess.check_output({child}, text=True))\n")
    path = os.pathsep.join([apps.environment()["PYTHONPATH"], str(site)])

    output, _ = apps.start(*RUN, "app.py", PYTHONPATH=path).communicate()

    assert output.split() == ["kept"]


def test_a_child_without_the_client_is_left_alone(apps: Apps, tmp_path: Path) -> None:
    """A tool in an environment of its own runs as ever, without a word about it."""
    venv.create(tmp_path / "bare", with_pip=False)
    probe = "import sys, threading; print(threading.active_count(), 'sitecustomize' in sys.modules)"

    tool = apps.start("-c", probe, python=tmp_path / "bare" / "bin" / "python", PYTHONPATH=str(INHERITED))

    assert tool.communicate()[0].split() == ["1", "True"]
