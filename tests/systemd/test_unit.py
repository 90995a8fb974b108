"""The systemd unit: accepted by systemd's own checks, hardened, and explained line by line."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from gpuagent.driver.memory_limits.protocol import SOCKET as LIMIT_SOCKET
from gpuagent.procfs.reclaim_helper import SOCKET

FOLDER = Path(__file__).parents[2] / "systemd"
UNIT = FOLDER / "gpuagent.service"
PROGRAM = "/opt/gpuagent/current/bin/gpuagent"

HARMFUL = ("PrivateDevices", "PrivateUsers", "ProtectProc", "PrivateNetwork", "DynamicUser")
"""Each would take from the agent what it is there to see."""


def lines() -> list[str]:
    """Of the unit, without empty ones."""
    return [line for line in UNIT.read_text(encoding="utf-8").splitlines() if line]


def directives() -> dict[str, list[str]]:
    """Values by key."""
    found: dict[str, list[str]] = {}
    for line in lines():
        if not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a program that exists: systemd looks for it."""
    program = tmp_path / "gpuagent"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    assert PROGRAM in text
    unit.write_text(text.replace(PROGRAM, str(program)), encoding="utf-8")
    return unit


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    """Run systemd-analyze."""
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.needs("systemd-analyze")
def test_systemd_accepts_every_line(installed: Path) -> None:
    """A misspelt key is ignored by systemd at run time: its own check is the one to find it."""
    # Without --recursive-errors an unknown key is printed and the status is 0.
    checked = analyze("verify", "--man=no", "--recursive-errors=yes", str(installed))

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_hardened(installed: Path) -> None:
    """No change of the unit loses what protects the node: an exposure of at most 2.0 of 10."""
    checked = analyze("security", "--offline=true", "--threshold=20", str(installed))

    assert checked.returncode == 0, checked.stdout


def test_every_directive_says_why() -> None:
    """Whoever reads the unit at night learns the reason beside each line."""
    unexplained = [
        line
        for before, line in zip(lines(), lines()[1:], strict=False)
        if not line.startswith(("#", "[")) and not before.startswith("# ")
    ]

    assert unexplained == []


def test_the_agent_is_left_its_eyes() -> None:
    """Hardening that hides devices, processes or users does not get in, nor a filter that forgets late devices."""
    assert directives().keys() & {*HARMFUL, "DeviceAllow", "DevicePolicy"} == set()


def test_start_stop_and_failure_are_as_the_agent_has_them() -> None:
    """The unit waits for READY=1 and the watchdog, and does not start again what a bad configuration has ended."""
    found = directives()

    assert found["Type"] == ["notify"]
    assert found["RestartPreventExitStatus"] == ["78"]
    assert found["Restart"] == ["on-failure"]
    assert int(found["TimeoutStopSec"][0]) > 5
    assert int(found["WatchdogSec"][0]) > 0
    assert (found["RuntimeDirectory"], found["RuntimeDirectoryMode"]) == (["gpuagent"], ["0750"])


def test_the_user_of_the_unit_is_made_by_sysusers() -> None:
    """The unit does not start (217/USER) unless its user is the one that the package makes."""
    made = [line.split()[1] for line in (FOLDER / "gpuagent.sysusers").read_text().splitlines() if line[0] == "u"]

    assert made == directives()["User"] == directives()["Group"]


DROP_INS = sorted(FOLDER.glob("gpuagent-*.conf"))


def test_there_are_drop_ins() -> None:
    """For docker, the kernel's log, signals, Slurm, and machines whose GPU shares their memory."""
    names = [path.stem.removeprefix("gpuagent-") for path in DROP_INS]
    assert names == ["docker", "kernel-log", "kill", "slurm", "unified-memory"]


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_systemd_accepts_each_drop_in(installed: Path, drop_in: Path) -> None:
    """With each of them the unit is still accepted, and hardly less hardened: a capability costs up to 0.3 of 10."""
    folder = installed.with_name("gpuagent.service.d")
    folder.mkdir()
    (folder / drop_in.name).write_text(drop_in.read_text(encoding="utf-8"), encoding="utf-8")
    checked = analyze("verify", "--man=no", "--recursive-errors=yes", str(installed))
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    threshold = {"gpuagent-kill": 21, "gpuagent-kernel-log": 20}.get(drop_in.stem, 17)
    checked = analyze("security", "--offline=true", f"--threshold={threshold}", str(installed))
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_every_line_of_a_drop_in_says_why(drop_in: Path) -> None:
    """As in the unit; and the first line says where it goes."""
    found = [line for line in drop_in.read_text(encoding="utf-8").splitlines() if line]
    assert found[0].startswith("# /etc/systemd/system/gpuagent.service.d/")
    for before, line in pairwise(found):
        assert line.startswith(("#", "[")) or before.startswith("# "), line


