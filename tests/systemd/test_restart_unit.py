"""`restart_unit` against the real systemd, and the polkit rule that permits it: where systemd has booted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent.acting.units import Systemctl
from tests.fakes.nobody import run_as_nobody

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RULES = Path(__file__).parents[2] / "systemd" / "gpuagent.rules"
INSTALLED = Path("/etc/polkit-1/rules.d/50-gpuagent-test.rules")


@pytest.fixture(autouse=True)
def _booted() -> None:
    """What cannot be tried here says why."""
    if not Path("/run/systemd/system").is_dir():
        pytest.skip("systemd has not booted this machine: there is no /run/systemd/system")
    if os.geteuid() != 0:
        pytest.skip("needs root to start units")


def run(*command: str) -> str:
    """Its output; it must work."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def show(unit: str, key: str) -> str:
    """A property of a unit."""
    return run("systemctl", "show", "--value", "--property", key, "--", unit)


@contextmanager
def service(*properties: str) -> Iterator[str]:
    """A service that sleeps; stopped in the end."""
    unit = f"gpuagent-test-{uuid.uuid4().hex[:8]}.service"
    run("systemd-run", "--unit", unit, *(f"--property={each}" for each in properties), "sleep", "1000")
    try:
        yield unit
    finally:
        subprocess.run(["systemctl", "stop", unit], capture_output=True, check=False)
        subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)


def refusal(unit: str) -> str:
    """Why it must not be restarted now."""
    return asyncio.run(Systemctl().refusal(unit))


def test_it_is_restarted() -> None:
    """Another main process, and the unit is up."""
    with service() as unit:
        before = show(unit, "MainPID")
        assert refusal(unit) == ""
        assert asyncio.run(Systemctl().restart(unit, 30.0)).ok
        assert (show(unit, "ActiveState"), show(unit, "MainPID") != before) == ("active", True)


def test_a_unit_that_is_not_there() -> None:
    """Said, and nothing is started."""
    assert "no unit" in refusal("gpuagent-test-none.service")


def test_a_unit_near_its_start_limit_is_left_alone() -> None:
    """Restarts by systemd count: where one more could leave the unit failed, it is not restarted."""
    with service("Restart=always", "RestartSec=50ms", "StartLimitIntervalSec=60", "StartLimitBurst=3") as unit:
        assert refusal(unit) == ""
        pid = show(unit, "MainPID")
        run("kill", "-KILL", pid)
        while show(unit, "NRestarts") != "1" or show(unit, "MainPID") in {"0", pid}:
            pass
        assert "start limit" in refusal(unit)
        assert show(unit, "ActiveState") == "active"


def test_own_restarts_use_up_the_start_limit() -> None:
    """Systemd does not count restarts by hand in NRestarts, and yet fails the unit for them: the agent stops before."""
    with service("StartLimitIntervalSec=60", "StartLimitBurst=3") as unit:
        systemctl = Systemctl()
        while not (why := asyncio.run(systemctl.refusal(unit))):
            assert asyncio.run(systemctl.restart(unit, 30.0)).ok
        assert "start limit" in why
        assert (show(unit, "ActiveState"), show(unit, "NRestarts")) == ("active", "0")
        run("systemctl", "restart", unit)
        with pytest.raises(subprocess.CalledProcessError):
            run("systemctl", "restart", unit)  # what would have come of it
        assert show(unit, "ActiveState") == "failed"


TRY = """
import asyncio, sys
from gpuagent.acting.units import Systemctl
done = asyncio.run(Systemctl().restart(sys.argv[1], 20.0))
print(done.ok, done.errno)
"""


def as_nobody(unit: str) -> str:
    """What a restart comes to for a user without any right: the agent's, with the rule's name for it."""
    result = run_as_nobody(TRY, unit)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@contextmanager
def rule(unit: str) -> Iterator[None]:
    """The template as an administrator fills it in."""
    text = RULES.read_text().replace("whisper.service", unit).replace('"gpuagent"', '"nobody"')
    INSTALLED.write_text(text)
    INSTALLED.chmod(0o644)
    try:
        run("systemctl", "restart", "polkit.service")
        yield
    finally:
        INSTALLED.unlink()
        run("systemctl", "restart", "polkit.service")


def test_the_polkit_rule_permits_exactly_its_units() -> None:
    """Without it a user's restart is denied, and told as a missing right; with it the named unit restarts, no other."""
    if "not-found" in show("polkit.service", "LoadState"):
        pytest.skip("polkit is not installed here")
    with service() as named, service() as other:
        assert as_nobody(named) == "False 1"
        with rule(named):
            assert as_nobody(named) == "True 0"
            assert as_nobody(other) == "False 1"
