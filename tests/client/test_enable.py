"""`gpuagent-client enable`: the client in every program of an environment that imports torch, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from gpuagent_client.enable import MODULE, STARTER, main
from tests.client.conftest import APPS, ROOT, Apps
from tests.fakes.agent_socket import FakeAgent

TORCH = "import torch, sys\nprint('gpuagent_client' in sys.modules, flush=True)\nsys.stdin.readline()\n"
WITHOUT = "import json, sys\nprint('gpuagent_client' in sys.modules)\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with a torch, and without the client."""
    folder = tmp_path_factory.mktemp("enable") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "torch.py").write_text("__version__ = '2.13.0'\n")
    return folder


@pytest.fixture
def environment(made: Path) -> Path:
    """The environment, enabled."""
    assert main(["enable", "--venv", str(made)]) == 0
    return made


def site_packages(environment: Path) -> Path:
    """Where the files go."""
    (site,) = environment.glob("lib/python3*/site-packages")
    return site


def start(apps: Apps, environment: Path, code: str, **variables: str) -> subprocess.Popen[str]:
    """A program of the environment."""
    return apps.code(code, python=environment / "bin/python", PYTHONPATH="", **variables)


def test_a_program_with_torch_has_the_client(apps: Apps, agent: FakeAgent, environment: Path) -> None:
    """It starts at the import of torch, from the directory of the command, and is named after the script."""
    start(apps, environment, TORCH)

    (client,) = agent.wait_for_client(having=lambda one: one.hello.get("torch"))

    assert client.hello["app"] == "app0"


@pytest.mark.parametrize(
    ("code", "variables"),
    [(WITHOUT, {}), (TORCH, {"GPUAGENT_DISABLE": "1"})],
    ids=["without torch", "disabled"],
)
def test_another_program_has_not(apps: Apps, environment: Path, code: str, variables: dict[str, str]) -> None:
    """Neither does it load a module of the client's."""
    assert start(apps, environment, code, **variables).communicate("\n")[0] == "False\n"


@pytest.mark.parametrize(
    "text",
    [None, "1 / 0\n", "def watch(:\n", "raise SystemError\n", "import sys\nCLIENT = '/nowhere'\n{}"],
    ids=["missing", "failing", "no Python", "raising", "client gone"],
)
def test_an_apps_start_is_never_broken(apps: Apps, environment: Path, text: str | None) -> None:
    """Whatever became of the files or of the client: no word on its output, no other exit status."""
    module = site_packages(environment) / MODULE
    whole = module.read_text()
    module.unlink()
    if text is not None:
        module.write_text(text.format(whole.replace(str(ROOT / "client"), "/nowhere")))

    app = start(apps, environment, TORCH)

    assert app.communicate("\n")[0] == "False\n"
    assert app.returncode == 0


def test_a_client_that_cannot_be_loaded(apps: Apps, environment: Path, tmp_path: Path) -> None:
    """A broken one is as none, and the import of torch goes on."""
    broken = tmp_path / "broken/gpuagent_client"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken')\n")
    module = site_packages(environment) / MODULE
    module.write_text(module.read_text().replace(str(ROOT / "client"), str(broken.parent)))

    assert start(apps, environment, TORCH).communicate("\n")[0] == "False\n"


def test_status_and_disable(environment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both files go, and the status says so by its exit status too."""
    place = str(environment)
    assert main(["status", "--venv", place]) == 0
    assert main(["disable", "--venv", place]) == 0
    assert not {STARTER, MODULE} & {path.name for path in site_packages(environment).iterdir()}
    assert main(["status", "--venv", place]) == 1
    assert main(["disable", "--venv", place]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.partition(" in ")[0] for line in output[-4:]] == [
        "Enabled", "Disabled", "Not enabled", "Was not enabled",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["enable", "--venv", "/nowhere"], "no virtual environment"),
        (["enable", "--unit", "a/../b"], "no name of a service"),
        (["enable", "--unit", "a\nb"], "no name of a service"),
    ],
)
def test_what_cannot_be_enabled(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 and one line."""
    assert main(arguments) == 1
    assert why in capsys.readouterr().err


def test_the_drop_in_of_a_unit(apps: Apps, agent: FakeAgent, capsys: pytest.CaptureFixture[str], made: Path) -> None:
    """Its environment brings the client into a program that has none installed; nothing is written."""
    main(["disable", "--venv", str(made)])
    assert main(["enable", "--unit", "whisper"]) == 0
    text = capsys.readouterr().out
    assert "/etc/systemd/system/whisper.service.d/gpuagent-client.conf" in text
    lines = [line.removeprefix("Environment=").strip('"') for line in text.splitlines() if line.startswith("Env")]
    variables = dict(line.split("=", 1) for line in lines)
    assert set(variables) == {"PYTHONPATH", "GPUAGENT_START", "GPUAGENT_APP"}

    helper = apps.code(WITHOUT, python=made / "bin/python", **variables)
    assert helper.communicate()[0] == "False\n"
    apps.code(TORCH, python=made / "bin/python", **variables)

    (client,) = agent.wait_for_client()
    assert client.hello["app"] == "whisper"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.6", "3.8"])
def test_a_python_that_is_too_old(version: str, tmp_path: Path) -> None:
    """The module is loaded, and does nothing."""
    from tests.client.test_old_pythons import interpreter

    (tmp_path / "torch.py").touch()
    source = ROOT / "client/gpuagent_client/enable" / MODULE
    code = f"import sys; sys.path[:0] = [{str(source.parent)!r}, {str(tmp_path)!r}]\n"
    code += f"import {source.stem} as m; m.watch(); import torch; print(len(sys.modules['torch'].__file__) > 0)"
    done = subprocess.run([interpreter(version), "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_command_is_there() -> None:
    """As a module too, where the script is not on the PATH."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuagent_client.enable", "--help"], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{ROOT / 'client'}:{APPS}"},
    )  # fmt: skip
    assert done.stdout.startswith("usage: gpuagent-client")
