"""Find who ends, is hung up, or is stopped for good when others end: the one answer for every kind of step.

Only what the kernel does counts (`pid_namespaces` and `terminals` say how), what a child may have asked it for, and
what a container's runtime does (`container_ends`). A process of the same user that merely gets another parent lives on
and is not tied. Of a signal at the end of a parent (PR_SET_PDEATHSIG) the kernel tells nobody: so a descendant in
another place or of another user counts, and the target's own children are its own work.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo
from gpuagent.procfs.credentials import read_uids
from gpuagent.procfs.files import ProcFiles, parse_stat
from gpuagent.procfs.programs import read_program
from gpuagent_alerts.remedies.facts.checkpoints import find_certain_restore
from gpuagent_alerts.remedies.facts.container_ends import ContainerEnds
from gpuagent_alerts.remedies.facts.container_namespaces import used_by_others
from gpuagent_alerts.remedies.facts.never_entries import NO_ENTRIES, NeverListSnapshot
from gpuagent_alerts.remedies.facts.open_terminals import Slave
from gpuagent_alerts.remedies.facts.own_work import ProcessInfoReader, is_anothers_session, is_own_work
from gpuagent_alerts.remedies.facts.pid_namespaces import ended_with_init
from gpuagent_alerts.remedies.facts.process_scan import (
    GONE,
    Placement,
    ProcessRow,
    ProcessScan,
    UnseenProcesses,
    list_pids,
    read_placement,
)
from gpuagent_alerts.remedies.facts.served_devices import against_end
from gpuagent_alerts.remedies.facts.terminals import (
    Master,
    OpenFiles,
    PtyMasters,
    in_foreground_of,
    in_old_foreground_of,
    in_orphaned_groups,
    pty_number,
)
from gpuagent_alerts.remedies.target import MAX_TIED, TiedProcess, Ties

MastersOf = Callable[[int], frozenset[Master]]


class Tie(NamedTuple):
    """A process that depends on others."""

    row: ProcessRow
    why: str
    """Reason in words that follow the name of the process."""
    certain: bool = True
    """False where it only may depend on them: the agent lacks the right to see it."""
    may_be_own: bool = True
    """Whether it may be the target's own work, by its user and place. A session at a terminal is a person's."""
    is_own: bool = False
    """Whether it is nobody's work but the target's user's, wherever it runs."""
    is_stopped_by_unit: bool = False
    """Whether systemd stops its unit once another one has ended."""