HELPER = [FOLDER / f"gpuagent-reclaim.{kind}" for kind in ("service", "socket")]


@pytest.mark.needs("systemd-analyze")
def test_the_helper_is_root_and_nothing_else(tmp_path: Path) -> None:
    """What drops page cache is accepted by systemd, and less exposed than the agent although it is root: 1.5 of 10."""
    for unit in HELPER:
        text = unit.read_text(encoding="utf-8").replace("/opt/gpuagent/current/bin/python", sys.executable)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    units = [str(tmp_path / unit.name) for unit in HELPER]
    checked = analyze("verify", "--man=no", "--recursive-errors=yes", *units)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    checked = analyze("security", "--offline=true", "--threshold=15", units[0])
    assert checked.returncode == 0, checked.stdout


LIMITS = [FOLDER / f"gpuagent-limit.{kind}" for kind in ("service", "socket")]


@pytest.mark.needs("systemd-analyze")
def test_what_sets_limits_is_root_and_little_else(tmp_path: Path) -> None:
    """What sets memory limits is accepted by systemd, and has one capability: 3.0 of 10."""
    for unit in LIMITS:
        text = unit.read_text(encoding="utf-8").replace("/opt/gpuagent/current/bin/python", sys.executable)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    units = [str(tmp_path / unit.name) for unit in LIMITS]
    checked = analyze("verify", "--man=no", "--recursive-errors=yes", *units)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    checked = analyze("security", "--offline=true", "--threshold=30", units[0])
    assert checked.returncode == 0, checked.stdout


def test_the_agent_alone_asks_for_limits() -> None:
    """The socket is the one that the agent asks, and nobody's but its user's."""
    found = LIMITS[1].read_text(encoding="utf-8").splitlines()
    assert {f"ListenStream={LIMIT_SOCKET}", "SocketUser=gpuagent", "SocketMode=0600"} <= set(found)


@pytest.mark.parametrize("unit", LIMITS, ids=lambda path: path.suffix)
def test_every_line_of_what_sets_limits_says_why(unit: Path) -> None:
    """As in the agent's."""
    found = [line for line in unit.read_text(encoding="utf-8").splitlines() if line]
    assert found[0].startswith(f"# /etc/systemd/system/{unit.name}") or unit.suffix == ".service"
    for before, line in pairwise(found):
        assert line.startswith(("#", "[")) or before.startswith("# "), line


def test_what_sets_limits_takes_its_socket_from_systemd() -> None:
    """Started by hand it says who starts it, and sets nothing."""
    command = [sys.executable, "-I", "-m", "gpuagent.driver.memory_limits.helper"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, "gpuagent-limit.socket starts this\n")


@pytest.mark.parametrize("unit", HELPER, ids=lambda path: path.suffix)
def test_every_line_of_the_helper_says_why(unit: Path) -> None:
    """As in the agent's; and the socket is the one that the agent asks."""
    found = [line for line in unit.read_text(encoding="utf-8").splitlines() if line]
    assert found[0].startswith(f"# /etc/systemd/system/{unit.name}")
    for before, line in pairwise(found):
        assert line.startswith(("#", "[")) or before.startswith("# "), line
    listens = [line for line in found if line.startswith("ListenStream=")]
    assert listens in ([], [f"ListenStream={SOCKET}"])


def test_the_helper_takes_its_socket_from_systemd() -> None:
    """Started by hand it says who starts it, and writes nothing."""
    command = [sys.executable, "-I", "-m", "gpuagent.procfs.reclaim_helper"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, "gpuagent-reclaim.socket starts this\n")
