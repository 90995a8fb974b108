"""Find who ends because systemd or logind stops something once processes have ended.

A unit ends with its main process or with its last one, and systemd may stop others then (`unit_ends`). When the last
session of a user has ended, logind stops the user's own manager with all that runs in it, unless the user lingers
(logind.conf(5), `UserStopDelaySec`). Which unit a process is in says its cgroup: only root and systemd make the part of
the path that is read here.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpuagent.procfs.cgroup import leaves, parse_cgroup
from gpuagent.procfs.files import ProcFiles, parse_stat, read_living
from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, ProcessScan, UnseenProcesses, list_pids
from gpuagent_alerts.remedies.facts.terminals import OpenFiles
from gpuagent_alerts.remedies.facts.ties import Tie, TieFinder

_TREES = ("", "name=systemd")
_GONE = (FileNotFoundError, ProcessLookupError)
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,250}\.(service|scope)")
_USER_SLICE = re.compile(r"user-(\d+)\.slice")
_SESSION = re.compile(r"session-[A-Za-z0-9]+\.scope")
_USER_MANAGER = re.compile(r"user@\d+\.service")
_RUNTIME_DIRECTORY = re.compile(r"user-runtime-dir@\d+\.service")
_LINGER = Path("/var/lib/systemd/linger")
_WITHOUT_WORK = (".target", ".slice", ".scope", ".device")
_MOST_ROUNDS = 8
_BUS = frozenset({"dbus.service", "dbus-broker.service"})
_OF_A_LOGIN = re.compile(r"(gpg-agent|ssh-agent|pipewire(-pulse)?|wireplumber|pulseaudio|gvfs-.*|xdg-.*)\.service")
"""What a user's manager starts for each login; none of it is a person's work."""


class _Place(NamedTuple):
    """Where systemd has put a process."""

    unit: str
    """The unit of the system's manager, "" for none."""
    user_id: int | None
    """The user in whose slice it is."""
    inner: str
    """The unit of the user's own manager, "" for none."""
    in_container: bool


class SystemdTieFinder(TieFinder):
    """Finds also who ends by what systemd and logind make of an end."""

    def __init__(
        self,
        files: ProcFiles,
        proven_container: Callable[[int], str] = lambda _: "",
        *,
        ends: Callable[[], UnitEnds] = UnitEnds,
        linger: Path = _LINGER,
        user_of: Callable[[int], pwd.struct_passwd] = pwd.getpwuid,
        pids: Callable[[], Collection[int]] = list_pids,
        open_files: OpenFiles | None = None,
    ) -> None:
        """Read `files`, which is /proc, and ask systemd by `ends`.

        `linger` has a file for each user who lingers; `user_of` raises KeyError for unknown uids.
        """
        super().__init__(files, proven_container, pids=pids, open_files=open_files)
        self._proc = files
        self._ends = ends
        self._linger = linger
        self._user_of = user_of
        self._last: tuple[ProcessScan | None, dict[int, _Place]] = (None, {})

    def find(self, pids: Collection[int], scan: ProcessScan | None = None) -> Mapping[int, Tie]:
        """See `TieFinder.find`."""
        seen = scan or self.scan()
        along: dict[int, Tie] = {}
        asked: set[str] = set()
        places = self._places_in(seen)
        ends: UnitEnds | None = None
        for _ in range(_MOST_ROUNDS):
            found = {**super().find({*pids, *along}, seen), **along}
            ended = {pid for pid in (*pids, *found) if pid in seen.rows}
            if not any(self._place(places, pid).unit for pid in ended):
                return found
            ends = ends or self._ends()
            look = _Look(seen, {pid: self._place(places, pid) for pid in seen.rows}, ended, ends, asked)
            new = {tie.row.pid: tie for tie in self._along(look) if tie.row.pid not in ended}
            if not new:
                return found
            along |= new
        raise UnseenProcesses("too many units end one after the other")

    def _places_in(self, scan: ProcessScan) -> dict[int, _Place]:
        """Return the places that were read for this scan: several questions may be asked about one."""
        last, places = self._last
        if last is not scan:
            places = {}
            self._last = (scan, places)
        return places

    def _along(self, look: _Look) -> Iterator[Tie]:
        """Yield who ends with the units that end."""
        roots = dict.fromkeys(look.units_that_end(), "")
        for user_id in look.users_without_session():
            if not self._lingers(user_id):
                yield from look.in_slice_of(user_id)
                roots[f"user@{user_id}.service"] = ""
        for unit in roots:
            if unit in look.asked:
                continue
            look.asked.add(unit)
            for other, why in look.ended_with(unit).items():
                inside = [row for pid, row in look.scan.rows.items() if look.places[pid].unit == other]
                if not inside and not other.endswith(_WITHOUT_WORK) and not _RUNTIME_DIRECTORY.fullmatch(other):
                    raise UnseenProcesses(f"{other} ends with {unit} ({why}), and it has no process to judge")
                for row in inside:
                    yield Tie(row, f"in {other}; {why}", may_be_own=False, is_stopped_by_unit=True)

    def _lingers(self, user_id: int) -> bool:
        """Return whether the user's manager stays without a session; False where that cannot be told."""
        try:
            return (self._linger / self._user_of(user_id).pw_name).exists()
        except (KeyError, OverflowError, OSError, ValueError):
            return False

    def _place(self, places: dict[int, _Place], pid: int) -> _Place:
        if pid not in places:
            places[pid] = self._read_place(pid)
        return places[pid]

    def _read_place(self, pid: int) -> _Place:
        try:
            stat = parse_stat(self._proc.read(pid, "stat"))
            data = read_living(self._proc, stat, lambda thread: thread.read("cgroup")) or b""
        except _GONE:
            return _Place("", None, "", in_container=False)
        except (OSError, ValueError) as error:
            raise UnseenProcesses(f"in which unit pid {pid} runs cannot be read: {error}") from error
        trees = {each.controllers: each.segments for each in leaves(data)}
        path = next((trees[name] for name in _TREES if trees.get(name)), ())
        unit, rest, user_id = "", path, None
        for index, segment in enumerate(path):
            if found := _USER_SLICE.fullmatch(segment):
                user_id = int(found[1])
            if not segment.endswith(".slice"):
                unit, rest = (segment if _UNIT.fullmatch(segment) else ""), path[index + 1 :]
                break
        inner = next((each for each in rest if not each.endswith(".slice")), "") if unit else ""
        return _Place(unit, user_id, inner, in_container=bool(parse_cgroup(data).container_id))