class TieFinder:
    """Reads /proc; it may block, so it is called in a thread."""

    def __init__(
        self,
        files: ProcFiles,
        proven_container: Callable[[int], str] = lambda _: "",
        *,
        pids: Callable[[], Collection[int]] = list_pids,
        open_files: OpenFiles | None = None,
    ) -> None:
        """`proven_container` returns the id of the container of a process that root has named, "" for none."""
        self._files = files
        self._proven_container = proven_container
        self._pids = pids
        self._masters = PtyMasters(files, open_files or OpenFiles())

    def scan(self) -> ProcessScan:
        """Read all processes. Raises UnseenProcesses."""
        return ProcessScan(self._files, self._pids)

    def find(self, pids: Collection[int], scan: ProcessScan | None = None) -> Mapping[int, Tie]:
        """Return everybody else who ends, is hung up or is stopped for good when these processes end, by pid.

        Who ends with them takes further ones along. A pid that no process has is tied to nobody. Raises
        UnseenProcesses where that cannot be seen.
        """
        seen = scan or self.scan()
        with self._masters.time.one_look():
            found = self._find(pids, seen)
        self._refuse_unnamed(seen, {pid for pid in (*pids, *found) if pid in seen.rows})
        return found

    def beside_in_units(self, pids: Collection[int], seen: ProcessScan) -> Mapping[str, Collection[ProcessRow]]:  # noqa: ARG002
        """Return everybody in the services of these processes, which may fail with one of them; this one knows none."""
        return {}

    def _find(self, pids: Collection[int], seen: ProcessScan) -> dict[int, Tie]:
        """Return as `find`; whether others that cannot be named end as well is left open."""
        ended = {pid for pid in pids if pid in seen.rows}
        masters = cache(self._masters.held_by)
        containers = ContainerEnds(self._files, seen.rows)
        found: dict[int, Tie] = {}
        while True:
            new: dict[int, Tie] = {}
            for tie in self._direct(seen, ended, masters, containers):
                if tie.row.pid not in ended:
                    new.setdefault(tie.row.pid, tie)
            if not new:
                break
            found |= new
            ended |= new.keys()
        for tie in self._others_work(seen, ended):
            found.setdefault(tie.row.pid, tie)
        for tie in self._cut_off(seen, ended, containers):
            found.setdefault(tie.row.pid, tie)
        for tie in self._through_descendants(seen, ended, masters, containers):
            found.setdefault(tie.row.pid, tie)
        return found

    def _through_descendants(
        self, scan: ProcessScan, ended: Collection[int], masters_of: MastersOf, containers: ContainerEnds
    ) -> Iterator[Tie]:
        """Yield who depends on a descendant, which may end with its parent, by a signal that it has asked for."""
        family = {pid for pid, _ in scan.descendants(ended)}.union(ended)
        if len(family) == len(ended):
            return
        while True:
            new: dict[int, Tie] = {}
            for tie in self._direct(scan, family, masters_of, containers):
                if tie.row.pid not in family:
                    new.setdefault(tie.row.pid, tie)
            if not new:
                return
            for tie in new.values():
                yield tie._replace(why=f"{tie.why}, and may end with what has started it", certain=False)
            family.update(new, (pid for pid, _ in scan.descendants(new)))

    def _refuse_unnamed(self, scan: ProcessScan, ended: Collection[int]) -> None:
        """Raise UnseenProcesses where the end of these reaches others that cannot be named."""
        family = {pid for pid, _ in scan.descendants(ended)}.union(ended)  # PR_SET_PDEATHSIG shows nowhere
        try:
            why = against_end(scan, self._masters, family)
        except (OSError, ValueError) as error:
            raise UnseenProcesses(f"the open files of a process cannot be read: {error}") from error
        if why:
            raise UnseenProcesses(why)

    def _direct(
        self, scan: ProcessScan, ended: Collection[int], masters_of: MastersOf, containers: ContainerEnds
    ) -> Iterator[Tie]:
        """Yield whom the kernel or a runtime ends, or hangs up, with these; the first one for a pid stands."""
        for pid in ended:
            if scan.rows[pid].is_namespace_init:
                inside = ended_with_init(scan, self._files, self._proven_container, scan.rows[pid])
                for other, certain in inside.items():
                    yield Tie(scan.rows[other], f"in the pid namespace of pid {pid}", certain)
            for row in containers.ended_with(scan.rows[pid]):
                yield Tie(row, f"in the container of pid {pid}, without a pid namespace of its own")
        yield from _signaled_parents(scan, ended)
        yield from self._sessions_held(scan, ended, masters_of)
        yield from self._sessions_in_flight(scan, ended)
        for pid in ended:
            for row in in_foreground_of(scan, scan.rows[pid]):
                yield Tie(row, f"in the foreground of the terminal of pid {pid}")
        for row in in_orphaned_groups(scan, ended):
            yield Tie(row, "a stopped job that nobody else could continue")
        yield from self._tracees(scan, ended)
        for pid in ended:
            for row in in_old_foreground_of(scan, scan.rows[pid]):
                why = f"in the session of pid {pid}, maybe in the foreground of a terminal that was hung up before"
                yield Tie(row, why, certain=False)

    def _cut_off(self, scan: ProcessScan, ended: Collection[int], containers: ContainerEnds) -> Iterator[Tie]:
        """Yield who loses the network or the IPC of a container whose first process is among these."""
        for pid in ended:
            inside = containers.led_by(first := scan.rows[pid])
            users = [] if inside is None else list(used_by_others(self._files, pid, inside, scan.rows))
            rows = [scan.rows[other] for other, _ in users]
            if any(row.start_ticks < first.start_ticks and containers.led_by(row) is not None for row in rows):
                continue  # its container was given that of an older one
            for other, what in users:
                if other not in ended:
                    why = f"in the {what} namespace of the container of pid {pid}, which is taken down with that"
                    yield Tie(scan.rows[other], why, may_be_own=False)

    def _tracees(self, scan: ProcessScan, ended: Collection[int]) -> Iterator[Tie]:
        """Yield whom they trace: with PTRACE_O_EXITKILL it ends, and without it may stay stopped (ptrace(2))."""
        traced = [row for row in scan.rows.values() if row.tracer]
        if not traced:
            return
        threads: dict[int, int] = {}
        for pid in ended:
            try:
                threads |= dict.fromkeys((pid, *self._files.threads(pid)), pid)
            except GONE:
                continue
            except OSError as error:
                raise UnseenProcesses(f"the threads of pid {pid} cannot be read: {error}") from error
        for row in traced:
            if tracer := threads.get(row.tracer):
                yield Tie(row, f"traced by pid {tracer}")

    def _sessions_held(self, scan: ProcessScan, ended: Collection[int], masters_of: MastersOf) -> Iterator[Tie]:
        """Yield who works on a terminal whose other side nobody but these has open."""
        held: list[tuple[int, Master]] = []
        hidden: list[ProcessRow] = []
        for holder in self._masters.time.rows(scan.rows[pid] for pid in ended):
            try:
                held += [(holder.pid, master) for master in masters_of(holder.pid)]
            except PermissionError:
                hidden.append(holder)
            except (OSError, ValueError) as error:
                raise UnseenProcesses(f"the open files of pid {holder.pid} cannot be read: {error}") from error
        for holder in hidden:
            yield from _perhaps_held(scan, _at_terminals(scan, ended), holder)
        if held:
            yield from self._on_terminals(scan, ended, held)

    def _on_terminals(
        self, scan: ProcessScan, ended: Collection[int], held: Iterable[tuple[int, Master]]
    ) -> Iterator[Tie]:
        """Yield who works on a terminal whose other side these have open, and nobody beside them."""
        family = {pid for pid, _ in scan.descendants(ended)}.union(ended)
        slaves = self._terminals_open(scan, ended)
        others = cache(lambda: self._masters.of_all(row for row in scan.rows.values() if row.pid not in family))
        mates: dict[int, set[Slave]] = defaultdict(set)
        for each, its in slaves.items():
            if scan.rows[each].terminal:
                mates[scan.rows[each].session] |= its
        users = [scan.rows[each] for each in slaves if slaves[each] or scan.rows[each].terminal]
        for pid, master in held:
            there = [row for row in users if self._masters.is_on(row, master, slaves[row.pid], mates[row.session])]
            # One that was forked by them may have the master too, and end with its parent.
            if there and not (master.file_system and (master.number, master.file_system) in others()):
                for row in there:
                    why = f"on the terminal pts/{master.number}, whose other side pid {pid} has open"
                    # What it has started with a terminal in the place of a pipe is no session.
                    yield Tie(row, why, may_be_own=not row.terminal and row.pid in family)

    def _sessions_in_flight(self, scan: ProcessScan, ended: Collection[int]) -> Iterator[Tie]:
        """Yield who works on a terminal whose other side is seen with nobody, where one of these may keep it unseen."""
        keeper = 0
        for pid in (row.pid for row in self._masters.time.rows(scan.rows[each] for each in ended)):
            try:
                keeper = keeper or (pid if self._masters.may_have_in_flight(pid) else 0)
            except PermissionError:  # by descent then, as `_perhaps_held` has it
                continue
            except (OSError, ValueError) as error:
                raise UnseenProcesses(f"the open files of pid {pid} cannot be read: {error}") from error
        if not keeper:
            return
        others = [row for row in scan.rows.values() if row.pid not in ended]
        for row, number in self._masters.unheld(others, scan.rows.values()):
            where = f"the terminal pts/{number}" if number >= 0 else "a terminal"
            why = f"on {where}, whose other side is with nobody: it may lie unread in a socket of pid {keeper}"
            yield Tie(row, why, certain=False, may_be_own=False)

    def _terminals_open(self, scan: ProcessScan, ended: Collection[int]) -> Mapping[int, frozenset[Slave]]:
        """Return the terminals that each other process has open. Raises UnseenProcesses where that takes too long."""
        others = [row for row in scan.rows.values() if row.pid not in ended]
        return {row.pid: self._masters.slaves(row.pid) for row in self._masters.time.rows(others)}

    def _others_work(self, scan: ProcessScan, ended: Collection[int]) -> Iterator[Tie]:
        """Yield descendants of another user, cgroup or login."""
        places: dict[int, Placement] = {}
        for pid, ancestor in scan.descendants(ended):
            row, above = scan.rows[pid], scan.rows[ancestor]
            if row.uids != above.uids:
                yield Tie(row, f"started by pid {ancestor}, and of another user")
                continue
            try:
                uids = set(read_uids(self._files, pid, tuple(row.uids)))
                if uids != row.uids:
                    is_of = "is of another user" if uids else "may be of another user: it cannot be told"
                    yield Tie(row, f"started by pid {ancestor}, and a thread of it {is_of}")
                    continue
                if ancestor not in places:
                    places[ancestor] = read_placement(self._files, ancestor)
                if why := places[ancestor].difference(read_placement(self._files, pid)):
                    yield Tie(row, f"started by pid {ancestor}, and {why}")
            except GONE:
                continue
            except (OSError, ValueError) as error:
                raise UnseenProcesses(f"where pid {pid} runs cannot be read: {error}") from error


