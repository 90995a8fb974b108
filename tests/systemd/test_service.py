"""The service under the real systemd: what its unit promises, shown on a booted machine."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.systemd.machine import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.needs("systemd-nspawn")]

UNIT = "gpuagent.service"
DROP_INS = "/etc/systemd/system/gpuagent.service.d"
PROGRAM = "/opt/gpuagent/current/bin/gpuagent"
CONFIGURATION = "/etc/gpuagent/gpuagent.yaml"
STUCK = """
gpus: [{model: h100, count: 2}]
faults: [{kind: hang}]
"""


def configure(machine: Machine, text: str) -> None:
    """Written as an editor does it: the file's owner and mode stay."""
    machine.run("tee", CONFIGURATION, text=text)


@contextmanager
def adjusted(
    machine: Machine, unit: str = "", *, arguments: str = "", config: str = "", scenario: str = ""
) -> Iterator[None]:
    """The service restarted with lines for its unit, arguments of `run`, a configuration and a scenario."""
    before = machine.run("cat", CONFIGURATION)
    lines = f"[Service]\n{unit}\n"
    if arguments or scenario:
        if scenario:
            machine.write("/etc/gpuagent/scenario.yaml", scenario)
            arguments = f"--simulate /etc/gpuagent/scenario.yaml {arguments}"
        lines += f"ExecStart=\nExecStart={PROGRAM} run {arguments}\n"
    machine.write(f"{DROP_INS}/test.conf", lines)
    configure(machine, config)
    try:
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "stop", UNIT)
        machine.run("find", "/var/lib/gpuagent", "-mindepth", "1", "-delete")  # what other tests have left
        machine.run("systemctl", "start", UNIT)
        yield
    finally:
        configure(machine, before + "\n")
        machine.run("rm", "-r", DROP_INS)
        machine.run("systemctl", "daemon-reload")
        machine.try_run("systemctl", "reset-failed", UNIT)
        machine.run("systemctl", "restart", UNIT)


def journal(machine: Machine, *matches: str) -> list[dict[str, Any]]:
    """Entries of the service that match."""
    machine.run("journalctl", "--sync")
    said = machine.run("journalctl", "--unit", UNIT, "--output", "json", "--no-pager", *matches)
    return [json.loads(line) for line in said.splitlines()]


def test_ready_without_a_driver(machine: Machine) -> None:
    """READY=1 comes after the first attempt to collect, which fails here, within 10 s; the status says why."""
    with adjusted(machine, "TimeoutStartSec=10"):
        assert machine.show(UNIT, "ActiveState") == "active"
        assert "libnvidia-ml.so.1" in machine.until("libnvidia", "systemctl", "show", "-P", "StatusText", UNIT)


def test_ready_with_a_driver_that_hangs(machine: Machine) -> None:
    """Likewise while every call into NVML hangs; and a stop takes less than 5 s then, without being killed."""
    with adjusted(machine, "TimeoutStartSec=10\nTimeoutStopSec=5", scenario=STUCK):
        assert machine.show(UNIT, "ActiveState") == "active"
        machine.run("systemctl", "stop", UNIT)
        assert (machine.show(UNIT, "Result"), machine.show(UNIT, "ActiveState")) == ("success", "inactive")


def test_the_status_line(machine: Machine) -> None:
    """`systemctl status` tells the GPUs in a line."""
    with adjusted(machine, arguments="--simulate healthy"):
        machine.until("2 GPUs: 2 ok", "systemctl", "show", "-P", "StatusText", UNIT)


def test_a_stuck_driver_is_no_reason_for_the_watchdog(machine: Machine) -> None:
    """The loop feeds the watchdog: no restart helps against a hang in the driver, of which the agent tells instead."""
    with adjusted(machine, "WatchdogSec=2", scenario=STUCK):
        first = int(machine.show(UNIT, "WatchdogTimestampMonotonic"))
        while int(machine.show(UNIT, "WatchdogTimestampMonotonic")) < first + 6_000_000:
            machine.run("systemctl", "is-active", UNIT)
        assert machine.show(UNIT, "NRestarts") == "0"
        assert "has not answered" in machine.show(UNIT, "StatusText")


