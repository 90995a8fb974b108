"""The .deb and .rpm on a booted machine: installed, upgraded, refused a configuration, gone back, and away again.

The machine has no network. It is Debian's: the .rpm is installed by Debian's rpm there, which knows nothing of what
dpkg has installed (--nodeps); its scripts do what they do elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.systemd.conftest import bare
from tests.systemd.machine import Machine
from tests.systemd.test_service import CONFIGURATION, DROP_INS, UNIT, configure

ROOT = Path(__file__).parents[2]
HOME = "/opt/gpuagent"
OLD, NEW = "0.2.0-0+py3", "0.2.0-1+py3"
MISTAKE = "did you mean poll_interval?"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive(whole_file=True),
    pytest.mark.timeout(600),
    pytest.mark.needs("systemd-nspawn"),
]


@pytest.fixture(scope="module")
def packages(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this tree, and those of a version before: of an earlier day, and with a lower number."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs a Debian or Ubuntu: the packages are for its Python")
    folder = tmp_path_factory.mktemp("packages")
    for revision, epoch in (("0", "1790000000"), ("1", "1795000000")):
        done = subprocess.run(
            [ROOT / "scripts/packages", folder, wheels], capture_output=True, text=True, check=False,
            env={**os.environ, "REVISION": revision, "SOURCE_DATE_EPOCH": epoch, "PYTHON": "/usr/bin/python3"},
        )  # fmt: skip
        if "No matching distribution" in done.stderr and not os.environ.get("CI"):
            pytest.skip("needs a package index for the tools of a release")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def bare_machine(wheels: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One that has the packages in /packages."""
    with bare(wheels, tmp_path_factory.mktemp("bare"), (f"{packages}:/packages",)) as machine:
        machine.run("rm", "-f", "/usr/sbin/policy-rc.d")  # of images that start no services
        yield machine


def deb(machine: Machine, version: str) -> subprocess.CompletedProcess[str]:
    """Install that one with apt, whether it is newer than what is there or older; answered as by nobody at a screen."""
    options = "-q -y --allow-downgrades -o Dpkg::Options::=--force-confold"
    return machine.try_run("sh", "-c", f"apt-get install {options} /packages/gpuagent_{version}*.deb </dev/null")


def rpm(machine: Machine, how: str, version: str) -> subprocess.CompletedProcess[str]:
    """Install that one with rpm."""
    return machine.try_run("sh", "-c", f"rpm {how} --nodeps /packages/gpuagent-{version}*.rpm")


def serving(machine: Machine) -> str:
    """The environment of the running agent."""
    assert machine.run("systemctl", "is-active", UNIT) == "active"
    command = machine.run("cat", f"/proc/{machine.show(UNIT, 'MainPID')}/cmdline")
    return command.partition("/bin/")[0]


def must(done: subprocess.CompletedProcess[str]) -> str:
    """What it said; it must have worked."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def found(machine: Machine) -> set[str]:
    """Everything named after the service."""
    places = ("/etc", "/opt", "/run", "/usr", "/var/lib")
    return set(machine.run("find", *places, "-xdev", "-name", "*gpuagent*").split())


@pytest.fixture(scope="module")
def untouched(bare_machine: Machine) -> set[str]:
    """What was there before."""
    return found(bare_machine)


@pytest.fixture(scope="module")
def installed(bare_machine: Machine, untouched: set[str]) -> Machine:
    """With the .deb of the version before."""
    must(deb(bare_machine, OLD))
    return bare_machine


def test_it_serves(installed: Machine) -> None:
    """After the installation it runs, starts at boot, is on everybody's PATH, and completes and explains itself."""
    assert serving(installed).startswith(f"{HOME}/versions/")
    assert installed.run("systemctl", "is-enabled", UNIT) == "enabled"
    installed.run("gpuagent", "--version", user="daemon")
    assert "GPUAGENT(1)" in installed.run("man", "gpuagent")
    assert "_gpuagent_completion" in installed.run("cat", "/usr/share/bash-completion/completions/gpuagent")
    assert installed.run("stat", "--format", "%a %U %G", "/etc/gpuagent") == "750 root gpuagent"
    assert installed.run("gpuagent", "config", "check") == f"{CONFIGURATION}: ok"
    assert "poll_interval: 1s" in installed.run("cat", "/usr/share/doc/gpuagent/examples/gpuagent.yaml")


