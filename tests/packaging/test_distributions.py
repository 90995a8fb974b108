"""What is installed is what was meant to be: both wheels, and the sdist that can be built again."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LICENSE = (ROOT / "LICENSE").read_text()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def build(source: Path, out: Path) -> Path:
    """Build an sdist, and from it a wheel, with the tools that are installed, without a network."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return out


class Wheel:
    """A built wheel, opened to look at."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            self.files = set(archive.namelist())
            self._text = {Path(name).name: archive.read(name).decode() for name in self.files if ".dist-info/" in name}

    @property
    def toplevel(self) -> set[str]:
        """What appears in site-packages, besides the metadata."""
        return {name.partition("/")[0] for name in self.files if ".dist-info/" not in name}

    @property
    def metadata(self) -> Message:
        """The headers of METADATA."""
        return Parser().parsestr(self._text["METADATA"])

    def text(self, name: str) -> str:
        """A file of the metadata."""
        return self._text[name]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the agent's sdist, and of its wheel built from that sdist."""
    return build(ROOT, tmp_path_factory.mktemp("agent"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Wheel:
    """The agent's wheel."""
    (path,) = built.glob("*.whl")
    return Wheel(path)


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    """The client's wheel."""
    (path,) = build(ROOT / "client", tmp_path_factory.mktemp("client")).glob("*.whl")
    return Wheel(path)


def source_files() -> Iterator[str]:
    """Every file of the agent's packages, by its path in the wheel."""
    for package in (
        "agent/gpuagent",
        "exporters/gpuagent_exporters",
        "alerts/gpuagent_alerts",
        "simulator/gpuagent_simulator",
    ):
        folder = ROOT / package
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(folder.parent))


def test_the_wheel_installs_three_packages_and_no_more(wheel: Wheel) -> None:
    """No package called `agent` or `tests` reaches anybody's site-packages."""
    assert wheel.toplevel == {"gpuagent", "gpuagent_exporters", "gpuagent_alerts", "gpuagent_simulator"}


def test_the_wheel_has_every_source_and_data_file(wheel: Wheel) -> None:
    """Scenarios, rules and type markers travel without being listed anywhere."""
    expected = set(source_files())

    assert "gpuagent/core/snapshot.py" in expected
    assert {name for name in wheel.files if ".dist-info/" not in name} == expected


def test_every_package_is_typed(wheel: Wheel, client_wheel: Wheel) -> None:
    """PEP 561: type checkers of others use the annotations only beside a py.typed."""
    for package in wheel.toplevel:
        assert f"{package}/py.typed" in wheel.files
    assert "gpuagent_client/py.typed" in client_wheel.files


def test_the_wheel_has_the_command(wheel: Wheel) -> None:
    """`pip install gpuagent` gives a `gpuagent` on the PATH."""
    assert "gpuagent = gpuagent.cli:main" in wheel.text("entry_points.txt").splitlines()


def test_each_version_stands_in_its_package(wheel: Wheel, client_wheel: Wheel) -> None:
    """The version is written once for each distribution, in its `__init__.py`."""
    for built_wheel, package in (
        (wheel, ROOT / "agent" / "gpuagent"),
        (client_wheel, ROOT / "client" / "gpuagent_client"),
    ):
        written = re.search(r'^__version__ = "(.+)"$', (package / "__init__.py").read_text(), re.MULTILINE)
        assert written is not None
        assert built_wheel.metadata["Version"] == written[1]


def test_the_client_needs_nothing(client_wheel: Wheel) -> None:
    """An app that embeds the client gains one package and no dependency, on Python 3.9 too."""
    assert client_wheel.toplevel == {"gpuagent_client"}
    assert client_wheel.metadata.get_all("Requires-Dist") is None
    assert client_wheel.metadata["Requires-Python"] == ">=3.9"


def test_the_license_travels(wheel: Wheel, client_wheel: Wheel) -> None:
    """Apache-2.0 section 4: whoever gets a copy gets the license."""
    for each in (wheel, client_wheel):
        assert each.metadata["License-Expression"] == "Apache-2.0"
        assert each.text("LICENSE") == LICENSE


def test_dependencies_are_ranges_that_were_tested(wheel: Wheel) -> None:
    """No dependency is open at either end: a new major version is tried before it is trusted."""
    required = wheel.metadata.get_all("Requires-Dist") or []

    assert required
    assert [line for line in required if not (">=" in line and "<" in line)] == []
    assert [line for line in required if line.startswith("torch")] == []


def test_the_sdist_has_what_it_takes_to_build_and_test(built: Path) -> None:
    """Whoever packages this for a distribution starts from the sdist alone."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}

    assert {"LICENSE", "README.md", "Makefile", "constraints.txt", "tests/conftest.py"} <= files
    assert [name for name in files if name.startswith(("client/", ".venv", "wheelhouse/"))] == []