def test_a_loop_that_stands_still_is_restarted(machine: Machine) -> None:
    """Without a sign of life within WatchdogSec the agent is started anew."""
    with adjusted(machine, "WatchdogSec=2"):
        before = machine.show(UNIT, "MainPID")
        machine.run("kill", "-STOP", before)
        machine.until("1", "systemctl", "show", "-P", "NRestarts", UNIT)
        machine.until("active", "systemctl", "is-active", UNIT)
        assert machine.show(UNIT, "MainPID") != before


def test_a_crash_is_restarted_and_a_bad_configuration_is_not(machine: Machine) -> None:
    """SIGKILL brings a new process; EX_CONFIG ends it, as the next start would fail the same way."""
    with adjusted(machine):
        machine.run("systemctl", "kill", "--signal", str(int(signal.SIGKILL)), UNIT)
        machine.until("1", "systemctl", "show", "-P", "NRestarts", UNIT)
        configure(machine, "poll_interval: never\n")
        assert machine.try_run("systemctl", "restart", UNIT).returncode == 1
        assert machine.show(UNIT, "ExecMainStatus") == "78"
        assert machine.show(UNIT, "ActiveState") == "failed"
        configure(machine, "")


def test_reload(machine: Machine) -> None:
    """A good file is in force; a bad one fails the reload with its faults in the journal, and the old one stays."""
    with adjusted(machine, arguments="--simulate healthy"):
        before = machine.show(UNIT, "MainPID")
        configure(machine, "log: {level: debug}\n")
        machine.run("systemctl", "reload", UNIT)
        configure(machine, "poll_intervall: 3s\n")
        assert machine.try_run("systemctl", "reload", UNIT).returncode == 1
        assert machine.show(UNIT, "ActiveState") == "active"
        assert machine.show(UNIT, "MainPID") == before
        (fault,) = journal(machine, "PRIORITY=3", "GPUAGENT_LOGGER=gpuagent.service.service", "-n1")
        assert "did you mean poll_interval?" in fault["MESSAGE"]


def test_fields_of_the_journal(machine: Machine) -> None:
    """`journalctl GPUAGENT_XID=13` finds what it says, with the GPU; priorities are syslog's."""
    scenario = "gpus: [{model: h100}]\nfaults: [{kind: xid, gpu: 0, xid: 13, at: 2s}]\n"
    with adjusted(machine, scenario=scenario):
        machine.until("Xid 13", "journalctl", "--no-pager", "--unit", UNIT, "GPUAGENT_XID=13")
        entry = journal(machine, "GPUAGENT_XID=13")[-1]
        assert (entry["GPUAGENT_GPU"], entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"]) == ("0", "4", "gpuagent")
        assert entry["GPUAGENT_GPU_UUID"].startswith("GPU-")
        assert entry["_SYSTEMD_UNIT"] == UNIT


RULES = """
groups:
  - name: test
    rules:
      - {alert: AlwaysOn, expr: vector(1), labels: {severity: warning}, annotations: {summary: it is on}}
"""


def firing(machine: Machine) -> dict[str, float]:
    """When each alert that fires began, by its name."""
    document = json.loads(machine.run("gpuagent", "alerts", "--json"))
    return {one["name"]: one["starts_at_seconds"] for one in document["alerts"] if one["state"] == "firing"}


def test_an_alert_goes_on_over_a_restart(machine: Machine) -> None:
    """What fires is kept, with the time at which it began, also when the agent is killed; the journal tells it once."""
    machine.write("/etc/gpuagent/test.rules.yaml", RULES)
    config = "rule_files: [/etc/gpuagent/test.rules.yaml]\n"
    with adjusted(machine, arguments="--simulate healthy", config=config):
        machine.until("AlwaysOn", "gpuagent", "alerts")
        machine.until("AlwaysOn fires: it is on", "journalctl", "--unit", UNIT, "GPUAGENT_ALERT_STATUS=firing")
        before = firing(machine)["AlwaysOn"]
        machine.run("systemctl", "restart", UNIT)
        machine.until("AlwaysOn", "gpuagent", "alerts")
        assert firing(machine)["AlwaysOn"] == before
        machine.run("systemctl", "kill", "--signal", "KILL", UNIT)
        machine.until("1", "systemctl", "show", "-P", "NRestarts", UNIT)
        machine.until("AlwaysOn", "gpuagent", "alerts")
        assert firing(machine)["AlwaysOn"] == before
        assert len(journal(machine, "GPUAGENT_ALERT=AlwaysOn")) == 1