def _signaled_parents(scan: ProcessScan, ended: Collection[int]) -> Iterator[Tie]:
    """Yield the parents to whom the kernel sends another signal than SIGCHLD, of other users' too, when these end."""
    for pid in ended:
        row = scan.rows[pid]
        if row.parent_pid in scan.rows and row.exit_signal > 0 and row.exit_signal != signal.SIGCHLD:
            why = f"to which the kernel sends signal {row.exit_signal} when pid {pid} ends, as it was started with that"
            yield Tie(scan.rows[row.parent_pid], why, certain=False, may_be_own=False)


def _at_terminals(scan: ProcessScan, ended: Collection[int]) -> list[ProcessRow]:
    return [row for row in scan.rows.values() if pty_number(row.terminal) is not None and row.pid not in ended]


def _perhaps_held(scan: ProcessScan, at_terminals: Collection[ProcessRow], holder: ProcessRow) -> Iterator[Tie]:
    """Yield who may be on a terminal of a process whose open files may not be read, by descent.

    A terminal program starts the leader of the session itself. One that was started by a process that has ended since,
    or by a manager (`systemd-run --pty`), descends from an ancestor of the holder that adopts orphans, the first
    process or another (PR_SET_CHILD_SUBREAPER, which /proc does not tell): of those, whatever is of the same user and
    began after the holder may be meant.
    """
    above = set(_ancestors(scan, holder))
    meant = {
        row.pid
        for row in at_terminals
        if row.pid == row.session
        and row.pid not in above
        and (row.parent_pid == holder.pid or _may_be_adopted(row, holder, above))
    }
    for row in at_terminals:
        if row.session in meant:
            why = f"on a terminal whose other side pid {holder.pid} may have open, which takes CAP_SYS_PTRACE to see"
            yield Tie(row, why, certain=False, may_be_own=False)


