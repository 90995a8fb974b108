"""Find who ends because systemd or logind stops something once processes have ended.

Who waits for whom in a unit or a session cannot be seen: `sudo`, `su` and sshd wait as root, a script waits for a
pipe. So a scope or a service is taken to end with any process of it, and systemd may stop others then (`unit_ends`). So
is a login session, and each session in which a process waits that it was started by. When no session of a user is sure
to stay, logind stops the user's own manager with all that runs in it, and takes away what other processes of the user
may work with (`login_sessions`), unless the user lingers (logind.conf(5), `UserStopDelaySec`). Which unit a process is
in says its cgroup: only root and systemd make the part of the path that is read here.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from gpuagent.procfs.files import ProcFiles
from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.facts import idle_locks, job_starters
from gpuagent_alerts.remedies.facts.job_starters import SupervisorUnits
from gpuagent_alerts.remedies.facts.login_sessions import (
    SESSIONS,
    LoginSession,
    ancestors_of,
    ending_sessions,
    read_sessions,
    users_of,
)
from gpuagent_alerts.remedies.facts.process_scan import (
    ProcessRow,
    ProcessScan,
    SystemdSilent,
    UnseenProcesses,
    list_pids,
)
from gpuagent_alerts.remedies.facts.terminals import OpenFiles
from gpuagent_alerts.remedies.facts.ties import Tie, TieFinder
from gpuagent_alerts.remedies.facts.unit_places import Place, read_place
from gpuagent_alerts.remedies.safeguards.never_list import runs_jobs

_SESSION = re.compile(r"session-[A-Za-z0-9]+\.scope")
_OF_ALL_JOBS = re.compile(r"([A-Za-z0-9.-]+_)?slurmstepd\.scope")
_USER_MANAGER = re.compile(r"user@\d+\.service")
_RUNTIME_DIRECTORY = re.compile(r"user-runtime-dir@\d+\.service|run-user-\d+\.mount|user@\d+\.service")
"""Units of a user's login that end with it and have no process that is anybody's work."""
_LINGER = Path("/var/lib/systemd/linger")
_LOG_NAMESPACE = re.compile(r"systemd-journald(-varlink)?@[^/]+\.(service|socket)")
"""Of `LogNamespace=`: stopped once nobody writes there, and started with whoever does (systemd-journald(8))."""
_WITHOUT_WORK = (".target", ".slice", ".scope", ".device")
_MOST_ROUNDS = 8
_BUS = frozenset({"dbus.service", "dbus-broker.service"})
_OF_A_LOGIN = re.compile(
    r"(gpg-agent|ssh-agent|snapd\.session-agent|dconf|at-spi-dbus-bus|pipewire(-pulse)?|wireplumber|pulseaudio|gvfs-.*"
    r"|xdg-.*)\.service"
)
"""What a user's manager starts for each login; none of it is a person's work."""


class SystemdTieFinder(TieFinder):
    """Finds also who ends by what systemd and logind make of an end."""

    def __init__(
        self,
        files: ProcFiles,
        proven_container: Callable[[int], str] = lambda _: "",
        *,
        ends: Callable[[], UnitEnds] = UnitEnds,
        linger: Path = _LINGER,
        sessions: Path = SESSIONS,
        inhibitors: Path = idle_locks.INHIBITORS,
        configurations: Collection[str] = idle_locks.CONFIGURATIONS,
        user_of: Callable[[int], pwd.struct_passwd] = pwd.getpwuid,
        pids: Callable[[], Collection[int]] = list_pids,
        open_files: OpenFiles | None = None,
        supervisors: SupervisorUnits | None = None,
    ) -> None:
        """Read `files`, which is /proc, and ask systemd by `ends`.

        `supervisors` are the units that root names as such. `linger` has a file for each user who lingers, `sessions`
        one for each session, `inhibitors` one for each lock of logind, whose configuration is in `configurations`;
        `user_of` raises KeyError for unknown uids.
        """
        super().__init__(files, proven_container, pids=pids, open_files=open_files)
        self._proc = files
        self._ends = ends
        self._linger = linger
        self._sessions = sessions
        self._inhibitors = inhibitors
        self._configurations = configurations
        self._user_of = user_of
        self._supervisors = supervisors or SupervisorUnits()
        self._last: tuple[ProcessScan | None, dict[int, Place]] = (None, {})

    def beside_in_units(self, pids: Collection[int], seen: ProcessScan) -> Mapping[str, Collection[ProcessRow]]:
        """Return everybody in each service that one of these runs in.

        With its main and its control process, wherever they run. Left out is who is judged otherwise: in a container,
        in a user's own manager, in a unit that runs the jobs of others. Raises UnseenProcesses, also where one of these
        is the main process of such a service, or one of its commands ends others by name.
        """
        places = self._places_in(seen)
        units = {
            place.unit
            for place in (self._place(places, pid) for pid in pids if pid in seen.rows)
            if place.unit.endswith(".service") and not place.in_container and not _is_judged_by_itself(place.unit)
            and not runs_jobs(place.unit) and place.unit not in self._supervisors
        }  # fmt: skip
        if not units:
            return {}
        ends = self._ends()
        mains = frozenset(ends.main_processes())
        for unit in sorted(units):
            if main := next((pid for pid in pids if (unit, pid) in mains), 0):
                raise UnseenProcesses(f"pid {main} is the main process of {unit}, which ends with it: restart the unit")
            if found := ends.reaching_program(unit):
                raise UnseenProcesses(f"{unit} has {found}, which reaches what is not in the unit, if it fails")
        rows = [(self._place(places, pid).unit, row) for pid, row in seen.rows.items()]
        return {unit: [row for where, row in rows if where == unit or (unit, row.pid) in mains] for unit in units}

    def _find(self, pids: Collection[int], seen: ProcessScan) -> dict[int, Tie]:
        along: dict[int, Tie] = {}
        asked: set[str] = set()
        places = self._places_in(seen)
        ends: UnitEnds | None = None
        sessions: Mapping[str, LoginSession] | None = None
        for _ in range(_MOST_ROUNDS):
            found = {**super()._find({*pids, *along}, seen), **along}
            ended = {pid for pid in (*pids, *found) if pid in seen.rows}
            above = ancestors_of(seen, ended)
            if not any(self._place(places, pid).unit for pid in {*ended, *above}):
                self._refuse_idle_machine(seen, ended, above)
                return found
            ends = ends or self._ends()
            sessions = read_sessions(self._sessions) if sessions is None else sessions
            audit = {pid: self._audit_session(pid) for pid in ended} if sessions else {}
            look = _Look(
                seen, {pid: self._place(places, pid) for pid in seen.rows}, ended, above, ends, asked, sessions, audit,
                self._proc, self._supervisors,
            )  # fmt: skip
            new = {tie.row.pid: tie for tie in self._along(look) if tie.row.pid not in ended}
            if not new:
                self._refuse_idle_machine(seen, ended, above, look.login_that_may_end())
                return found
            along |= new
        raise UnseenProcesses("too many units end one after the other")

    def _refuse_idle_machine(
        self, scan: ProcessScan, ended: Collection[int], above: Collection[int], login: str = ""
    ) -> None:
        """Raise UnseenProcesses where the machine may sleep or be powered off once these and a login have ended."""
        try:
            why = idle_locks.against_end(
                ended, above, scan, self._masters.paths, login, self._inhibitors, self._configurations
            )
        except (OSError, ValueError) as error:
            raise UnseenProcesses(f"who holds the machine awake cannot be read: {error}") from error
        if why:
            raise UnseenProcesses(why)

    def _places_in(self, scan: ProcessScan) -> dict[int, Place]:
        """Return the places that were read for this scan: several questions may be asked about one."""
        last, places = self._last
        if last is not scan:
            places = {}
            self._last = (scan, places)
        return places

    def _along(self, look: _Look) -> Iterator[Tie]:
        """Yield who ends with the units that end."""
        roots = list(look.units_that_end())
        yield from look.beside_who_waits()
        logged_out: set[int] = set()
        # The manager of one who lingers keeps all that: while it runs.
        with_manager = frozenset(look.users_with_manager())
        users = list(look.users_without_session())
        kept = {each for each in users if each in with_manager and self._lingers(each) and look.manager_stays(each)}
        for user_id in users:
            if user_id not in kept:
                logged_out.add(user_id)
                yield from look.in_slice_of(user_id)
                yield from look.working_as(user_id, users_of(look.scan, user_id, self._proc))
                roots += _units_of_login(user_id)
        yield from self._stopped_along(look, roots, logged_out, kept)
        for user_id in kept:
            yield from self._bound_to_login(look, user_id)

    @staticmethod
    def _stopped_along(
        look: _Look, roots: Collection[str], logged_out: Collection[int], kept: Collection[int]
    ) -> Iterator[Tie]:
        """Yield who is in a unit that systemd stops once one of the `roots` has ended. Raises UnseenProcesses."""
        # systemd has StopWhenUnneeded=yes for these of every user.
        needed = {unit for user_id in kept for unit in (f"user-{user_id}.slice", f"user-runtime-dir@{user_id}.service")}
        for unit in roots:
            if unit in look.asked:
                continue
            look.asked.add(unit)
            for other, why in look.ended_with(unit, needed).items():
                if any(look.is_of_login(other, user_id) for user_id in logged_out):
                    continue  # who is in there has been judged
                if _LOG_NAMESPACE.fullmatch(other):
                    continue
                inside = look.in_unit(other)
                if not inside and not other.endswith(_WITHOUT_WORK) and not _RUNTIME_DIRECTORY.fullmatch(other):
                    raise UnseenProcesses(f"{other} ends with {unit} ({why}), and it has no process to judge")
                for row in inside:
                    yield Tie(row, f"in {other}; {why}", may_be_own=False, is_stopped_by_unit=True)

    def _bound_to_login(self, look: _Look, user_id: int) -> Iterator[Tie]:
        """Yield who of others is in a unit that depends on what the manager of one who lingers keeps.

        The user may have told that to exit (`systemctl --user exit`), of which systemd of the system hears at the end.
        """
        for unit in _units_of_login(user_id):
            for other in look.ended_with(unit, ()):
                for row in look.in_unit(other):
                    if look.places[row.pid].user_id != user_id and row.uids != {user_id}:
                        why = f"in {other}, which needs {unit}, and user {user_id} may have told that manager to exit"
                        yield Tie(row, why, may_be_own=False, is_stopped_by_unit=True)

    def _lingers(self, user_id: int) -> bool:
        """Return whether the user's manager stays without a session; False where that cannot be told."""
        try:
            return (self._linger / self._user_of(user_id).pw_name).exists()
        except (KeyError, OverflowError, OSError, ValueError):
            return False

    def _audit_session(self, pid: int) -> str:
        """Return the number of the login that the kernel has for a process; "" where it has none, or none is told."""
        try:
            return self._proc.read(pid, "sessionid").strip().decode("ascii", "replace")
        except (OSError, ValueError):
            return ""

    def _place(self, places: dict[int, Place], pid: int) -> Place:
        if pid not in places:
            places[pid] = read_place(self._proc, pid)
        return places[pid]


