"""Whose processes a systemd unit runs, by the kernel's own account: nobody restarts a service that others work in.

The unit's cgroup says which processes they are, and /proc whose. Everything here reads files and may block, so it is
called in a thread.
"""

from __future__ import annotations

import os
import pwd
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from gpuagent.core.identity import format_container
from gpuagent.procfs.cgroup import (
    Hierarchy,
    UnreadableTree,
    is_below,
    parse_cgroup,
    path_in_hierarchy,
    processes_in,
    systemd_hierarchies,
)
from gpuagent.procfs.credentials import Credentials, MissingFact, has_own_root, read_credentials
from gpuagent.procfs.files import ProcFiles, Stat, parse_stat, printable, read_living
from gpuagent.procfs.programs import read_program
from gpuagent_alerts.remedies.execution.pidfd import ancestors
from gpuagent_alerts.remedies.facts.checkpoints import find_certain_restore
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from gpuagent_alerts.remedies.facts.ties import TieFinder, find_together
from gpuagent_alerts.remedies.facts.unit_containers import (
    MONITOR_ENTRY,
    NO_CONTAINERS,
    UnitContainers,
    find_containers,
    find_users,
)
from gpuagent_alerts.remedies.observation import SHARED_WAY_OUT, ProcessEnded, UnitPermission
from gpuagent_alerts.remedies.safeguards.never_list import UNKILLABLE_SCORE, find_listed
from gpuagent_alerts.remedies.target import Target

_LISTINGS = 5
"""A service that starts short programs has new processes at each listing; a few listings find them all."""
_NAMED = 3
_NAME_BYTES = 64
_CGROUP_BYTES = 256


