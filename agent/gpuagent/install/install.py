"""Place the service on a machine, or in a packager's folder, and take it away again: the steps, in their order.

What can be refused is refused before anything is changed. The switch to the new version is one link, and it is taken
back where the new one does not start. `System` is what is asked of the machine: systemd's own programs, and the
database of users.

With the standard library alone: it must work where the installed environment does not.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpuagent.install.placing import (
    CONFIGURATION,
    DROP_INS,
    HOME,
    POLKIT_RULES,
    STATE,
    UNIT,
    USER,
    InstallFault,
    Layout,
    Manifest,
    Placed,
    Releases,
    check_environment,
    check_not_packaged,
    link,
    remove,
    write,
)

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
            InstallFault: it could not.
        """
        self._must(self._run(["systemd-sysusers", str(sysusers)]), f"the user {USER} could not be made")

    def make_directories(self, tmpfiles: Path) -> None:
        """Make the directories that must be there whether or not the service runs, from this file of tmpfiles.d.

        Raises:
            InstallFault: it could not.
        """
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

    def lift_limits(self, python: Path) -> str:
        """Take off the memory limits that were set, before what knows them is gone; return why some may be left."""
        self._run(["systemctl", "disable", "--now", "gpuagent-limit.socket"])
        self._run(["systemctl", "stop", "gpuagent-limit.service"])
        done = self._run([str(python), "-I", "-m", "gpuagent.driver.memory_limits.helper", "--lift-all"])
        return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"

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


_FILES = Path(__file__).with_name("files")
_UNIT_SUFFIXES = frozenset({".service", ".socket"})
_RUNS = frozenset({"active", "activating", "reloading", "failed"})
"""States of the unit in which somebody wants it to run."""


def shipped(layout: Layout) -> Iterator[Placed]:
    """Yield the unit with its user and directories, and examples for whoever wants more."""
    places = {
        UNIT: layout.units / UNIT,
        "gpuagent.sysusers": layout.sysusers,
        "gpuagent.tmpfiles": layout.tmpfiles,
    }
    for file in sorted(_FILES.iterdir()):
        # Units keep their whole name: they name each other by it.
        name = file.name if file.suffix in _UNIT_SUFFIXES else file.name.removeprefix("gpuagent-")
        path = places.get(file.name, layout.examples / name)
        yield Placed(path, file.read_text(encoding="utf-8"))


