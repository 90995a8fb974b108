"""`make install` on a booted machine: twice, with a version that fails, back, and away again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent import __version__
from tests.systemd.machine import Machine
from tests.systemd.test_service import CONFIGURATION, UNIT, configure

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(400), pytest.mark.needs("systemd-nspawn")]

HOME = "/opt/gpuagent"
INSTALL = ("make", "-C", "/src", "install", "WHEELHOUSE=/wheels")


def version(machine: Machine, link: str = "current") -> str:
    """The environment that a link leads to."""
    return machine.run("readlink", "-f", f"{HOME}/{link}")


def found(machine: Machine) -> set[str]:
    """Everything named after the service."""
    places = ("/etc", "/opt", "/run", "/usr/local", "/var/lib")
    return set(machine.run("find", *places, "-xdev", "-name", "*gpuagent*").split())


@pytest.fixture(scope="module")
def untouched(bare_machine: Machine) -> set[str]:
    """What was there before."""
    return found(bare_machine)


@pytest.fixture(scope="module")
def installed(bare_machine: Machine, untouched: set[str]) -> Machine:
    """Installed once, under a umask that would shut the service's user out."""
    bare_machine.run("sh", "-c", f"umask 077; exec {' '.join(INSTALL)}")
    return bare_machine


def test_it_serves(installed: Machine) -> None:
    """After `make install` it runs, starts at boot, is on everybody's PATH, and completes and explains itself."""
    assert installed.run("systemctl", "is-active", UNIT) == "active"
    assert installed.run("systemctl", "is-enabled", UNIT) == "enabled"
    installed.run("gpuagent", "--version", user="daemon")
    assert "GPUAGENT(1)" in installed.run("man", "gpuagent")
    assert "_gpuagent_completion" in installed.run("cat", "/usr/local/share/bash-completion/completions/gpuagent")
    installed.run("systemd-analyze", "verify", "--recursive-errors=yes", UNIT)


def test_it_is_hardened(installed: Machine) -> None:
    """At most 2.0 of 10, as systemd itself judges the loaded unit; 2.1 with the drop-in for signals."""
    installed.run("systemd-analyze", "security", "--threshold=20", UNIT)
    folder = "/etc/systemd/system/gpuagent.service.d"
    installed.run("install", "-D", "/usr/local/share/doc/gpuagent/examples/kill.conf", f"{folder}/kill.conf")
    installed.run("systemctl", "daemon-reload")
    installed.run("systemd-analyze", "security", "--threshold=21", UNIT)
    installed.run("rm", "-r", folder)
    installed.run("systemctl", "daemon-reload")


def test_an_upgrade_keeps_configuration_and_state_and_the_way_back(installed: Machine) -> None:
    """The file that an administrator has changed stays; the version before is gone back to, and forth again."""
    first = version(installed)
    configure(installed, "poll_interval: 3s\n")
    state = installed.run("stat", "--format", "%i", "/var/lib/gpuagent/state.db")
    installed.run(*INSTALL)
    second = version(installed)
    assert (second != first, version(installed, "previous")) == (True, first)
    assert installed.run("cat", CONFIGURATION) == "poll_interval: 3s"
    assert "poll_interval: 1s" in installed.run("cat", f"{CONFIGURATION}.example")
    assert installed.run("stat", "--format", "%i", "/var/lib/gpuagent/state.db") == state
    installed.run("gpuagent", "service", "rollback")
    assert (version(installed), version(installed, "previous")) == (first, second)
    assert first in installed.run("cat", f"/proc/{installed.show(UNIT, 'MainPID')}/cmdline")
    installed.run("gpuagent", "service", "rollback")
    assert version(installed) == second


def test_a_version_that_does_not_start_is_taken_back(installed: Machine) -> None:
    """The old one serves again, the way back is as it was, and the failure is told."""
    before, older = version(installed), version(installed, "previous")
    broken = f"{HOME}/versions/broken"
    installed.run("cp", "-a", before, broken)
    installed.run("sh", "-c", f"grep -rlI '{before}' {broken}/bin | xargs sed -i 's#{before}#{broken}#g'")
    # Its commands work, `config check` and `service install` among them; the agent does not.
    assembly = installed.run("find", broken, "-name", "assemble.py", "-path", "*/gpuagent/service/assemble.py")
    installed.run("sh", "-c", f"echo 'raise SystemExit(\"broken on purpose\")' >> {assembly}")
    failed = installed.try_run(f"{broken}/bin/gpuagent", "service", "install")
    assert failed.returncode == 1
    assert "the old one serves again" in failed.stderr
    assert "broken on purpose" in failed.stderr
    assert (version(installed), version(installed, "previous")) == (before, older)
    assert installed.run("systemctl", "is-active", UNIT) == "active"
    installed.run("rm", "-r", broken)