def test_every_file_is_the_packages(installed: Machine) -> None:
    """Dpkg knows each, and each is as it was made; a run of the agent has added none."""
    assert CONFIGURATION in installed.run("dpkg-query", "--show", "--showformat", "${Conffiles}", "gpuagent")
    assert installed.run("dpkg", "--verify", "gpuagent") == ""
    listed = set(installed.run("dpkg-query", "--listfiles", "gpuagent").splitlines())
    assert set(installed.run("find", HOME).splitlines()) <= listed


def test_an_installation_from_a_tree_is_refused(installed: Machine) -> None:
    """`make install`, `make uninstall` and `service rollback` leave what is a package's alone, and name apt."""
    before = serving(installed)
    for command in (
        ("make", "-C", "/src", "install", "WHEELHOUSE=/wheels"), ("make", "-C", "/src", "uninstall", "PURGE=1"),
        ("gpuagent", "service", "rollback"), ("gpuagent", "service", "uninstall"),
    ):  # fmt: skip
        refused = installed.try_run(*command)
        assert refused.returncode != 0, command
        assert "apt remove gpuagent" in refused.stderr
    assert serving(installed) == before
    assert installed.run("dpkg", "--verify", "gpuagent") == ""


def test_an_upgrade_keeps_configuration_and_state(installed: Machine) -> None:
    """The new version serves, with the file that an administrator has changed; the old one's files are gone."""
    first = serving(installed)
    configure(installed, "poll_interval: 3s\n")
    state = installed.run("stat", "--format", "%i", "/var/lib/gpuagent/state.db")
    must(deb(installed, NEW))
    second = serving(installed)
    assert second != first
    assert installed.run("ls", f"{HOME}/versions") == Path(second).name
    assert installed.run("cat", CONFIGURATION) == "poll_interval: 3s"
    assert installed.run("stat", "--format", "%i", "/var/lib/gpuagent/state.db") == state


def test_the_way_back(installed: Machine) -> None:
    """The version before is installed over the newer one, and serves with the same configuration and state."""
    second = serving(installed)
    must(deb(installed, OLD))
    assert serving(installed) != second
    assert installed.run("cat", CONFIGURATION) == "poll_interval: 3s"


def test_a_configuration_that_the_new_version_refuses(installed: Machine) -> None:
    """The old one goes on, with the faults on the screen; started by hand, the unit says the same and stays down."""
    before = installed.show(UNIT, "MainPID")
    configure(installed, "poll_intervall: 3s\n")
    assert MISTAKE in must(deb(installed, NEW))
    assert installed.show(UNIT, "MainPID") == before
    assert installed.try_run("systemctl", "restart", UNIT).returncode != 0
    assert installed.run("systemctl", "show", "--value", "--property", "ExecMainStatus", UNIT) == "78"
    assert MISTAKE in installed.run("journalctl", "--unit", UNIT, "--output", "cat")
    configure(installed, "poll_interval: 3s\n")
    installed.run("systemctl", "restart", UNIT)
    assert serving(installed).startswith(f"{HOME}/versions/")


def test_a_service_that_was_stopped_stays_stopped(installed: Machine) -> None:
    """Whoever has switched it off does not get it back by an upgrade."""
    installed.run("systemctl", "disable", "--now", UNIT)
    must(deb(installed, OLD))
    assert installed.try_run("systemctl", "is-active", UNIT).stdout.strip() == "inactive"
    assert installed.try_run("systemctl", "is-enabled", UNIT).stdout.strip() == "disabled"
    installed.run("systemctl", "enable", "--now", UNIT)


def test_removed_and_purged(installed: Machine, untouched: set[str]) -> None:
    """Configuration, state and granted rights stay for the next installation; purged, all is gone but the user."""
    installed.write(f"{DROP_INS}/kill.conf", "[Service]\nAmbientCapabilities=CAP_KILL\n")
    installed.run("apt-get", "remove", "-q", "-y", "gpuagent")
    assert installed.show(UNIT, "LoadState") in {"not-found", "masked"}
    assert installed.try_run("pgrep", "-u", "gpuagent").stdout == ""
    kept = found(installed) - untouched
    assert {CONFIGURATION, "/var/lib/gpuagent", DROP_INS} <= kept
    assert not [path for path in kept if path.startswith(("/opt", "/run", "/usr"))]
    must(deb(installed, NEW))
    assert serving(installed)
    assert installed.run("cat", CONFIGURATION) == "poll_interval: 3s"
    installed.run("apt-get", "purge", "-q", "-y", "gpuagent")
    assert found(installed) == untouched
    assert installed.try_run("id", "gpuagent").returncode == 0


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_over_an_installation_from_a_tree(installed: Machine, kind: str) -> None:
    """Refused before a file is written, with the command that takes the other one away: its unit would go first."""
    if kind == "rpm" and installed.try_run("sh", "-c", "command -v rpm").returncode != 0:
        pytest.skip("needs rpm: apt-get install rpm")
    installed.write(f"{HOME}/installed.json", '{"files": []}')
    refused = deb(installed, NEW) if kind == "deb" else rpm(installed, "-i", NEW)
    assert refused.returncode != 0
    assert "gpuagent service uninstall" in refused.stdout + refused.stderr
    assert installed.run("find", HOME, "-type", "f") == f"{HOME}/installed.json"
    installed.run("rm", "-r", HOME)
    installed.try_run("dpkg", "--purge", "gpuagent")