def _is_judged_by_itself(unit: str) -> bool:
    """Return whether a unit does not end with a process that waits in it, or is judged as a session."""
    return unit == "init.scope" or any(each.fullmatch(unit) for each in (_SESSION, _USER_MANAGER, _OF_ALL_JOBS))


def _units_of_login(user_id: int) -> Sequence[str]:
    """Return the units that a user has while logged in or lingering."""
    return (
        f"user@{user_id}.service", f"user-runtime-dir@{user_id}.service", f"run-user-{user_id}.mount",
        f"user-{user_id}.slice",
    )  # fmt: skip


class _Look:
    """One look at who is where, and at who ends."""

    def __init__(
        self,
        scan: ProcessScan,
        places: Mapping[int, Place],
        ended: Collection[int],
        above: Collection[int],
        ends: UnitEnds,
        asked: set[str],
        sessions: Mapping[str, LoginSession],
        audit: Mapping[int, str],
        files: ProcFiles,
        supervisors: SupervisorUnits,
    ) -> None:
        """`above` are those from whom the `ended` descend, `audit` has the login of these, and `files` is /proc."""
        self.scan = scan
        self.places = places
        self.asked = asked
        self._ends = ends
        self._files = files
        self._supervisors = supervisors
        self._ended = frozenset(ended)
        self._sessions = sessions
        self._scopes = {pid: place.unit for pid, place in places.items() if _SESSION.fullmatch(place.unit)}
        self._waiting = self._ended | frozenset(above)
        self._ending = ending_sessions(sessions, self._scopes, audit, ended, above)

    @cached_property
    def units_that_wait(self) -> Mapping[str, int]:
        """The other units that may end as well, each with the process for which it may.

        A service ends with its main process, wherever root has moved that, which may be one of these or wait for it:
        whoever one of these descends from may. A scope, and a service without one, ends with all that is in it. What
        starts the jobs of others goes on. Raises UnseenProcesses.
        """
        above = self._waiting - self._ended
        mains = self._main_processes
        with_main = {unit for unit, _ in mains}
        found = {self.places[pid].unit: pid for pid in sorted(above) if self.places[pid].unit not in with_main}
        found |= {unit: pid for unit, pid in mains if pid in above}
        found |= {unit: pid for unit, pid in mains if pid in self._ended}
        inside = {self.places[pid].unit for pid in self._ended}
        return {
            unit: pid
            for unit, pid in found.items()
            if unit and unit not in inside and not _is_judged_by_itself(unit)
            and (pid in self._ended or not self._goes_on(pid, unit))
        }  # fmt: skip

    @cached_property
    def _main_processes(self) -> Collection[tuple[str, int]]:
        """Each service with its main or control process, of which several may have one. Raises UnseenProcesses."""
        try:
            return self._ends.main_processes()
        except SystemdSilent:
            if self._are_apart:
                return ()
            raise

    @property
    def _are_apart(self) -> bool:
        """Whether all are in containers, in no unit, or jobs of Slurm: no unit file means them."""
        places = [self.places[pid] for pid in self._ended]
        return all(each.in_container or not each.unit or _OF_ALL_JOBS.fullmatch(each.unit) for each in places)

    def _goes_on(self, pid: int, unit: str) -> bool:
        """Return whether it starts the jobs of others in this unit, and outlives them. Raises UnseenProcesses."""
        named = unit in self._supervisors and (unit, pid) in self._main_processes
        knows = named or job_starters.goes_on(self._files, self.scan.rows[pid])
        return knows and not self._may_fail_by_any(unit)

    def _may_fail_by_any(self, unit: str) -> bool:
        try:
            return self._ends.may_fail_by_any(unit)
        except SystemdSilent:
            if self._are_apart:
                return False
            raise

    def beside_who_waits(self) -> Iterator[Tie]:
        """Yield who is in a unit that may end so: systemd ends all of it. Raises UnseenProcesses.

        Where a unit runs the jobs of others, so is its main process, unless it is known to go on, and all of the unit
        where systemd listens to any process of it: of no other unit is a single process ended.
        """
        for unit, pid in self.units_that_wait.items():
            yield from self._beside(unit, pid, self._ended if pid in self._ended else self._waiting)
        jobs = {self.places[pid].unit: pid for pid in self._ended if self._runs_jobs(self.places[pid].unit)}
        listening = {unit for unit in jobs if self._may_fail_by_any(unit)}
        for unit in listening:
            yield from self._beside(unit, jobs[unit], self._ended, ", as it has NotifyAccess=all or exec")
        for unit, pid in self._main_processes if jobs else ():
            if unit not in jobs.keys() - listening:
                continue
            if pid in self._ended or (pid in self._waiting and not self._goes_on(pid, unit)):
                yield from self._beside(unit, pid, self._ended)

    def _runs_jobs(self, unit: str) -> bool:
        return runs_jobs(unit) or unit in self._supervisors

    def _beside(self, unit: str, pid: int, judged: Collection[int], how: str = "") -> Iterator[Tie]:
        for row in self.in_unit(unit):
            if row.pid not in judged:
                why = f"in {unit}, which may end with pid {pid}{how}"
                yield Tie(row, why, may_be_own=False, is_stopped_by_unit=True)

    def in_unit(self, unit: str) -> Collection[ProcessRow]:
        """Return the processes of a unit, and those that systemd ends with it wherever they run."""
        mains = {pid for of, pid in self._main_processes if of == unit}
        return [row for pid, row in self.scan.rows.items() if self.places[pid].unit == unit or pid in mains]

    def units_that_end(self) -> Iterator[str]:
        """Yield the units that may lose their main process, or their last one: all in which one of these is.

        And those that wait for one of these, as far as that is known. A user's own manager ends with itself alone: what
        it runs is in units of its own. The scope of all Slurm jobs stays while anybody else is in there: `slurmstepd
        infinity` of root's holds it.
        """
        found = {self.places[pid].unit for pid in self._ended} - {""}
        found |= {f"session-{name}.scope" for name in self._ending}
        found |= self.units_that_wait.keys()
        for unit in sorted(found - self.asked):
            if _OF_ALL_JOBS.fullmatch(unit) and not self._loses_all(unit):
                continue
            if not _USER_MANAGER.fullmatch(unit) or any(self._is_manager_of(unit, pid) for pid in self._ended):
                yield unit

    def _loses_all(self, unit: str) -> bool:
        below = {pid for pid, _ in self.scan.descendants(self._ended)}
        return {pid for pid, place in self.places.items() if place.unit == unit} <= self._waiting | below

    def _is_manager_of(self, unit: str, pid: int) -> bool:
        row, place = self.scan.rows[pid], self.places[pid]
        return place.unit == unit and place.inner == "init.scope" and row.parent_pid == 1

    def users_with_manager(self) -> Iterator[int]:
        """Yield the users whose own manager runs and does not end."""
        for pid in self.scan.rows.keys() - self._ended:
            place = self.places[pid]
            if place.user_id is not None and self._is_manager_of(f"user@{place.user_id}.service", pid):
                yield place.user_id

    def manager_stays(self, user_id: int) -> bool:
        """Return whether systemd runs the user's own manager, and is not about to stop it. Raises UnseenProcesses."""
        return self._ends.runs(f"user@{user_id}.service")

    def login_that_may_end(self) -> str:
        """Return a login session that may end with these, or a slice of a user, for which one may wait; or ""."""
        if self._ending:
            return f"session {min(self._ending)}"
        users = {user_id for pid in self._ended if (user_id := self.places[pid].user_id) is not None}
        return f"a session of user {min(users)}" if users else ""

    def ended_with(self, unit: str, needed: Collection[str]) -> Mapping[str, str]:
        """Return the units that systemd stops then, where some stay `needed`. Raises UnseenProcesses.

        Of the scope of a container, which has the container's id for a name, no unit file knows before it is there but
        drop-ins of all such scopes: where systemd cannot be asked, nothing depends on it.
        """
        try:
            return self._ends.ended_with(unit, needed)
        except SystemdSilent:
            if unit.endswith(".scope") and self._is_a_container(unit):
                return {}
            raise

    def _is_a_container(self, unit: str) -> bool:
        inside = [self.places[pid] for pid in self._ended if self.places[pid].unit == unit]
        return bool(inside) and all(each.in_container and len(each.unit) > 64 for each in inside)

    def users_without_session(self) -> Iterator[int]:
        """Yield the users whose last session may end with these: of whom a session may, or any unit of the user's.

        No other session is sure to stay: its leader may wait for one of these by a pipe, a bus or a file, as `tmux
        attach`, `systemd-run --wait` and `tail --pid` do, and nobody can see that.
        """
        meant = {each.user_id for each in self._sessions.values() if each.name in self._ending}
        meant |= {user_id for pid in self._ended if (user_id := self.places[pid].user_id) is not None}
        for pid, scope in self._scopes.items():
            user_id = self.places[pid].user_id
            if user_id is not None and self._is_ending(scope):
                meant.add(user_id)
        yield from sorted(meant)

    def _is_ending(self, scope: str) -> bool:
        return scope.removeprefix("session-").removesuffix(".scope") in self._ending

    def _is_in_open_session(self, pid: int) -> bool:
        """Return whether it is in a session which logind does not close: whoever waits there ends by itself alone."""
        name = self._scopes.get(pid, "").removeprefix("session-").removesuffix(".scope")
        session = self._sessions.get(name)
        return session is not None and session.keeps_user and session.leader in self.scan.rows

    def in_slice_of(self, user_id: int) -> Iterator[Tie]:
        """Yield who runs in the user's slice beside such sessions, but for the user's manager itself and its bus."""
        for pid, place in self.places.items():
            row = self.scan.rows[pid]
            if place.user_id != user_id or self._is_manager(row, place, user_id):
                continue
            if self._is_in_ending_session(pid) or self._is_in_open_session(pid):
                continue
            why = f"in {place.inner or place.unit} of user@{user_id}.service, which logind stops after the last session"
            if place.unit in self._scopes.values():
                why = f"in {place.unit}, a session that is not sure to keep what user {user_id} has"
            way_out = f"{why}; `loginctl enable-linger {user_id}` keeps it"
            is_own = row.uids == {user_id} and _OF_A_LOGIN.fullmatch(place.inner) is not None
            yield Tie(row, why if is_own else way_out, may_be_own=False, is_own=is_own)

    def is_of_login(self, unit: str, user_id: int) -> bool:
        """Return whether a unit is the user's manager, or a session of the user."""
        if _SESSION.fullmatch(unit):
            return any(self.places[pid].user_id == user_id for pid, scope in self._scopes.items() if scope == unit)
        return unit == f"user@{user_id}.service"

    def working_as(self, user_id: int, pids: Iterable[int]) -> Iterator[Tie]:
        """Yield those of these who are outside of the user's slice and work on something that logind takes away."""
        for pid in pids:
            if self.places[pid].user_id != user_id and not self._is_in_ending_session(pid):
                why = (
                    f"whose /run/user/{user_id} and shared memory logind takes away after the last session of user"
                    f" {user_id}; `loginctl enable-linger {user_id}` keeps them"
                )
                yield Tie(self.scan.rows[pid], why, may_be_own=False)

    def _is_in_ending_session(self, pid: int) -> bool:
        """Return whether it is in a session that may end: while it lives there, nothing is taken away."""
        return pid in self._scopes and self._is_ending(self._scopes[pid])

    def _is_manager(self, row: ProcessRow, place: Place, user_id: int) -> bool:
        if place.unit != f"user@{user_id}.service":
            return False
        if place.inner == "init.scope":
            return row.name == "(sd-pam)" or (row.name == "systemd" and row.parent_pid == 1)
        return place.inner in _BUS and row.name.startswith("dbus-") and row.uids == {user_id}