class Installation:
    """One run of `gpuagent service install`, by the version that is to serve."""

    def __init__(
        self,
        layout: Layout,
        system: System,
        files: Sequence[Placed],
        configuration: str,
        prefix: Path,
        base_prefix: Path,
        python: str,
    ) -> None:
        """`files` are all but the configuration; `prefix` and `base_prefix` are those of the `python` that serves."""
        self._layout = layout
        self._system = system
        self._files = [*shipped(layout), *files]
        self._configuration = configuration
        self._prefix = prefix.resolve()
        self._base_prefix = base_prefix.resolve()
        self._python = python
        self._releases = Releases(layout)
        self._manifest = Manifest(self._releases.home)

    def run(self, *, start: bool = True) -> Iterator[str]:
        """Do it, and tell it in lines as it goes on.

        Raises:
            InstallFault: it was refused, and nothing was changed; or the new version does not start, and the old one
                serves again.
            OSError: a file cannot be written.
        """
        layout, system = self._layout, self._system
        if layout.staged:
            yield from self._stage()
            return
        check_not_packaged(layout)
        if not system.booted:
            raise InstallFault(
                "systemd does not run this machine: nothing was changed. For an image or a chroot take the package "
                "(`make packages`); a container needs no service: `gpuagent run`."
            )
        check_environment(self._prefix, self._base_prefix)
        system.check_configuration(self._python)
        upgrade = self._manifest.exists
        before = self._releases.current, self._releases.previous
        self._place()
        system.make_user(layout.sysusers)
        system.make_directories(layout.tmpfiles)
        yield self._configure()
        self._releases.activate(self._prefix)
        yield f"{HOME / 'current'} is {self._prefix}"
        yield from self._serve(before, upgrade=upgrade, start=start)
        self._releases.forget(before[1])

    def _stage(self) -> Iterator[str]:
        for file in self._files:
            write(self._layout.at(file.path), file.text, file.mode)
        link(self._layout.at(self._layout.command), str(HOME / "current/bin/gpuagent"))
        self._write_configuration()
        self._releases.activate(self._prefix)
        yield f"staged in {self._layout.root}. The package's own scripts make the user (systemd-sysusers), the"
        yield f"directories (systemd-tmpfiles --create), and start {UNIT}."

    def _place(self) -> None:
        paths = [file.path for file in self._files]
        command = self._layout.command
        if command.exists() and not command.is_symlink():
            raise InstallFault(f"{command} is there and is not ours; nothing was changed. Take it away first.")
        self._manifest.add([*paths, command])
        for file in self._files:
            write(self._layout.at(file.path), file.text, file.mode)
        link(command, str(HOME / "current/bin/gpuagent"))
        remove(self._layout, self._manifest.keep([*paths, command]))

    def _write_configuration(self) -> list[Path]:
        """Return the present defaults always, beside; the configuration itself once. Gives what was written."""
        folder = self._layout.at(CONFIGURATION)
        written = [folder / "gpuagent.yaml.example"]
        if not (folder / "gpuagent.yaml").exists():
            written.append(folder / "gpuagent.yaml")
        for path in written:
            # A package's files are root's: the folder, which tmpfiles.d closes, keeps others out.
            write(path, self._configuration, 0o644 if self._layout.staged else 0o640)
        return written

    def _configure(self) -> str:
        written = self._write_configuration()
        for path in written:
            shutil.chown(path, "root", USER)
        news = "written, with every default commented out" if len(written) == 2 else "kept"
        return f"{CONFIGURATION / 'gpuagent.yaml'}: {news}"

    def _serve(self, before: tuple[Path | None, Path | None], *, upgrade: bool, start: bool) -> Iterator[str]:
        system = self._system
        system.reload()
        ours, used = self._layout.units / UNIT, system.unit_file()
        if used.resolve() != ours.resolve():
            yield f"note: systemd uses {used}, not {ours}. If that is an old copy, remove it and do this again."
        if not upgrade and start:
            system.enable()
        if not start or (upgrade and system.state() not in _RUNS):
            yield f"{UNIT} is not running, and was left so: systemctl enable --now {UNIT}"
            return
        problem = system.restart()
        if not problem:
            yield f"{UNIT} runs"
            return
        said = f"{problem}\n{system.log_lines(15)}".replace("\n", "\n    ")
        old, older = before
        if old is None or old == self._prefix:
            raise InstallFault(f"{UNIT} does not start:\n    {said}")
        self._releases.take_back(old, older)
        back = system.install_with(old / "bin/gpuagent")
        state = "serves again" if back else "does not start either"
        raise InstallFault(f"the new version does not start; the old one {state}:\n    {said}")


_LIMITS = Path("/run/gpuagent-limit/ledger.json")
"""What `gpuagent-limit.service` has set: see `gpuagent.driver.memory_limits.helper`."""
_LIMIT_UNITS = tuple(Path("/etc/systemd/system", f"gpuagent-limit.{kind}") for kind in ("service", "socket"))
_RUNTIME = (Path("/run/gpuagent"), Path("/run/gpuagent-client"))


def uninstall(system: System | None = None, layout: Layout | None = None, *, purge: bool = False) -> Iterator[str]:
    """Do it, and tell it in lines as it goes on.

    Without `purge` the configuration, drop-ins, state and the user stay: another installation goes on with them.

    Raises:
        InstallFault: it is a package's, which takes it away itself; nothing was changed.
    """
    system, layout = system or System(), layout or Layout()
    check_not_packaged(layout)
    home = layout.at(HOME)
    manifest = Manifest(home)
    there = manifest.exists
    if system.booted:
        system.stop_for_good()
        there_are_limits = layout.at(_LIMITS).exists()
        if there_are_limits and (why := system.lift_limits(home / "current/bin/python")):
            yield f"memory limits may be left (nvidia-smi memory-limits): {why}"
    remove(layout, manifest.read())
    shutil.rmtree(home, ignore_errors=True)
    for path in _RUNTIME:
        shutil.rmtree(layout.at(path), ignore_errors=True)
    if system.booted:
        system.reload()
    if there:
        yield f"{UNIT}: stopped, and removed with {home}, the command, its manual and completion"
    else:
        yield f"{home} has no installed service"
    kept = (CONFIGURATION, DROP_INS, POLKIT_RULES, STATE, *_LIMIT_UNITS)
    if purge:
        for path in map(layout.at, kept):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        system.remove_user()
        yield f"{', '.join(map(str, kept))} and the user gpuagent: removed"
    elif left := [str(path) for path in kept if layout.at(path).exists()]:
        yield f"kept: {', '.join(left)} (make uninstall PURGE=1 removes these too)"