def test_the_rpm(bare_machine: Machine) -> None:
    """Installed, started, upgraded, refused a configuration, and erased; what an administrator wrote is kept beside."""
    machine = bare_machine
    if machine.try_run("sh", "-c", "command -v rpm").returncode != 0:
        pytest.skip("needs rpm: apt-get install rpm")
    must(rpm(machine, "-i", OLD))
    assert machine.run("stat", "--format", "%a %U %G", "/etc/gpuagent") == "750 root gpuagent"
    machine.run("systemctl", "enable", "--now", UNIT)
    first = serving(machine)
    assert machine.run("rpm", "-V", "--nodeps", "gpuagent") == ""
    configure(machine, "poll_interval: 3s\n")
    must(rpm(machine, "-U", NEW))
    assert serving(machine) != first
    assert machine.run("ls", f"{HOME}/versions") == Path(serving(machine)).name
    assert machine.run("cat", CONFIGURATION) == "poll_interval: 3s"
    configure(machine, "poll_intervall: 3s\n")
    before = machine.show(UNIT, "MainPID")
    assert MISTAKE in must(rpm(machine, "-U --oldpackage", OLD))
    assert machine.show(UNIT, "MainPID") == before
    machine.run("rpm", "-e", "gpuagent")
    assert machine.show(UNIT, "LoadState") == "not-found"
    assert machine.try_run("pgrep", "-u", "gpuagent").stdout == ""
    assert machine.run("cat", f"{CONFIGURATION}.rpmsave") == "poll_intervall: 3s"
    assert not machine.run("sh", "-c", f"ls -d {HOME} /usr/bin/gpuagent /run/gpuagent 2>/dev/null || true")


def test_for_another_processor(packages: Path, wheels: Path, tmp_path: Path) -> None:
    """Made here for arm64 (or amd64): the same files, and not one of them compiled for this machine."""
    machine, other, number = ("x86_64", "arm64", 183) if os.uname().machine == "x86_64" else ("aarch64", "amd64", 62)
    done = subprocess.run(
        [ROOT / "scripts/packages", tmp_path, wheels], capture_output=True, text=True, check=False,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1795000000", "PYTHON": "/usr/bin/python3", "ARCH": other},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.rpm"))) == 1
    unpacked = {}
    for name, folder in (("ours", packages), ("theirs", tmp_path)):
        (package,) = folder.glob("gpuagent_0.2.0-1+*.deb")
        subprocess.run(["dpkg-deb", "-x", package, tmp_path / name], check=True)
        unpacked[name] = {str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*")}
    compiled = [tmp_path / "theirs" / path for path in unpacked["theirs"] if path.endswith(".so") or ".so." in path]
    # e_machine of the ELF header: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
    assert {path.read_bytes()[18] for path in compiled} == {number}
    names = {name: {re.sub(r"-linux-gnu|aarch64|x86_64|-[0-9a-f]{8}(?=\.so)", "", path) for path in paths}
             for name, paths in unpacked.items()}  # fmt: skip
    assert names["theirs"] == names["ours"], machine


@pytest.mark.parametrize(("linter", "arguments"), [
    ("lintian", ["--allow-root", "--fail-on", "error,warning"]),
    ("rpmlint", ["--config", str(ROOT / "deploy/packages/rpm/rpmlint.toml")]),
])  # fmt: skip
def test_they_are_as_distributions_want_them(packages: Path, linter: str, arguments: list[str]) -> None:
    """Lintian and rpmlint find nothing but what is excepted beside the packages' description, with the reason."""
    if shutil.which(linter) is None:
        pytest.skip(f"needs {linter}: apt-get install {linter}")
    (package,) = packages.glob("gpuagent_0.2.0-1+*.deb" if linter == "lintian" else "gpuagent-0.2.0-1+*.rpm")
    done = subprocess.run([linter, *arguments, package], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert linter == "lintian" or "0 errors, 0 warnings" in done.stdout, done.stdout
