"""What `systemctl show` prints about units, as systemd 252 does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_LISTS = (
    "RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "Requires", "Requisite", "BindsTo", "Wants", "Upholds",
    "Conflicts", "ConflictedBy", "OnSuccess", "OnFailure", "PropagatesStopTo", "WantedBy", "UpheldBy",
)  # fmt: skip
HEALTHY = {
    "LoadState": "loaded", "ActiveState": "active", "Job": "", "RefuseManualStart": "no", "RefuseManualStop": "no",
    "StartLimitBurst": "5", "StartLimitIntervalUSec": "10s", "NRestarts": "0",
    "ActiveEnterTimestampMonotonic": "1000000",
    "InactiveExitTimestampMonotonic": "1000000", "MainPID": "0", "ControlPID": "0", "UID": "[not set]", "User": "",
    "DynamicUser": "no",
    "ControlGroup": "", **dict.fromkeys(_LISTS, ""), "OnSuccessJobMode": "fail", "OnFailureJobMode": "replace",
    "SuccessAction": "none", "FailureAction": "none", "StartLimitAction": "none", "JobTimeoutAction": "none",
    "StopWhenUnneeded": "no", "NeedDaemonReload": "no", "RuntimeDirectory": "", "RuntimeDirectoryPreserve": "no",
    "RemoveIPC": "no", "SubState": "running", "NotifyAccess": "main",
}  # fmt: skip
"""An active service that depends on nobody."""
UNKNOWN = HEALTHY | {"LoadState": "not-found", "ActiveState": "inactive"}
"""A unit of which there is no file."""


def shown(unit: str, changes: Mapping[str, str | None], properties: Sequence[str] = ()) -> str:
    """Print the properties of a healthy unit, with changes; None leaves a line out."""
    known: dict[str, str | None] = {"Id": unit, "Names": unit, **HEALTHY, **changes}
    return "".join(
        f"{name}={value}\n" for name, value in known.items() if value is not None and name in (properties or known)
    )


class Systemd:
    """Answers as `systemctl show` does, of units that are named with `_` for the dot."""

    def __init__(self, **units: Mapping[str, str | None]) -> None:
        self.units = {".".join(name.rsplit("_", 1)): known for name, known in units.items()}

    def show(self, properties: Sequence[str], units: Sequence[str]) -> str:
        """Print these properties of these units, or of all whose name ends as a pattern does."""
        ends = tuple(unit.removeprefix("*") for unit in units if unit.startswith("*"))
        names = [name for name in self.units if name.endswith(ends)] if ends else units
        return "\n".join(shown(name, self.units.get(name) or self._plain(name), properties) for name in names)

    def _plain(self, name: str) -> dict[str, str]:
        return {} if name in self.units else UNKNOWN


SCRIPT = """#!/bin/sh
# Answers as systemctl does, of the units in a folder.
folder={folder}
show() {{ cat "$folder/unit.$1" 2>&- || sed "s/^Id=.*/Id=$1/" "$folder/unknown"; echo; }}
if [ "$1" = show ]; then
    [ "$4" ] || {{ cat "$folder/manager" 2>&-; exit 0; }}
    shift 4
    for unit; do
        case "$unit" in
        '*'*) for file in "$folder"/unit.*"${{unit#?}}"; do [ ! -e "$file" ] || show "${{file##*/unit.}}"; done;;
        *) show "$unit";;
        esac
    done
    exit 0
fi
"""
"""Begins a program in place of systemctl: `folder` has files `unit.NAME`, `unknown` and perhaps `manager`."""
