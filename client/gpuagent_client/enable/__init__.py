"""`gpuagent-client`: start the client in the programs of a virtual environment or of a unit, without changing them.

gpuagent-client enable [--venv DIR]     in each program of the environment that imports torch, from its next start
gpuagent-client disable [--venv DIR]
gpuagent-client status [--venv DIR]
gpuagent-client enable --unit NAME      print a drop-in for systemd; nothing is written
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
MODULE = "gpuagent_client_on_torch.py"
STARTER = "gpuagent-client.pth"
STARTER_TEXT = (
    'import sys; exec("try:\\n import gpuagent_client_on_torch\\n gpuagent_client_on_torch.watch()'
    '\\nexcept Exception:\\n pass")\n'
)
"""One line that Python runs at its start (https://docs.python.org/3/library/site.html). Where the module is missing or
broken, nothing happens, and nothing is printed."""
_NO_CLIENT = 'CLIENT = ""'


class EnableError(Exception):
    """The environment cannot be changed; the text says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 done, 1 not done or (status) not enabled, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="gpuagent-client", description="gpuagent's client in apps that do not start it"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("enable", "start the client in each program of an environment that imports torch"),
        ("disable", "undo it"),
        ("status", "say whether it is enabled; exit status 1 if not"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--venv", metavar="DIR", help="virtual environment, else that of this command")
        if name == "enable":
            command.add_argument("--unit", metavar="NAME", help="print a drop-in for this systemd unit instead")
    options = parser.parse_args(arguments)
    try:
        return _run(options.command, options.venv, getattr(options, "unit", None))
    except (EnableError, OSError) as error:
        sys.stderr.write(f"gpuagent-client: {error}\n")
        return 1


def _run(command: str, venv: str | None, unit: str | None) -> int:
    if unit is not None:
        sys.stdout.write(drop_in(unit))
        return 0
    places = find_site_packages(None if venv is None else Path(venv))
    if command == "enable":
        for place in places:
            enable(place)
            sys.stdout.write(f"Enabled in {place}: programs that import torch have the client from their next start.\n")
        return 0
    if command == "disable":
        for place in places:
            done = disable(place)
            sys.stdout.write(f"{'Disabled' if done else 'Was not enabled'} in {place}.\n")
        return 0
    found = [is_enabled(place) for place in places]
    for place, enabled in zip(places, found):
        sys.stdout.write(f"{'Enabled' if enabled else 'Not enabled'} in {place}.\n")
    return 0 if all(found) else 1


def find_site_packages(venv: Path | None) -> list[Path]:
    """Return the directories of an environment that Python searches for .pth files.

    Raises:
        EnableError: it is no virtual environment, or has no Python in it.
    """
    if venv is None:
        if sys.prefix == sys.base_prefix:
            raise EnableError("this Python is in no virtual environment: name one with --venv DIR")
        return [Path(sysconfig.get_paths()["purelib"])]
    if not (venv / "pyvenv.cfg").is_file():
        raise EnableError(f"{venv} is no virtual environment: it has no pyvenv.cfg")
    places = sorted(venv.resolve().glob("lib/python3*/site-packages"))
    if not places:
        raise EnableError(f"{venv} has no lib/python3*/site-packages")
    return places


def enable(site_packages: Path) -> None:
    """Put module and starter into an environment, each of them whole or not at all; the starter last.

    Raises:
        OSError: they cannot be written.
    """
    text = (Path(__file__).parent / MODULE).read_text(encoding="utf-8")
    _write(site_packages / MODULE, text.replace(_NO_CLIENT, f"CLIENT = {str(PACKAGE.parent)!r}", 1))
    _write(site_packages / STARTER, STARTER_TEXT)


def disable(site_packages: Path) -> bool:
    """Remove both, the starter first; return whether it was enabled.

    Raises:
        OSError: they cannot be removed.
    """
    enabled = is_enabled(site_packages)
    for name in (STARTER, MODULE):
        with contextlib.suppress(FileNotFoundError):
            (site_packages / name).unlink()
    return enabled


def is_enabled(site_packages: Path) -> bool:
    """Return whether programs of the environment get the client at their next start."""
    return (site_packages / STARTER).is_file() and (site_packages / MODULE).is_file()


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def drop_in(unit: str) -> str:
    """Return a drop-in with which a unit's Python programs have the client.

    Raises:
        EnableError: it is no name of a unit.
    """
    name = unit if unit.endswith(".service") else f"{unit}.service"
    stem = name[: -len(".service")]
    if not stem or not set(stem) <= _OF_A_UNIT:
        raise EnableError(f"{unit!r} is no name of a service")
    folder = PACKAGE / "inherit"
    return f"""\
# Save as /etc/systemd/system/{name}.d/gpuagent-client.conf, then:
#   systemctl daemon-reload && systemctl restart {name}
# If the unit sets PYTHONPATH already, write both: PYTHONPATH={folder}:...
# The unit must be able to read {PACKAGE} and to reach /run/gpuagent-client.
[Service]
Environment="PYTHONPATH={_escape(str(folder))}"
Environment="GPUAGENT_START=torch"
Environment="GPUAGENT_APP={_escape(stem)}"
"""


_OF_A_UNIT = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_.\\@")
"""https://www.freedesktop.org/software/systemd/man/latest/systemd.unit.html"""


def _escape(text: str) -> str:
    """Return a text for a quoted value of a unit file, with its special characters escaped."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
