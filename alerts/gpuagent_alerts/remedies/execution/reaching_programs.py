"""Find the programs of a unit that end or stop others by what they are called, wherever they run.

A restart runs what `ExecStop=`, `ExecStopPost=`, `ExecStartPre=`, `ExecStart=` and `ExecStartPost=` name, as the unit's
user, mostly root. `ExecStartPre=-/usr/bin/pkill -f vllm` is a common line, and ends everybody's vllm. What a script or
another program of the unit does cannot be seen.
"""

from __future__ import annotations

import re

PROGRAM_PROPERTIES = ("ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop", "ExecStopPost")
_PROPERTY = re.compile(rf"^({'|'.join(PROGRAM_PROPERTIES)})=", re.MULTILINE)
_REACHING = re.compile(
    r"(?<![^\s/;|&(=\"'`])"
    r"(?:(pkill|killall5?|skill|slay|fuser|systemctl|loginctl|machinectl|scancel|reboot|poweroff|halt|shutdown|telinit)(?![^\s;|&)\"'`])"
    r"|(busctl|gdbus|dbus-send|varlinkctl)(?=\s(?:(?!\nExec\w+=)[\s\S]){0,2000}[.-](?:systemd|login|machine)1\b)"
    r"|(kill\s+(?:-[sn]\s+\S+\s+|-\S+\s+)*-1)(?=\s*(?:$|[;|&)\"'`}])))"
)


def find_reaching_program(shown: str) -> str:
    """Return the property and the program that reaches beyond the unit, as `ExecStop= runs pkill`; "" for none.

    `shown` is what `systemctl show` prints of `PROGRAM_PROPERTIES`. An argument may have line breaks.
    """
    for found in _REACHING.finditer(shown):
        names = [each[1] for each in _PROPERTY.finditer(shown, 0, found.start())]
        return f"{names[-1] if names else 'Exec'}= runs {' '.join((found[1] or found[2] or found[3]).split())}"
    return ""
