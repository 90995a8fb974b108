"""Find whether a machine may sleep or be powered off because nobody holds it awake any more.

A program that works for hours has logind hold off what `IdleAction=` says (logind.conf(5)), by a lock of the kind
`idle`: `systemd-inhibit --what=idle train.py`. The lock ends with whoever holds it, mostly the parent that waits for
the program. logind writes down each lock in a file that all may read, with its kind and the pid of its holder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

INHIBITORS = Path("/run/systemd/inhibit")
CONFIGURATIONS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
_IDLE_ACTION = re.compile(r"^\s*IdleAction\s*=\s*(\S*)", re.MULTILINE)
_NO_ACTION = frozenset({"", "ignore"})
_GONE = (FileNotFoundError, NotADirectoryError)


def against_end(
    pids: Collection[int], inhibitors: Path = INHIBITORS, configurations: Collection[str] = CONFIGURATIONS
) -> str:
    """Return why these must not end: one of them holds the machine awake, which has something to do when it is idle.

    Return "" where none does. Raises OSError.
    """
    holder = next((pid for pid in _holders(inhibitors) if pid in pids), 0)
    if not holder:
        return ""
    action = next((found for found in _idle_actions(configurations) if found not in _NO_ACTION), "")
    return f"pid {holder} holds the machine awake by a lock of logind, and IdleAction={action} is set" if action else ""


def _holders(inhibitors: Path) -> Iterator[int]:
    for text in _texts(inhibitors, "*"):
        fields = dict(line.partition("=")[::2] for line in text.splitlines())
        if "idle" in fields.get("WHAT", "").split(":") and fields.get("PID", "").isdigit():
            yield int(fields["PID"])


def _idle_actions(configurations: Collection[str]) -> Iterator[str]:
    """Yield what any file says: which of them counts is not asked."""
    for folder in map(Path, configurations):
        for text in (*_texts(folder, "logind.conf"), *_texts(folder / "logind.conf.d", "*.conf")):
            yield from _IDLE_ACTION.findall(text)


def _texts(folder: Path, pattern: str) -> Iterator[str]:
    for file in sorted(folder.glob(pattern)):
        try:
            if file.is_file():  # a lock is held by a pipe beside its file
                yield file.read_text(encoding="utf-8", errors="replace")
        except _GONE:
            continue
