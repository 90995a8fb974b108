"""Who may do what on a machine with the service: sockets, secrets, devices, signals. On a booted machine."""

from __future__ import annotations

import pytest

from tests.systemd.machine import Machine
from tests.systemd.test_service import CONFIGURATION, DROP_INS, UNIT, adjusted

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(300), pytest.mark.needs("systemd-nspawn")]

SCENARIO = """
gpus:
  - model: l40s
    processes:
      - {name: other, bind: other, memory: 2GiB}
"""
CONFIG = "remedies: {dry_run: false, allow: {users: [svc-ml], min_age: 0s}}\n"


def access(machine: Machine, path: str) -> str:
    """Mode, owner and group."""
    return machine.run("stat", "--format", "%a %U %G", path)


def test_directories_and_sockets(machine: Machine) -> None:
    """The agent's own are for itself or its group; the one for apps is for all, and is not for commands."""
    assert access(machine, "/etc/gpuagent") == "750 root gpuagent"
    assert access(machine, CONFIGURATION) == "640 root gpuagent"
    assert access(machine, "/etc/gpuagent/secrets") == "700 root root"
    assert access(machine, "/var/lib/gpuagent") == "700 gpuagent gpuagent"
    assert access(machine, "/run/gpuagent") == "750 gpuagent gpuagent"
    assert access(machine, "/run/gpuagent/control.sock") == "660 gpuagent gpuagent"
    assert access(machine, "/run/gpuagent-client") == "755 gpuagent gpuagent"
    assert access(machine, "/run/gpuagent-client/client.sock") == "666 gpuagent gpuagent"


def test_members_command_and_strangers_do_not(machine: Machine) -> None:
    """The group gpuagent may use the control socket; another user is refused, and reads over TCP."""
    machine.run("gpuagent", "config", "reload", user="oper")
    refused = machine.try_run("gpuagent", "config", "reload", user="stranger")
    assert refused.returncode == 1
    assert "Cannot reach the agent" in refused.stderr
    machine.run("gpuagent", "status", "--url", "http://127.0.0.1:9837", user="stranger")


def test_the_directory_of_apps_stays_over_restarts(machine: Machine) -> None:
    """A container that has mounted it goes on seeing the agent's socket: the same folder, a new socket in it."""
    folder = machine.run("stat", "--format", "%i", "/run/gpuagent-client")
    socket = machine.run("stat", "--format", "%i %W", "/run/gpuagent-client/client.sock")
    machine.run("systemctl", "restart", UNIT)
    assert machine.run("stat", "--format", "%i", "/run/gpuagent-client") == folder
    assert machine.run("stat", "--format", "%i %W", "/run/gpuagent-client/client.sock") != socket
    machine.run("systemctl", "stop", UNIT)
    assert machine.run("stat", "--format", "%i", "/run/gpuagent-client") == folder
    machine.run("systemctl", "start", UNIT)


def test_secrets_are_credentials(machine: Machine) -> None:
    """A file that only root can read is named as secrets/NAME, and reaches the agent, who cannot read it itself."""
    config = "receivers: [{name: hook, webhook: {url_file: secrets/hook}}]\n"
    machine.write("/etc/gpuagent/secrets/hook", "http://127.0.0.1:9/\n", mode="0600")
    with adjusted(machine, config=config):
        assert access(machine, "/run/credentials/gpuagent.service/secrets_hook").startswith("400 gpuagent")
        told = machine.try_run("gpuagent", "receivers", "test", "hook")
        assert "refused" in told.stdout + told.stderr
    assert machine.try_run("cat", "/etc/gpuagent/secrets/hook", user="gpuagent").returncode == 1


def test_a_missing_folder_of_secrets_does_not_keep_it_from_starting(machine: Machine) -> None:
    """Systemd fails a unit whose credential is not there: a monitor must not be lost for that."""
    machine.run("mv", "/etc/gpuagent/secrets", "/etc/gpuagent/elsewhere")
    try:
        machine.run("systemctl", "restart", UNIT)
    finally:
        machine.run("mv", "/etc/gpuagent/elsewhere", "/etc/gpuagent/secrets")


OPENS = """
import errno, os, time
while not os.path.exists("/dev/nvidiactl"):
    time.sleep(0.05)
while True:
    try:
        os.open("/dev/nvidiactl", os.O_RDWR)
    except OSError as error:
        print("opened:", errno.errorcode[error.errno], flush=True)
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [("", "ENXIO"), ("DeviceAllow=char-nvidia rw", "EPERM")],
    ids=["the unit as it is", "with the usual filter"],
)
def test_devices_that_appear_after_the_start(machine: Machine, line: str, found: str) -> None:
    """GPU-05: a driver that is loaded after the agent is reached; a filter by name would have shut it out for good.

    The node has the driver's number and no driver behind it: ENXIO is what an open comes to where it is allowed.
    """
    machine.write("/opt/opens.py", OPENS)
    start = "Type=exec\nExecStart=\nExecStart=/usr/bin/python3 /opt/opens.py"
    machine.write(f"{DROP_INS}/test.conf", f"[Service]\n{start}\nWatchdogSec=0\n{line}\n")
    try:
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", UNIT)
        machine.run("mknod", "-m", "666", "/dev/nvidiactl", "c", "195", "255")
        machine.until(f"opened: {found}", "journalctl", "--no-pager", "--unit", UNIT)
    finally:
        machine.run("rm", "-f", "/dev/nvidiactl")
        machine.run("rm", "-r", DROP_INS)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "restart", UNIT)


def test_somebody_who_is_not_allowed_is_left_alone(machine: Machine) -> None:
    """KILL-01: with the right to signal, the allow list is what stands between the agent and another's process."""
    other = machine.run("sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!", user="alice")
    machine.run("install", "-D", "/usr/local/share/doc/gpuagent/examples/kill.conf", f"{DROP_INS}/kill.conf")
    with adjusted(machine, arguments=f"--bind other={other}", config=CONFIG, scenario=SCENARIO):
        machine.until("sleep", "gpuagent", "ps")
        refused = machine.try_run("gpuagent", "kill", other, "--yes", user="oper")
        assert refused.returncode == 1
        assert "refused" in refused.stdout
        machine.run("kill", "-0", other)
    machine.run("kill", other)
