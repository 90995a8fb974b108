"""What the drop-ins give, tried in the service's own sandbox: on a machine that systemd has booted."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gpuagent_alerts.programs.drop_privileges
from tests.alerts.remedies.processes import PLAIN, running

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(120)]

FOLDER = Path(__file__).parents[2] / "systemd"
UNITS = Path("/run/systemd/system")
PYTHON = Path("/usr/bin/python3")
CONFINE = Path("/run/gpuagent-test-confine.py")
SENDS = "import os, signal, sys; signal.pidfd_send_signal(os.pidfd_open(int(sys.argv[1])), 0)"
NAME = f"gpuagent-test-{os.getpid()}.service"


def skip_unless_booted() -> None:
    """What cannot be tried here says why."""
    if not UNITS.is_dir():
        pytest.skip("systemd has not booted this machine: there is no /run/systemd/system")
    if os.geteuid() != 0:
        pytest.skip("needs root to install a unit")
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON} for the sandbox, which hides home directories")


@pytest.fixture(autouse=True)
def _booted() -> None:
    skip_unless_booted()


@contextmanager
def installed(start: str, *drop_ins: str) -> Iterator[None]:
    """The shipped unit with another program, which is run once, as a user that is nobody."""
    text = (FOLDER / "gpuagent.service").read_text()
    for key, value in (("ExecStart", start), ("Type", "oneshot"), ("User", "nobody"), ("Group", "nogroup")):
        line = f"{key}={value}".replace("\\", r"\\")
        text = re.sub(rf"(?m)^{key}=.*$", line, text)
    text = re.sub(r"(?m)^(Watchdog|Restart|NotifyAccess|LoadCredential|.*Directory|.*DirectoryMode).*=.*$", "", text)
    unit, folder = UNITS / NAME, UNITS / f"{NAME}.d"
    folder.mkdir()
    try:
        unit.write_text(text)
        for drop_in in drop_ins:
            (folder / drop_in).write_text((FOLDER / drop_in).read_text())
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        yield
    finally:
        unit.unlink()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        subprocess.run(["systemctl", "reset-failed", NAME], capture_output=True, check=False)
        subprocess.run(["systemctl", "daemon-reload"], check=True)


def may_signal(program: str, *drop_ins: str) -> bool:
    """Whether the sandboxed program can signal a process of root's."""
    with running(PLAIN) as process, installed(f"{program} {process.pid}", *drop_ins):
        done = subprocess.run(["systemctl", "start", NAME], capture_output=True, text=True, check=False, timeout=60)
        said = subprocess.run(
            ["systemctl", "show", "-p", "ExecMainStatus", NAME], capture_output=True, text=True, check=False
        )
        assert done.returncode in {0, 1}
        assert said.stdout.strip() in {"ExecMainStatus=0", "ExecMainStatus=1"}, said.stdout
        return done.returncode == 0


def test_without_it_the_agent_signals_nobody_else() -> None:
    """The unit as it is shipped has no capability."""
    assert not may_signal(f"{PYTHON} -c '{SENDS}'")


def test_the_right_to_signal() -> None:
    """With kill.conf a pidfd of another user's process takes signals, inside the unit's filter of system calls."""
    assert may_signal(f"{PYTHON} -c '{SENDS}'", "gpuagent-kill.conf")


def test_programs_of_exec_steps_do_not_have_it() -> None:
    """What an exec step runs goes through the same confinement as a receiver's program: the right is gone there."""
    CONFINE.write_text(Path(gpuagent_alerts.programs.drop_privileges.__file__).read_text())
    CONFINE.chmod(0o644)
    try:
        program = f"{PYTHON} -I -S {CONFINE} {PYTHON} -c '{SENDS}'"
        assert not may_signal(program, "gpuagent-kill.conf")
    finally:
        CONFINE.unlink()
