"""Whether the files of a unit are what systemd has loaded, and whether they have conditions.

`NeedDaemonReload=` misses a file that was replaced by one with an older time of modification, and a folder of drop-ins
that is new. The time at which an inode was changed (ctime) cannot be set back without root setting the clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpuagent_alerts.remedies.execution.unit_state import UnitState, read_properties

MANAGER_PROPERTIES = ("UnitsLoadStartTimestampMonotonic", "UnitsLoadTimestampMonotonic", "UnitPath")
"""Of systemd itself: when it loaded all units, at its start and at the last daemon-reload, and from where."""
_CONDITION = re.compile(rb"^\s*(?:Condition|Assert)([A-Z]\w*)\s*=\s*\S", re.MULTILINE)
"""Settings without which a unit is not started, or its start fails (systemd.unit(5))."""
_OF_FILES = re.compile(rb"Path|Directory|File")
"""Conditions that look at files, with the mounts of systemd itself."""
_OF_THE_MACHINE = frozenset({b"Architecture", b"Host", b"KernelCommandLine", b"KernelVersion", b"ACPower", b"CPUs",
                             b"Memory", b"CPUFeature"})  # fmt: skip
"""Conditions that hold for every program of the machine, or for none."""
_WRITTEN_BY_SYSTEMD = tuple(
    f"{folder}/" for folder in (
        "/run/systemd/transient", "/run/systemd/generator", "/run/systemd/generator.early",
        "/run/systemd/generator.late", "/run/systemd/system.control", "/etc/systemd/system.control",
    )
)  # fmt: skip
"""Folders whose files systemd writes, and has loaded when it does."""


class LoadedUnits(NamedTuple):
    """When systemd loaded all units, and from where."""

    unix_seconds: float | None
    """None where systemd does not tell, as before version 246."""
    folders: tuple[str, ...] = ()


class UnitFiles(NamedTuple):
    """What a look at the files of a unit has come to."""

    changed: str
    """The file or folder that is another since; "" for none."""
    have_conditions: bool
    """Whether they have a condition of the start, also where that cannot be read."""
    unsure: str = ""
    """A condition of which this program cannot tell whether it holds for systemd; "" for none."""


def parse_loaded(output: str, monotonic_seconds: float, unix_seconds: float) -> LoadedUnits:
    """Read what `systemctl show` prints of systemd itself; both times are of now."""
    known = read_properties(output)
    at_start, at_reload = (known.get(name, "") for name in MANAGER_PROPERTIES[:2])
    if not at_start.isdigit() or not at_reload.isdigit():
        return LoadedUnits(None)
    loaded = max(int(at_start), int(at_reload)) / 1e6
    return LoadedUnits(unix_seconds - (monotonic_seconds - loaded), tuple(known.get("UnitPath", "").split()))


def has_mounts_of_systemd() -> bool:
    """Return whether files are seen here as systemd sees them; False where that cannot be told, as in a sandbox."""
    try:
        same_mounts = Path("/proc/1/ns/mnt").samefile("/proc/self/ns/mnt")
        return same_mounts and Path("/proc/1/root").samefile("/")
    except OSError:
        return False


def look_at_files(state: UnitState, loaded: LoadedUnits, *, has_mounts: bool) -> UnitFiles:
    """Look at the files that systemd has loaded of a unit. It reads them, and may block.

    `has_mounts`: files are seen here as systemd sees them.
    """
    files = [*(state.value("FragmentPath") or "").splitlines(), *(state.value("DropInPaths") or "").split()]
    conditions = _conditions(files)
    have_conditions = conditions is None or bool(conditions)
    unsure = next((each for each in sorted(conditions or ()) if not _can_be_told(each, has_mounts=has_mounts)), b"")
    # A new folder of drop-ins may take a condition back that systemd still has.
    watched = [*files, *(loaded.folders if have_conditions else ())]
    changed = (each for each in watched if not f"{each}/".startswith(_WRITTEN_BY_SYSTEMD))
    since = loaded.unix_seconds
    return UnitFiles(
        "" if since is None else next((each for each in changed if _changed(each, since)), ""),
        have_conditions,
        f"Condition{unsure.decode('ascii', 'replace')}" if unsure else "",
    )


def _changed(path: str, unix_seconds: float) -> bool:
    try:
        return Path(path).stat().st_ctime > unix_seconds
    except OSError:
        return False  # a folder that is not there; `NeedDaemonReload=` tells of a file that is gone


def _conditions(files: Sequence[str]) -> frozenset[bytes] | None:
    """Return the kinds of conditions in these files, such as `PathExists`; None where they cannot be read."""
    try:
        return frozenset(kind for each in files for kind in _CONDITION.findall(Path(each).read_bytes()))
    except OSError:
        return None


def _can_be_told(kind: bytes, *, has_mounts: bool) -> bool:
    """Return whether `systemd-analyze condition` comes to the same here as systemd does.

    It goes by the environment, the capabilities and the user of who runs it, and by what files it sees.
    """
    return kind in _OF_THE_MACHINE or (has_mounts and _OF_FILES.match(kind) is not None)