def test_a_configuration_that_the_new_version_refuses(installed: Machine) -> None:
    """Nothing is changed, the running one is not even restarted, and no half-made environment is left."""
    before, pid = version(installed), installed.show(UNIT, "MainPID")
    versions = installed.run("ls", f"{HOME}/versions")
    configure(installed, "poll_intervall: 3s\n")
    failed = installed.try_run(*INSTALL)
    assert failed.returncode != 0
    assert "did you mean poll_interval?" in failed.stderr
    assert (version(installed), installed.show(UNIT, "MainPID")) == (before, pid)
    assert installed.run("ls", f"{HOME}/versions") == versions
    configure(installed, "poll_interval: 3s\n")


def test_a_copy_of_the_unit_is_pointed_out(installed: Machine) -> None:
    """One in /etc goes before ours, as systemd has it: whoever installs is told which one is used."""
    copy = f"/etc/systemd/system/{UNIT}"
    installed.run("cp", f"/usr/local/lib/systemd/system/{UNIT}", copy)
    assert f"systemd uses {copy}" in installed.run("gpuagent", "service", "install")
    installed.run("rm", copy)
    assert "note:" not in installed.run("gpuagent", "service", "install")


def test_a_service_that_was_stopped_stays_stopped(installed: Machine) -> None:
    """Whoever has switched it off does not get it back by an upgrade."""
    installed.run("systemctl", "disable", "--now", UNIT)
    assert "left so" in installed.run("gpuagent", "service", "install")
    assert installed.try_run("systemctl", "is-active", UNIT).stdout.strip() == "inactive"
    assert installed.try_run("systemctl", "is-enabled", UNIT).stdout.strip() == "disabled"
    installed.run("systemctl", "enable", "--now", UNIT)


def test_the_backup_that_the_documentation_tells(installed: Machine) -> None:
    """The command of docs/operations.md copies the database of an agent that runs; the way back works, too."""
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    section = page.split("### Backup")[1].split("\n## ")[0]
    commands = [line.strip().removeprefix("sudo ") for line in section.splitlines() if line.startswith("    sudo ")]
    assert len(commands) == 5
    for command in commands:
        installed.run("sh", "-c", command)
    assert installed.run("systemctl", "is-active", UNIT) == "active"
    assert "memory only" not in installed.run("gpuagent", "alerts")


def test_others_are_told_that_it_takes_root(installed: Machine) -> None:
    """Before anything is done, with the command that works."""
    for target in ("install", "uninstall"):
        refused = installed.try_run("make", "-C", "/src", target, user="daemon")
        assert refused.returncode != 0
        assert f"sudo make {target}" in refused.stderr
    refused = installed.try_run("gpuagent", "service", "rollback", user="daemon")
    assert "sudo gpuagent service rollback" in refused.stderr


def test_taken_away(installed: Machine, untouched: set[str]) -> None:
    """Configuration and state stay, and with PURGE=1 they go, too, and the user: nothing is left."""
    installed.run("make", "-C", "/src", "uninstall")
    assert found(installed) - untouched == {
        "/etc/gpuagent", CONFIGURATION, f"{CONFIGURATION}.example", "/var/lib/gpuagent",
    }  # fmt: skip
    assert installed.show(UNIT, "LoadState") == "not-found"
    installed.run("make", "-C", "/src", "uninstall", "PURGE=1")
    assert found(installed) == untouched
    assert installed.try_run("id", "gpuagent").returncode == 1


def test_from_the_wheel_alone(bare_machine: Machine) -> None:
    """A fleet has no tree: the wheel brings the unit and all else, by the line of docs/install.md."""
    page = (Path(__file__).parents[2] / "docs/install.md").read_text()
    block = [
        line.strip() for line in page.splitlines() if "pip install gpuagent==" in line or line.startswith("    v=")
    ]
    assert len(block) == 2
    line = "; ".join(block).replace("pip install", "pip install --no-index --find-links /wheels")
    bare_machine.run("sh", "-c", line)
    assert bare_machine.run("systemctl", "is-active", UNIT) == "active"
    assert version(bare_machine) == f"{HOME}/versions/{__version__}"
    bare_machine.run("gpuagent", "service", "uninstall", "--purge")
    assert not bare_machine.run("sh", "-c", f"ls -d {HOME} 2>/dev/null || true")


def test_as_a_package(bare_machine: Machine) -> None:
    """Staged by somebody without any right, unpacked at /, it serves; nothing in it knows where it was made."""
    folder = "/var/tmp/package"
    stage = f"make -C /src install DESTDIR={folder}/root PREFIX=/usr WHEELHOUSE=/wheels"
    bare_machine.run("install", "-d", "-o", "daemon", folder)
    bare_machine.run("env", f"HOME={folder}", "sh", "-c", stage, user="daemon")
    assert not bare_machine.run("sh", "-c", f"grep -rl {folder} {folder}/root || true")
    bare_machine.run("cp", "-a", "--no-preserve=ownership", f"{folder}/root/.", "/")
    bare_machine.run("rm", "-r", folder)
    for command in ("systemd-sysusers", "systemd-tmpfiles --create", f"systemctl enable --now {UNIT}"):
        bare_machine.try_run(*command.split())  # of all packages here: others' faults are not ours
    assert bare_machine.run("systemctl", "is-active", UNIT) == "active"
    assert "local" not in bare_machine.show(UNIT, "FragmentPath")
    bare_machine.run("gpuagent", "--version", user="daemon")
