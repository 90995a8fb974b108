"""Find whether a machine may sleep or be powered off because nobody keeps it busy or holds it awake any more.

With `IdleAction=` logind acts on the whole machine once all of its login sessions have been idle (logind.conf(5)): one
without a terminal, as `ssh HOST job` has it, never is. A program that works for hours has logind hold that off by a
lock of the kind `idle`: `systemd-inhibit --what=idle train.py`, or one of the kind `handle-lid-switch` what follows a
closed lid. logind writes down each lock in a file that all may read, with its kind, and pid and user that took it. It
ends with the last descriptor of its pipe, which a child may have after that pid has ended. Anybody may take an `idle`
lock, so one whose taker has ended counts for those of that user, whoever else may have been given its pipe. One of
root's counts for all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from gpuagent_alerts.remedies.facts.process_scan import ProcessScan

INHIBITORS = Path("/run/systemd/inhibit")
CONFIGURATIONS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
_IDLE_ACTION = re.compile(r"^\s*IdleAction\s*=\s*(\S*)", re.MULTILINE)
_HARMLESS = frozenset({"", "ignore", "lock"})
_ROOT = 0
_IDLE, _LID = "idle", "handle-lid-switch"
_GONE = (FileNotFoundError, NotADirectoryError, ProcessLookupError)


class _Lock(NamedTuple):
    name: str
    """Name of its file; that of the pipe has `.ref` behind it."""
    kinds: frozenset[str]
    taken_by: int
    uid: int
    """User who took it; root where the file tells none."""


def against_end(
    pids: Collection[int],
    above: Collection[int],
    scan: ProcessScan,
    open_paths: Callable[[int], Collection[str]],
    login: str = "",
    inhibitors: Path = INHIBITORS,
    configurations: Collection[str] = CONFIGURATIONS,
) -> str:
    """Return why these must not end: the machine may do something once it is idle, and they keep it from that.

    `above` are those from whom they descend, `login` is the session that may end with them, in words, and `open_paths`
    returns what a process has open. What descends from them counts as well. Return "" where nothing speaks against it.
    Raises OSError, ValueError.
    """
    action = next((found for found in _idle_actions(configurations) if found not in _HARMLESS), "")
    if action and login:
        return f"{login} may end with it, and IdleAction={action} is set: logind may then find the whole machine idle"
    kinds = {_IDLE, _LID} if action else {_LID}
    locks = [lock for lock in _locks(inhibitors) if lock.kinds & kinds]
    if not locks:
        return ""
    family = {*pids, *above, *(pid for pid, _ in scan.descendants(pids))}
    holder, certain = _holder(locks, family, scan, open_paths)
    if not holder:
        return ""
    what = f"IdleAction={action} is set" if action else "a closed lid may be acted on"
    return f"pid {holder} {'holds' if certain else 'may hold'} the machine awake by a lock of logind, and {what}"


def _holder(
    locks: Collection[_Lock], family: Collection[int], scan: ProcessScan, open_paths: Callable[[int], Collection[str]]
) -> tuple[int, bool]:
    """Return who of a family has one of the locks, 0 for nobody, and whether that is certain."""
    taken = next((lock.taken_by for lock in locks if lock.taken_by in family), 0)
    if taken:
        return taken, True
    # Once logind has started anew, a pipe of before has no folder any more: that was in logind's own mounts.
    pipes = tuple(f"/{lock.name}.ref" for lock in locks)
    # Where whoever has taken a lock has ended, others may have it whose open files the agent has no right to see.
    passed_on = {lock.uid for lock in locks if lock.taken_by not in scan.rows}
    unseen = 0
    for pid in sorted(family):
        try:
            if any(path.removesuffix(" (deleted)").endswith(pipes) for path in open_paths(pid)):
                return pid, True
        except PermissionError:
            unseen = unseen or (pid if _may_have(scan, pid, passed_on) else 0)
        except _GONE:
            continue
    return unseen, False


def _may_have(scan: ProcessScan, pid: int, passed_on: Collection[int]) -> bool:
    """Return whether a process is of one of these users; root's locks may have been passed on to anybody."""
    row = scan.rows.get(pid)
    return bool(passed_on) and (_ROOT in passed_on or row is None or not row.uids.isdisjoint(passed_on))


def _locks(inhibitors: Path) -> Iterator[_Lock]:
    for name, text in _texts(inhibitors, "*"):
        fields = dict(line.partition("=")[::2] for line in text.split("\n"))
        pid, uid = (int(told) if (told := fields.get(key, "")).isdecimal() else 0 for key in ("PID", "UID"))
        yield _Lock(name, frozenset(fields.get("WHAT", "").split(":")), pid, uid)


def _idle_actions(configurations: Collection[str]) -> Iterator[str]:
    """Yield what any file says: which of them counts is not asked."""
    for folder in map(Path, configurations):
        for _, text in (*_texts(folder, "logind.conf"), *_texts(folder / "logind.conf.d", "*.conf")):
            yield from _IDLE_ACTION.findall(text)


def _texts(folder: Path, pattern: str) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.glob(pattern)):
        try:
            if file.is_file():  # a lock is held by a pipe beside its file
                yield file.name, file.read_text(encoding="utf-8", errors="replace")
        except _GONE:
            continue
