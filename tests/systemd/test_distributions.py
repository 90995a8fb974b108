"""The .deb on other distributions than this one: made, installed, upgraded, gone back, taken away on each of them.

Their root file systems are made of their own packages. The wheels are fetched here, for their Python: the machine
has no network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.systemd import test_packages as walk
from tests.systemd.conftest import bare
from tests.systemd.machine import Machine, require
from tests.systemd.test_service import UNIT, configure

ROOT = Path(__file__).parents[2]
PACKAGES = "systemd-sysv,dbus,python3,python3-venv,make,man-db,procps,rpm,libstdc++6,needrestart"


class Distribution(NamedTuple):
    """What there is to know of one."""

    codename: str
    python: str
    keyring: str
    components: str


DISTRIBUTIONS = {
    "debian-13": Distribution("trixie", "3.13", "debian-archive-keyring", "main"),
    "ubuntu-24.04": Distribution("noble", "3.12", "ubuntu-archive-keyring", "main,universe"),
}
STEPS: tuple[Callable[..., Any], ...] = (
    walk.test_it_serves, walk.test_every_file_is_the_packages, walk.test_an_installation_from_a_tree_is_refused,
    walk.test_an_upgrade_keeps_configuration_and_state, walk.test_the_way_back,
    walk.test_a_configuration_that_the_new_version_refuses, walk.test_a_service_that_was_stopped_stays_stopped,
)  # fmt: skip


def make_root(distribution: Distribution, folder: Path) -> Path:
    """Make a root file system of it; skip where that cannot be had."""
    keyring = Path(f"/usr/share/keyrings/{distribution.keyring}.gpg")
    if not keyring.exists():
        pytest.skip(f"needs {keyring}: nothing is installed whose signature is not looked at")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs mmdebstrap: apt-get install mmdebstrap")
    root = folder / "root"
    command = [
        "mmdebstrap", "--quiet", "--variant=apt", f"--include={PACKAGES}", f"--keyring={keyring}",
        f"--components={distribution.components}", "--format=directory", distribution.codename, str(root),
    ]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no root file system of {distribution.codename} could be made: {made.stderr[-300:]}")
    return root


def make_packages(machine: Machine) -> None:
    """Make those of a version before and those of this tree, with the distribution's Python, in /packages."""
    for revision, epoch in (("0", "1790000000"), ("1", "1795000000")):
        machine.run(
            "env", f"REVISION={revision}", f"SOURCE_DATE_EPOCH={epoch}", "PYTHON=/usr/bin/python3",
            "/src/scripts/packages", "/packages", "/wheels", timeout=300,
        )  # fmt: skip


def outdated(machine: Machine) -> set[str]:
    """The units that needrestart would start anew."""
    return set(re.findall(r"NEEDRESTART-SVC: (\S+)", machine.run("needrestart", "-b", "-l")))


def look_with_needrestart(machine: Machine) -> None:
    """It says nothing of an upgraded agent, and starts it anew when a library of it was replaced.

    It does not while the agent would not come up again with its configuration.
    """
    assert UNIT not in outdated(machine)
    pid = machine.show(UNIT, "MainPID")
    used = re.findall(r"(/usr/lib/\S*libz\.so\S*)", machine.run("cat", f"/proc/{pid}/maps"))
    machine.run("sh", "-c", f"cp {used[0]} {used[0]}.new && mv {used[0]}.new {used[0]}")
    assert UNIT in outdated(machine)
    configure(machine, "poll_intervall: 3s\n")
    machine.run("needrestart", "-l", "-r", "a")
    assert machine.show(UNIT, "MainPID") == pid
    configure(machine, "poll_interval: 3s\n")
    machine.run("needrestart", "-l", "-r", "a")
    assert machine.show(UNIT, "MainPID") != pid
    assert walk.serving(machine)
    assert UNIT not in outdated(machine)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.needs("systemd-nspawn")
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_package_on(name: str, tmp_path: Path) -> None:
    """All that is promised of it holds there too, and needrestart knows the service."""
    require()
    distribution = DISTRIBUTIONS[name]
    root = make_root(distribution, tmp_path)
    wheels = tmp_path / "fetched"
    tools = subprocess.run([ROOT / "scripts/release", "tools"], capture_output=True, text=True, check=True)
    python = Path(tools.stdout.strip()) / "python"
    fetch: list[str | Path] = [ROOT / "scripts/wheelhouse", python, wheels, distribution.python, os.uname().machine]
    done = subprocess.run(fetch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    machine_folder = tmp_path / "machine"
    machine_folder.mkdir()
    try:
        with bare(wheels, machine_folder, root=root) as machine:
            untouched = walk.found(machine)
            make_packages(machine)
            walk.must(walk.deb(machine, walk.OLD))
            for step in STEPS:
                step(machine)
            look_with_needrestart(machine)
            walk.test_removed_and_purged(machine, untouched)
            walk.test_over_an_installation_from_a_tree(machine, "deb")
            walk.test_the_rpm(machine)
    finally:
        shutil.rmtree(root)
