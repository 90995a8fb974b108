"""A booted machine with the service installed: made once for the modules that look at it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.systemd.machine import Machine, booted, require

ROOT = Path(__file__).parents[2]


def make_wheels(folder: Path) -> Path:
    """The wheels of the working tree for the distribution's Python, and those of all they need.

    GPUAGENT_TEST_WHEELHOUSE is a folder with the latter, to save the time and the network.
    """
    given = os.environ.get("GPUAGENT_TEST_WHEELHOUSE")
    if given:
        wheels = folder / "wheels"
        wheels.mkdir()
        for wheel in Path(given).glob("*.whl"):
            if not wheel.name.startswith("gpuagent-"):
                (wheels / wheel.name).symlink_to(wheel)
        build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(wheels), str(ROOT)]
        subprocess.run(build, capture_output=True, check=True)
        return wheels
    python = folder / "venv/bin/python"
    subprocess.run(["/usr/bin/python3", "-m", "venv", python.parents[1]], check=True)
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("pip=="))
    for command in (f"{python} -m pip -qq install {pinned}", f"{ROOT}/scripts/wheelhouse {python} {folder}/w"):
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            if os.environ.get("CI"):
                pytest.fail(f"no wheels for the machine: {done.stderr}")
            pytest.skip("needs a package index for the wheels of the machine, or GPUAGENT_TEST_WHEELHOUSE")
    return folder / "w"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `make install WHEELHOUSE=`."""
    require()
    if not Path("/usr/bin/python3").exists():
        pytest.skip("needs the distribution's Python: /usr/bin/python3")
    return make_wheels(tmp_path_factory.mktemp("wheels"))


@contextmanager
def bare(wheels: Path, folder: Path, binds: tuple[str, ...] = (), root: Path = Path("/")) -> Iterator[Machine]:
    """A machine that has never heard of gpuagent, with this tree in /src and the wheels in /wheels."""
    copies = folder / "wheels"
    copies.mkdir()
    for wheel in wheels.glob("*.whl"):  # a link to a wheel would lead nowhere inside
        shutil.copy(wheel, copies)
    with booted(folder, root, (f"{ROOT}:/src", f"{copies}:/wheels", *binds)) as machine:
        # Of an agent on the machine that tests: its root is what this one began with.
        machine.run("rm", "-rf", "/opt/gpuagent", "/etc/gpuagent", "/var/lib/gpuagent")
        yield machine


@pytest.fixture(scope="module")
def bare_machine(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """For a module that installs by itself."""
    with bare(wheels, tmp_path_factory.mktemp("bare")) as machine:
        yield machine


@pytest.fixture(scope="session")
def machine(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One with the service installed and running, a member of its group, and others; a test leaves it as it was."""
    with bare(wheels, tmp_path_factory.mktemp("machine")) as installed:
        installed.run("make", "-C", "/src", "install", "WHEELHOUSE=/wheels")
        for user in ("oper", "stranger", "svc-ml", "alice"):
            installed.run("useradd", "--create-home", user)
        installed.run("usermod", "-aG", "gpuagent", "oper")
        yield installed
