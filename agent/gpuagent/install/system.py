"""What is asked of the machine: systemd's own programs, and the database of users."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuagent.install.layout import UNIT, USER, InstallFault

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]

_START_SECONDS = 120
"""Longer than the unit's TimeoutStartSec: systemd decides."""


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and keep what it says."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_START_SECONDS)  # noqa: S603
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} took longer than {_START_SECONDS} s")


class System:
    """systemd, as far as it is there."""

    def __init__(self, run: Run = run, booted: Path = Path("/run/systemd/system")) -> None:
        self._run = run
        self.booted = booted.is_dir()
        """systemd runs this machine (sd_booted(3)), and takes orders."""

    def make_user(self, sysusers: Path) -> None:
        """Make the user and group of the service, from this file of sysusers.d.

        Raises:
            InstallFault: neither systemd-sysusers nor useradd could.
        """
        done = self._run(["systemd-sysusers", str(sysusers)])
        if done.returncode == 127:  # a container without systemd
            done = self._run(["useradd", "--system", "--user-group", "--no-create-home", USER])
            if done.returncode == 9:  # it is there
                return
        self._must(done, f"the user {USER} could not be made")

    def make_directories(self, tmpfiles: Path) -> None:
        """Make the directories that must be there whether or not the service runs, from this file of tmpfiles.d.

        Raises:
            InstallFault: it could not.
        """
        if shutil.which("systemd-tmpfiles") is not None:
            self._must(self._run(["systemd-tmpfiles", "--create", str(tmpfiles)]), "directories could not be made")

    def reload(self) -> None:
        """Have systemd read units again."""
        self._must(self._run(["systemctl", "daemon-reload"]), "systemd could not read its units")

    def unit_file(self) -> Path:
        """Return the file that systemd has read for the unit: a copy in /etc/systemd/system goes before ours."""
        return Path(self._run(["systemctl", "show", "--value", "--property", "FragmentPath", UNIT]).stdout.strip())

    def state(self) -> str:
        """Return the state of the unit: active, activating, reloading, failed, inactive."""
        return self._run(["systemctl", "is-active", UNIT]).stdout.strip()

    def enable(self) -> None:
        """Start at boot.

        Raises:
            InstallFault: systemd refuses.
        """
        self._must(self._run(["systemctl", "enable", UNIT]), "the service could not be enabled")

    def restart(self) -> str:
        """Start, or start anew; why it does not run, or nothing: it is up, and has tried to read the GPUs."""
        self._run(["systemctl", "reset-failed", UNIT])
        done = self._run(["systemctl", "restart", UNIT])
        return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"

    def stop_for_good(self) -> None:
        """Stop, and do not start at boot. No fault: where it is not there, it does not run."""
        self._run(["systemctl", "disable", "--now", UNIT])

    def log_lines(self, count: int) -> str:
        """Return the last ones of the service."""
        command = ["journalctl", "--unit", UNIT, "--lines", str(count), "--no-pager", "--output", "cat"]
        return self._run(command).stdout.rstrip()

    def remove_user(self) -> None:
        """Remove the service's user, once the files that it owned are gone."""
        self._run(["userdel", USER])
        self._run(["groupdel", USER])  # where it has members besides, userdel leaves it

    def check_configuration(self, python: str) -> None:
        """Have that version read the configuration that is there.

        Raises:
            InstallFault: it would not start with it.
        """
        done = self._run([python, "-m", "gpuagent", "config", "check"])
        self._must(done, "this version does not take the configuration that is there; nothing was changed")

    def install_with(self, program: Path) -> bool:
        """Have another version install itself; whether it could."""
        return self._run([str(program), "service", "install"]).returncode == 0

    @staticmethod
    def _must(done: subprocess.CompletedProcess[str], problem: str) -> None:
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).replace("\n", "\n    ")
            raise InstallFault(f"{problem}:\n    {said}" if said else problem)