class _Look:
    """One look at who is where, and at who ends."""

    def __init__(
        self,
        scan: ProcessScan,
        places: Mapping[int, _Place],
        ended: Collection[int],
        ends: UnitEnds,
        asked: set[str],
    ) -> None:
        self.scan = scan
        self.places = places
        self.asked = asked
        self._ends = ends
        self._ended = frozenset(ended)
        self._family = self._with_family(ended)

    def _with_family(self, ended: Collection[int]) -> frozenset[int]:
        """Add the children of those that end, and a parent in the same unit that has no other child.

        They mostly end with them: workers, and the script that has waited.
        """
        family = {*ended, *(pid for pid, _ in self.scan.descendants(ended))}
        for pid in ended:
            row = self.scan.rows[pid]
            while (above := self.scan.rows.get(row.parent_pid)) and above.pid not in family:
                alone = family.issuperset(self.scan.children.get(above.pid, ()))
                if not alone or above.uids != row.uids or self.places[above.pid].unit != self.places[pid].unit:
                    break
                family.add(above.pid)
                row = above
        return frozenset(family)

    def units_that_end(self) -> Iterator[str]:
        """Yield the units that lose their main process, or their last one. Raises UnseenProcesses."""
        for unit in sorted({self.places[pid].unit for pid in self._ended} - {""} - self.asked):
            inside = {pid for pid, place in self.places.items() if place.unit == unit}
            ends = inside <= self._family
            if not ends and unit.endswith(".service") and not _USER_MANAGER.fullmatch(unit):
                ends = self._ends.main_pid(unit) in self._family
            if ends:
                yield unit

    def ended_with(self, unit: str) -> Mapping[str, str]:
        """Return the units that systemd stops then. Raises UnseenProcesses.

        Of the scope of a container, which has the container's id for a name, no unit file can know before it is there:
        without an answer about it nothing depends on it.
        """
        try:
            return self._ends.ended_with(unit)
        except UnseenProcesses:
            if unit.endswith(".scope") and self._is_a_container(unit):
                return {}
            raise

    def _is_a_container(self, unit: str) -> bool:
        inside = [self.places[pid] for pid in self._ended if self.places[pid].unit == unit]
        return bool(inside) and all(each.in_container and len(each.unit) > 64 for each in inside)

    def users_without_session(self) -> Iterator[int]:
        """Yield the users whose last session ends with these: no process is left in a scope of their sessions."""
        sessions: dict[int, set[int]] = {}
        for pid, place in self.places.items():
            if place.user_id is not None and _SESSION.fullmatch(place.unit):
                sessions.setdefault(place.user_id, set()).add(pid)
        for user_id, inside in sorted(sessions.items()):
            if inside & self._ended and inside <= self._family:
                yield user_id

    def in_slice_of(self, user_id: int) -> Iterator[Tie]:
        """Yield who runs in the user's slice beside the session, but for the user's manager itself and its bus."""
        for pid, place in self.places.items():
            row = self.scan.rows[pid]
            if place.user_id != user_id or pid in self._family or self._is_manager(row, place, user_id):
                continue
            why = f"in {place.inner or place.unit} of user@{user_id}.service, which logind stops after the last session"
            way_out = f"{why}; `loginctl enable-linger {user_id}` keeps it"
            is_own = row.uids == {user_id} and _OF_A_LOGIN.fullmatch(place.inner) is not None
            yield Tie(row, why if is_own else way_out, may_be_own=False, is_own=is_own)

    def _is_manager(self, row: ProcessRow, place: _Place, user_id: int) -> bool:
        if place.unit != f"user@{user_id}.service":
            return False
        if place.inner == "init.scope":
            return row.name == "(sd-pam)" or (row.name == "systemd" and row.parent_pid == 1)
        return place.inner in _BUS and row.name.startswith("dbus-") and row.uids == {user_id}