def _may_be_adopted(row: ProcessRow, holder: ProcessRow, above: Collection[int]) -> bool:
    """Return whether a process may have been started by the holder or its children, by parent, user and start."""
    if not row.uids & holder.uids:
        return False
    return row.parent_pid == 1 or (row.parent_pid in above and row.start_ticks >= holder.start_ticks)


def _ancestors(scan: ProcessScan, row: ProcessRow) -> Iterator[int]:
    met: set[int] = set()
    while row.parent_pid in scan.rows and row.parent_pid not in met:
        met.add(row.parent_pid)
        row = scan.rows[row.parent_pid]
    yield from met


def find_together(
    finder: TieFinder, pids: Collection[int], ending: Collection[ProcessId], scan: ProcessScan | None = None
) -> Mapping[int, Tie]:
    """Return as `find`, and also whom only the end of `ending` together with these takes along.

    Those are about to end anyway, or were asked to and live on. Who is tied to them alone was judged with them. Raises
    UnseenProcesses.
    """
    seen = scan or finder.scan()
    alone = finder.find(pids, seen)
    others = {
        one.pid for one in ending if one.pid in seen.rows and seen.rows[one.pid].start_ticks == one.start_ticks
    }.difference(pids)
    if not others or not seen.rows.keys() & set(pids):
        return alone
    before = finder.find(others, seen)
    together = f"if pid {', '.join(map(str, sorted(others)))} ends too, which was asked for"
    joint = {
        pid: tie._replace(why=f"{tie.why}, {together}")
        for pid, tie in finder.find({*pids, *others}, seen).items()
        if pid not in before
    }
    return {**joint, **alone}