class UnitProcesses:
    """Looks at the cgroup of a unit and at the processes in it."""

    def __init__(
        self,
        files: ProcFiles,
        *,
        mountinfo: Path = Path("/proc/self/mountinfo"),
        user_of: Callable[[int], pwd.struct_passwd] = pwd.getpwuid,
        ties: TieFinder | None = None,
        never: NeverListEntries | None = None,
    ) -> None:
        """`files` is /proc; `mountinfo` says where cgroups are mounted; `user_of` raises KeyError for unknown uids.

        `ties` finds who depends on the processes of a unit; `never` knows the operator's entries of the never-list.
        """
        self._never = never or NeverListEntries()
        self._files = files
        self._ties = ties or TieFinder(files)
        self._mountinfo = mountinfo
        self._user_of = user_of

    def not_in_unit(self, target: Target, unit: str, cgroup: str) -> str:
        """Return why the target is not in the unit that has this cgroup according to systemd; "" if it is.

        Raises ProcessEnded where the target has ended.
        """
        try:
            stat = parse_stat(self._files.read(target.pid, "stat"))
            if stat.start_ticks != target.id.start_ticks:
                return f"pid {target.pid} is another process now"
            text = read_living(self._files, stat, lambda thread: thread.read("cgroup"))
            if text is None:
                return f"pid {target.pid} is ending: it cannot be seen whether it runs in {unit}"
            hierarchy = self._hierarchy(cgroup)
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessEnded from None
        except (OSError, ValueError, UnreadableTree) as error:
            return f"it cannot be seen whether pid {target.pid} runs in {unit}: {error}"
        if not is_below(path_in_hierarchy(text, hierarchy.controllers) or "", cgroup):
            return f"pid {target.pid} does not run in {unit} according to systemd"
        return ""

    def not_of_unit(self, unit: str, cgroup: str, named: Mapping[str, int]) -> str:
        """Return which process that systemd would end with the unit does not run in it, and why; "" for none.

        `named` has the pid of its main and of its control process, which systemd ends wherever they run: `PIDFile=` and
        `MAINPID=` of sd_notify(3) may name a process of any other unit, session or job.
        """
        if not named:
            return ""
        try:
            inside = {each.pid for each in self._look(cgroup)}
        except (OSError, UnreadableTree, MissingFact) as error:
            return f"it cannot be seen whether the main process of {unit} runs in it: {error}"
        for name, pid in named.items():
            if pid not in inside:
                return (
                    f"systemd has {name}={pid} for {unit}, and would end that as well{self._describe(pid)}: it does not"
                    f" run in the unit; see to PIDFile= and what tells systemd MAINPID=, or run systemctl yourself"
                )
        return ""

    def _describe(self, pid: int) -> str:
        """Return the name, the users and the cgroup of a process in brackets; "" where they cannot be read."""
        try:
            found = read_credentials(self._files, pid)
            name = parse_stat(self._files.read(pid, "stat")).name.decode("utf-8", "replace")
        except (OSError, ValueError, MissingFact):
            return ""
        lines = (found.cgroup or b"").decode("utf-8", "replace").splitlines()
        place = f", in {printable(lines[-1].rpartition(':')[2], _CGROUP_BYTES)}" if lines else ""
        return f" ({printable(name, _NAME_BYTES)} of {', '.join(sorted(map(self._name, found.uids)))}{place})"

    def never_ended(self, unit: str, cgroup: str, permission: UnitPermission, main_pid: int = 0) -> str:
        """Return which process of the unit must not end with it, and why; "" for none.

        The monitor of a container in the unit may: `shared_with` tells whether that is the unit's own.
        """
        try:
            processes = self._look(cgroup)
            monitors = find_containers(self._files, processes, main_pid).monitors
        except (OSError, UnreadableTree, MissingFact) as error:
            return f"it cannot be seen whose processes {unit} runs: {error}"
        return self.never_among(unit, [each.pid for each in processes], permission, monitors)

    def never_among(
        self, unit: str, pids: Iterable[int], permission: UnitPermission, monitors: Collection[int] = ()
    ) -> str:
        """Return as `never_ended`, of the processes of a unit, container or job, of which some are `monitors`."""
        own, never = ancestors(self._files, os.getpid(), self._parent_of), self._never.snapshot()
        for pid in pids:
            if pid in own:
                return f"the agent itself or one of its ancestors runs in {unit} (pid {pid})"
            try:
                program = read_program(self._files, pid)
                score = int(self._files.read(pid, "oom_score_adj"))
                reason = never.reason(self._files, pid, program)
                stat = parse_stat(self._files.read(pid, "stat"))
                restored = "" if permission.restored else find_certain_restore(self._files, stat)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except (OSError, ValueError) as error:
                return f"it cannot be seen what pid {pid} of {unit} is: {error}"
            if score == UNKILLABLE_SCORE:
                return f"pid {pid} of {unit} is protected from the kernel's own killer (oom_score_adj -1000)"
            if reason := reason or permission.spared.get((pid, stat.start_ticks), "") or restored:
                return f"pid {pid} runs in {unit}: {reason}"
            patterns = _without_monitors(permission.never_processes) if pid in monitors else permission.never_processes
            if listed := find_listed(program.names, patterns):
                return f"{listed.shown} runs in {unit} (pid {pid}), and is on the never-list ({listed.pattern})"
        return ""

    def tied_with(self, unit: str, cgroup: str, permission: UnitPermission) -> str:
        """Return who else would end, or be hung up, if all processes of the unit end, and must not; "" for nobody.

        A unit that is shared permits it, but of those whom no remedy may end.
        """
        try:
            pids = [each.pid for each in self._look(cgroup)]
        except (OSError, UnreadableTree, MissingFact) as error:
            return f"it cannot be seen whose processes {unit} runs: {error}"
        return self.tied_among(unit, pids, permission, way_out=f"; {SHARED_WAY_OUT}")

    def tied_among(self, unit: str, pids: Collection[int], permission: UnitPermission, *, way_out: str = "") -> str:
        """Return as `tied_with`, of the processes of a unit, container or job; `way_out` is what lifts it."""
        try:
            ties = find_together(self._ties, pids, permission.ending)
        except UnseenProcesses as error:
            return f"it cannot be told whom the end of {unit} would end as well: {error}"
        never = self.never_among(f"the work that depends on {unit}", sorted(ties), permission)
        if never or permission.shared or not ties:
            return never
        named = [
            f"{'' if tie.certain else 'perhaps '}pid {pid} ({tie.row.name} of"
            f" {', '.join(sorted(map(self._name, tie.row.uids)))}, {tie.why})"
            for pid, tie in sorted(ties.items())
        ]
        more = f" and {len(named) - _NAMED} others" if len(named) > _NAMED else ""
        return f"the end of {unit} would also end, or hang up, {', '.join(named[:_NAMED])}{more}{way_out}"

    def _parent_of(self, pid: int) -> int:
        return parse_stat(self._files.read(pid, "stat")).parent_pid

    def shared_with(self, unit: str, cgroup: str, own_uid: int, main_pid: int = 0) -> str:
        """Return why the unit may run other people's work; "" where it runs nothing but what is its own.

        `main_pid` is that of the unit, 0 for none: its own is the container that this monitors.
        """
        try:
            processes = self._look(cgroup)
            own = find_containers(self._files, processes, main_pid)
            return self.shared_among(unit, processes, frozenset({own_uid}), own=own)
        except (OSError, UnreadableTree, MissingFact) as error:
            return f"it cannot be seen whose processes {unit} runs: {error}"

    def shared_among(
        self,
        unit: str,
        processes: Collection[Credentials],
        own_uids: frozenset[int],
        *,
        containers: bool = True,
        own: UnitContainers = NO_CONTAINERS,
    ) -> str:
        """Return as `shared_with`, of the processes of a unit, container or job.

        `containers` says whether a process in a container is another's, but for the `own` one.
        """
        outside = [each for each in processes if not own.holds(each)]
        try:
            if others := self._sign_of_users(unit, processes, own_uids, own):
                return others
            for each in processes:
                if sign := self._sign_of_session(each):
                    return f"somebody's session runs in {unit}: pid {each.pid} {sign}"
            for each in outside if containers else ():
                if each.pid in own.others:
                    return f"{unit} runs containers: pid {each.pid} monitors one that is not the unit's own"
                if sign := self._sign_of_container(each):
                    return f"{unit} runs containers: pid {each.pid} {sign}"
        except (OSError, ValueError, MissingFact) as error:
            return f"it cannot be seen whose processes {unit} runs: {error}"
        return ""

    def _sign_of_users(
        self, unit: str, processes: Collection[Credentials], own_uids: frozenset[int], own: UnitContainers
    ) -> str:
        """Return what shows other users, or several in its own container. Raises OSError, ValueError."""
        outside: Counter[str] = Counter()
        inside: Counter[str] = Counter()
        users = find_users(self._files, processes, own) - own_uids
        for each in processes:
            if own.holds(each):
                inside.update(self._name(uid) for uid in each.uids & users)
            else:
                outside.update(self._name(uid) for uid in each.uids - own_uids)
        if outside:
            return f"{unit} runs processes of other users: {_listed(outside)}"
        several = len(users) > 1
        return f"the container of {unit} runs processes of several users: {_listed(inside)}" if several else ""

    def _sign_of_session(self, process: Credentials) -> str:
        if process.login_uid is not None:
            return f"comes from a login of {self._name(process.login_uid)}"
        if process.in_audit_session:
            return "comes from a login"
        return "has a terminal" if process.has_terminal else ""

    def _sign_of_container(self, process: Credentials) -> str:
        """Return what shows a container: it looks like the unit's own user's. Raise OSError, MissingFact."""
        if process.namespaces > 1:
            return "is in a pid namespace of its own"
        if container := parse_cgroup(process.cgroup or b"").container_id:
            return f"is in container {format_container(container)}"
        own_root = None if (stat := self._living(process)) is None else has_own_root(self._files, stat)
        if own_root is None and self._living(process) is not None:
            raise MissingFact(f"pid {process.pid}: its root directory is unknown")
        return "has a root directory of its own" if own_root else ""

    def _living(self, process: Credentials) -> Stat | None:
        """Read its `stat`; None where it has ended: a zombie has no root directory. Raises OSError, MissingFact."""
        try:
            stat = parse_stat(self._files.read(process.pid, "stat"))
        except (FileNotFoundError, ProcessLookupError):
            return None
        except ValueError as error:
            raise MissingFact(f"pid {process.pid}: {error}") from error
        ended = stat.start_ticks != process.start_ticks or (stat.state in {"Z", "X"} and stat.threads <= 1)
        return None if ended else stat

    def _look(self, cgroup: str) -> list[Credentials]:
        """Read every process until a listing has no unknown one: some end meanwhile, and others begin.

        Raises OSError, UnreadableTree, MissingFact.
        """
        hierarchy = self._hierarchy(cgroup)
        known: dict[int, Credentials] = {}
        for _ in range(_LISTINGS):
            unknown = processes_in(hierarchy.folder(cgroup)) - known.keys()
            if not unknown:
                break
            known |= {each.pid: each for each in self._read(unknown, hierarchy, cgroup)}
        else:
            if unknown := processes_in(hierarchy.folder(cgroup)) - known.keys():
                raise UnreadableTree(f"/proc does not show pid {min(unknown)}, or its processes come and go too fast")
        if not known:
            raise UnreadableTree(f"{hierarchy.folder(cgroup)} has no processes")
        return sorted(known.values(), key=lambda each: each.pid)

    def _read(self, pids: Iterable[int], hierarchy: Hierarchy, cgroup: str) -> Iterable[Credentials]:
        """Leave out who has ended, and who is elsewhere: moved, or another process that was given the number.

        One that is ending tells no place any more: the unit's cgroup has listed it.
        """
        for pid in pids:
            try:
                found = read_credentials(self._files, pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            path = found.cgroup and path_in_hierarchy(found.cgroup, hierarchy.controllers)
            if found.cgroup is None or is_below(path or "", cgroup):
                yield found

    def _hierarchy(self, cgroup: str) -> Hierarchy:
        """Return the hierarchy in which systemd has made this cgroup. Raises OSError, UnreadableTree."""
        if ".." in cgroup.split("/") or not cgroup.startswith("/") or cgroup == "/":
            raise UnreadableTree(f"{cgroup or 'nothing'} is not the cgroup of a unit")
        for hierarchy in systemd_hierarchies(self._mountinfo.read_bytes()):
            if hierarchy.folder(cgroup).is_dir():
                return hierarchy
        raise UnreadableTree(f"there is no cgroup {cgroup}")

    def _name(self, uid: int) -> str:
        try:
            return printable(self._user_of(uid).pw_name, _NAME_BYTES)
        except (KeyError, OverflowError, OSError):
            return str(uid)


def _without_monitors(patterns: Sequence[str]) -> list[str]:
    """Return the never-list without the built-in entry for monitors; the operator's own, behind it, stands."""
    found = list(patterns)
    if MONITOR_ENTRY in found:
        found.remove(MONITOR_ENTRY)
    return found


def _listed(processes_of: Counter[str]) -> str:
    """Name the first few users with the number of their processes: `alice (2), bob (1) and 4 others`."""
    names = sorted(processes_of)
    text = ", ".join(f"{name} ({processes_of[name]})" for name in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{text} and {more} others" if more > 0 else text
