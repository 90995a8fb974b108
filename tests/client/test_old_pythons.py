"""The client lives in other people's apps, on any Python since 3.9, with nothing but the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.conftest import ROOT, Apps
from tests.fakes.agent_socket import FakeAgent
from tests.tables import table

FILES = sorted((ROOT / "client" / "gpuagent_client").rglob("*.py"))
OLD = (3, 9)
NEW_MODULES = {"tomllib"}
MODULES = """
import sys
before = set(sys.modules)
import gpuagent_client, gpuagent_client.vllm
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new))
"""
APP = """
import gpuagent_client, sys
from faketorch import GIB, FakeTorch
FakeTorch().install().start_cuda().allocate(GIB)
gpuagent_client.start(app="old")
with gpuagent_client.measure("load"):
    pass
sys.stdin.readline()
"""


def interpreter(version: str) -> str:
    """An interpreter of this version, or a skip: they are rarely all there."""
    for candidate in [f"python{version}", *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]:
        try:
            subprocess.run([candidate, "-c", ""], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    pytest.skip(f"no Python {version} here; with https://docs.astral.sh/uv/: uv python install {version}")


def test_there_are_files_to_check() -> None:
    """The checks below must not pass on nothing."""
    assert {"lifecycle.py", "sitecustomize.py"} <= {path.name for path in FILES}


@table("path", FILES)
def test_the_syntax_is_that_of_python_3_9(path: Path) -> None:
    """No `match`, no parentheses around `with`: an app on 3.9 must be able to import it."""
    ast.parse(path.read_text(), feature_version=OLD)


@table("path", FILES)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    """At any place in a file, not only at the top: torch is looked up, never imported; pytest by its plugin alone."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            names.add(node.module.partition(".")[0])

    own = {"gpuagent_client", "pytest"} if path.name == "pytest_plugin.py" else {"gpuagent_client"}
    assert names - own <= set(sys.stdlib_module_names) - NEW_MODULES


def test_an_app_gets_few_modules(apps: Apps) -> None:
    """Neither asyncio nor ssl nor anything else that takes time to load, and no `blame` before it is asked for."""
    app = apps.start("-c", MODULES + "print('gpuagent_client.blame' in sys.modules)")
    modules, blame = app.communicate()[0].splitlines()

    assert {"asyncio", "ssl", "multiprocessing", "subprocess", "torch"}.isdisjoint(modules.split())
    assert blame == "False"


def test_an_app_keeps_its_own_modules(apps: Apps, tmp_path: Path) -> None:
    """An app may have files of any name beside it: agent.py, client.py, commands.py, server.py."""
    names = ("agent", "alerts", "exporters", "client", "commands", "server", "session", "protocol", "link")
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"MINE = {name!r}\n")
    mine = ", ".join(f"{name}.MINE" for name in names)

    app = apps.code(f"import {', '.join(names)}, gpuagent_client\ngpuagent_client.start()\nprint({mine})\n")

    assert app.communicate()[0].split() == list(names)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_it_runs_on_other_pythons(apps: Apps, agent: FakeAgent, version: str) -> None:
    """Start, figures, an event, a command, an end, on a real interpreter; and not a warning."""
    app = apps.code(APP, python=interpreter(version))
    (client,) = agent.wait_for_client(having=lambda one: one.of("event") and one.of("stats")[-1]["dev"])
    released = client.ask("release")
    output, _ = app.communicate("\n")

    assert client.hello["py"].startswith(version + ".")
    assert released["ok"]
    assert (output, app.returncode) == ("", 0)