def read_ties(
    files: ProcFiles,
    reader: ProcessInfoReader,
    pids: Collection[int],
    *,
    ending: Collection[ProcessId] = (),
    finder: TieFinder | None = None,
    scan: ProcessScan | None = None,
    never: NeverListSnapshot = NO_ENTRIES,
    with_units: bool = False,
) -> Ties:
    """Return everybody who ends, is hung up or is stopped for good together with these processes.

    `ending` are others whose end is asked for. `never` knows the operator's entries of the never-list. `with_units`
    counts everybody in the services of the processes as well, and who ends with those. It ends with the first beyond
    `MAX_TIED`. It may block.
    """
    looks = finder or TieFinder(files, reader.proven_container)
    try:
        seen = scan or looks.scan()
        units = looks.beside_in_units(pids, seen) if with_units else {}
        ties = find_together(looks, pids, ending, seen)
        if units:
            ties = {**in_units(looks, units, pids, ending, seen), **ties}
        of = list(_existing(reader, pids)) if ties else []
        return Ties(_read_all(files, reader, seen.rows, ties, of, never), units=frozenset(units))
    except UnseenProcesses as error:
        return Ties(unseen=str(error))
    except (OSError, ValueError) as error:
        return Ties(unseen=f"a process that depends on it cannot be read: {error}")


def _read_all(
    files: ProcFiles,
    reader: ProcessInfoReader,
    rows: Mapping[int, ProcessRow],
    ties: Mapping[int, Tie],
    of: Sequence[ProcessInfo],
    never: NeverListSnapshot,
) -> tuple[TiedProcess, ...]:
    """Return what is judged of each that still is the one that was found, up to the first beyond `MAX_TIED`."""
    found: list[TiedProcess] = []
    for pid in sorted(ties):
        try:
            member = _read_tied(files, reader, rows, ties[pid], of, never)
        except GONE:
            continue
        if member.start_ticks == ties[pid].row.start_ticks:
            found.append(member)
        if len(found) > MAX_TIED:
            break
    return tuple(found)


def in_units(
    finder: TieFinder,
    units: Mapping[str, Collection[ProcessRow]],
    pids: Collection[int],
    ending: Collection[ProcessId],
    seen: ProcessScan,
) -> Mapping[int, Tie]:
    """Return who ends where these units end too: everybody in there, and whoever depends on those."""
    inside = {row.pid: (row, unit) for unit, rows in units.items() for row in rows if row.pid not in pids}
    along = find_together(finder, {*pids, *inside}, ending, seen)
    beside = {
        pid: Tie(row, f"in {unit}, which systemd may stop or start again", certain=False, may_be_own=False)
        for pid, (row, unit) in inside.items()
    }
    return {**along, **beside}


def read_ties_of_unit(
    files: ProcFiles, reader: ProcessInfoReader, unit: str, rows: Collection[ProcessRow], finder: TieFinder,
    scan: ProcessScan,
) -> Ties:  # fmt: skip
    """Return who ends with a service: these, who are in there, and whoever depends on them. It may block."""
    try:
        ties = in_units(finder, {unit: rows}, (), (), scan)
        return Ties(_read_all(files, reader, scan.rows, ties, (), NO_ENTRIES), units=frozenset({unit}))
    except UnseenProcesses as error:
        return Ties(unseen=str(error))
    except (OSError, ValueError) as error:
        return Ties(unseen=f"a process in {unit} cannot be read: {error}")


def _existing(reader: ProcessInfoReader, pids: Collection[int]) -> Sequence[ProcessInfo]:
    found = []
    for pid in pids:
        with suppress(*GONE):
            found.append(reader.read(pid).info)
    return found


def _read_tied(
    files: ProcFiles,
    reader: ProcessInfoReader,
    rows: Mapping[int, ProcessRow],
    tie: Tie,
    of: Sequence[ProcessInfo],
    never: NeverListSnapshot,
) -> TiedProcess:
    """Return what is judged of a process that is tied to these. Raises as `ProcessInfoReader.read`."""
    pid = tie.row.pid
    info = reader.read(pid).info
    score = None
    with suppress(OSError, ValueError):
        score = int(files.read(pid, "oom_score_adj"))
    belongs = tie.is_own or (
        tie.may_be_own
        and any(
            is_own_work(files, reader, pid, each) and not is_anothers_session(reader, rows, tie.row, each)
            for each in of
        )
    )
    program = read_program(files, pid)
    return TiedProcess(
        pid,
        info.id.start_ticks,
        tuple(dict.fromkeys((info.name, *program.names))),
        info.user or str(info.uid),
        belongs,
        tie.certain,
        score,
        tie.why,
        never.reason(files, pid, program),
        tie.is_stopped_by_unit,
        find_certain_restore(files, parse_stat(files.read(pid, "stat"))),
    )
