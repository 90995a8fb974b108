"""Which of the operator's entries of the never-list means a process: by a link, an argument, or a virtual environment.

The policy compares entries with the names of a process. An entry with a path means the file that it leads to, and what
leads there; that is looked up anew for every decision, since links change. What a process has written itself may only
withhold here, as everything may.

An entry may mean an ancestor in place of the process. A program's workers are often called otherwise: `multiprocessing`
starts them as `python -c ...`, servers write a title over their command line. So an ancestor of the same user counts,
through any number of parents, in the same cgroups or above them and of the same login: within a session, a unit or a
container. In a unit or a container root's ancestors count too, as a server's workers give its rights up.

What an entry meant when a GPU process was first seen stays so, as links turn and parents end (`FirstSeenMatches`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.cgroup import parse_cgroup
from gpuagent.procfs.files import ProcFiles, Stat, parse_stat, parse_status
from gpuagent.procfs.programs import INTERPRETER, MOST_MENTIONED, ProcessProgram, is_script, read_program
from gpuagent_alerts.remedies.facts.displays import Displays
from gpuagent_alerts.remedies.facts.first_seen import FirstSeenMatches, MatchedEntry
from gpuagent_alerts.remedies.facts.never_paths import (
    UNSEEN_FOLDER,
    ProgramPaths,
    environment_of,
    links_in_path,
    match_text,
    other_release,
    same_file,
    same_name,
)
from gpuagent_alerts.remedies.facts.process_scan import Placement, read_placement
from gpuagent_alerts.remedies.facts.symlinks import (
    SearchLimitExceeded,
    SearchLimits,
    SymbolicLink,
    UnreadableDirectory,
    find_links,
    spellings,
)
from gpuagent_alerts.remedies.safeguards.never_list import NEVER, Listed, find_listed, is_pattern, matches, show_name

NO_ANSWER = "/proc, or a path of remedies.never, does not answer"
"""What a refusal says where a look did not come back: it reads both."""
_UNKNOWN = "it cannot be told whether it is on the never-list"
_GONE = (FileNotFoundError, ProcessLookupError)
_HOST_INIT = 1
_MOST_ANCESTORS = 256
_ROOT = frozenset({0})
Row = tuple[Stat, frozenset[int], Placement]
"""A process, its users, and where it runs."""
Key = tuple[int, int]
"""Pid and start of a process."""


class NeverListSnapshot:
    """The entries at one moment: each is looked up once, when it is first needed."""

    def __init__(
        self, entries: Iterable[str] = (), bounds: SearchLimits | None = None, memory: FirstSeenMatches | None = None
    ) -> None:
        self.entries = tuple(entries)
        self._memory = memory
        self._ancestors: dict[tuple[int, int], MatchedEntry | None] = {}
        self._rows: dict[int, Row] = {}
        self._displays = Displays()
        self._names = tuple(each for each in self.entries if "/" not in each)
        self._paths = tuple(each for each in self.entries if "/" in each)
        self._bounds = bounds or SearchLimits()
        self._links: dict[str, tuple[SymbolicLink, ...]] = {}
        self._files: dict[str, dict[int, str]] = {}
        self._unread: dict[str, list[UnreadableDirectory]] = {}

    def reason(self, files: ProcFiles, pid: int, program: ProcessProgram) -> str:
        """Return why no remedy may end a process, beside its names; "" where nothing says so.

        It serves a display, or an entry means it by links, arguments, what it was when it was first seen, or an
        ancestor, or that cannot be told. It may hang. Raises FileNotFoundError or ProcessLookupError (gone), OSError
        and ValueError (not to be read).
        """
        if display := self._displays.served_by(pid):
            return f"it serves {display}: whoever works there would lose the session"
        if not self.entries:
            return ""
        if found := self._find(program, parse_status(files.read(pid, "status")).uids):
            return found.why
        found = self._by_ancestor(files, pid)
        return found.why if found else self.remembered(files, pid)

    def remembered(self, files: ProcFiles, pid: int) -> str:
        """Return which entry meant a process when it was first seen; "" for none. Raises as `reason`."""
        if self._memory is None:
            return ""
        return self._memory.meant(pid, parse_stat(files.read(pid, "stat")).start_ticks, self.entries)

    def find_all(self, files: ProcFiles, pid: int) -> MatchedEntry | None:
        """Return which entry means a process by what is to be seen of it now, its names too. Raises as `reason`."""
        program = read_program(files, pid)
        found = self._find_named(program) or self._find(program, parse_status(files.read(pid, "status")).uids)
        return found or self._by_ancestor(files, pid)

    def _by_ancestor(self, files: ProcFiles, pid: int) -> MatchedEntry | None:
        for above in own_ancestors(files, pid, self._rows):
            key = above.pid, above.start_ticks
            if key not in self._ancestors:
                self._ancestors[key] = self._of_ancestor(files, above.pid)
            if found := self._ancestors[key]:
                return found
        return None

    def _of_ancestor(self, files: ProcFiles, pid: int) -> MatchedEntry | None:
        """Return which entry means an ancestor: not what is built in, which runs everybody's work."""
        try:
            program = read_program(files, pid)
            uids = parse_status(files.read(pid, "status")).uids
            found = self._find_named(program) or self._find(program, uids, guess=False)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except (OSError, ValueError) as error:
            return MatchedEntry(
                "", f"it cannot be told whether pid {pid}, which started it, is on the never-list: {error}"
            )
        if found is None or find_listed(program.names, NEVER, exact=True):
            return None
        return MatchedEntry(found.entry, f"pid {pid} started it: {found.why}")

    def _find_named(self, program: ProcessProgram) -> MatchedEntry | None:
        listed = find_listed(program.names, self.entries)
        return None if listed is None else MatchedEntry(listed.pattern, str(listed))

    def _find(self, program: ProcessProgram, uids: Collection[int], *, guess: bool = True) -> MatchedEntry | None:
        """Return which entry means it by links and arguments.

        What one of its users (`uids`; none is unknown) keeps from being looked into may mean it. Where its program
        cannot be read, it is taken for whatever it may be only with `guess`.
        """
        if listed := find_listed(program.words, self._names) or _script_in(program, self._names):
            return MatchedEntry(listed.pattern, str(listed))
        unknown = program.unseen_script if guess else ""
        asks_all = bool(self._paths) or any(map(is_script, self._names))
        if asks_all and max(len(program.mentioned), len(program.words)) > MOST_MENTIONED:
            unknown = f"its arguments have more than {MOST_MENTIONED} words"
        try:
            process = ProgramPaths(program, guess=guess) if self._paths and not unknown else None
        except SearchLimitExceeded as error:
            process, unknown = None, str(error)
        if process is None:
            return MatchedEntry("", f"{_UNKNOWN}: {unknown}") if unknown else None
        for entry in self._paths:
            try:
                why = self._of_entry(process, entry, uids)
            except SearchLimitExceeded as error:
                return MatchedEntry("", f"{_UNKNOWN} ({show_name(entry)}): {error}")
            if why := why or self._by_name(process, entry):
                return MatchedEntry(entry, why)
        return None

    def _of_entry(self, process: ProgramPaths, entry: str, uids: Collection[int]) -> str:
        """Return why an entry with a slash means a process; a directory means all that lies in it."""
        if not entry.startswith("/"):
            return _of_ending(process, entry)
        if is_pattern(entry):
            return self._of_pattern(process, entry, uids)
        if pattern := as_directory(entry):
            return self._of_pattern(process, pattern, uids)
        return _of_path(process, entry)

    def _of_pattern(self, process: ProgramPaths, entry: str, uids: Collection[int]) -> str:
        for place in (*process.places, *process.mentioned):
            if any(matches(each, entry) for each in place.spellings):
                return match_text(place.written, entry, place.file)
        for place in process.folders:
            if any(matches(each, entry) for each in place.spellings):
                return f"it may run what lies in {match_text(place.written, entry, '')}"
        if found := _of_unplaced(process, entry):
            return found
        links = self._links_of(entry)
        if found := next(filter(None, (_by_link(process, entry, link) for link in links)), ""):
            return found
        own = next((each for each in self._unread[entry] if not uids or each.uid in uids), None)
        if own is not None:
            raise SearchLimitExceeded(f"{own.folder} of its user cannot be looked through ({own.why})")
        return self._by_hard_link(process, entry)

    def _by_hard_link(self, process: ProgramPaths, entry: str) -> str:
        """Return why a pattern means a file that has a second name, by a hard link or a mount of the process."""
        if folder := process.works_in(entry.partition("*")[0]):
            return f"it may run what lies in {match_text(folder, entry, '')}"
        for place, file in process.files:
            try:
                status = os.stat(file)  # noqa: PTH116
            except (OSError, ValueError):
                continue
            if not stat.S_ISREG(status.st_mode) or (status.st_nlink < 2 and not process.has_own_mounts):
                continue
            name = self._files_of(entry).get(status.st_ino, "")
            if name and same_file(name, file):
                return match_text(place.written, entry, name)
        return ""

    def _files_of(self, entry: str) -> Mapping[int, str]:
        """Return the files that a pattern means, by inode. Raises SearchLimitExceeded."""
        if entry not in self._files:
            self._files[entry] = {}
            for _ in find_links(entry, self._bounds, [], self._files[entry]):
                pass
        return self._files[entry]

    def _by_name(self, process: ProgramPaths, entry: str) -> str:
        """Return why an entry means a process whose release it does not lead to any more, or which is called alike."""
        for link in self._links_of(entry):
            if file := other_release(entry, link, process.spellings):
                return match_text(file, entry, "", may_be=True, by=link.name)
        name = same_name(entry, (*process.names, *process.spellings))
        return match_text(name, entry, "", may_be=True) if name else ""

    def _links_of(self, entry: str) -> tuple[SymbolicLink, ...]:
        if entry not in self._links:
            unread: list[UnreadableDirectory] = []
            found = find_links(entry, self._bounds, unread) if is_pattern(entry) else links_in_path(entry)
            self._links[entry], self._unread[entry] = tuple(found), unread
        return self._links[entry]


class NeverListEntries:
    """The operator's entries that are in force."""

    def __init__(
        self, entries: Iterable[str] = (), bounds: SearchLimits | None = None, *, files: ProcFiles | None = None
    ) -> None:
        """With `files` what `follow` is told of is remembered as it was first seen."""
        self._bounds = bounds or SearchLimits()
        self._entries = tuple(entries)
        self._files = files
        self._memory = None if files is None else FirstSeenMatches(files)

    def use(self, entries: Iterable[str]) -> None:
        """Put others in force."""
        self._entries = tuple(entries)

    def snapshot(self) -> NeverListSnapshot:
        """Return what the entries lead to from now on: for one judgment."""
        return NeverListSnapshot(self._entries, self._bounds, self._memory)

    def follow(self, ids: Iterable[ProcessId]) -> None:
        """Remember of the processes that are new which entry means them. It does not wait."""
        if self._memory is not None and self._files is not None and self._entries:
            self._memory.follow(ids, self._entries, partial(self.snapshot().find_all, self._files))

    def first_seen(self, identity: ProcessId) -> str:
        """Return which entry meant a process when it was first seen, or that this is being looked up; it does not wait.

        "" says nothing: whoever is acted on is looked at by itself.
        """
        return "" if self._memory is None or not self._entries else self._memory.reason(identity, self._entries)


NO_ENTRIES = NeverListSnapshot()
"""No entries of the operator's: for whom nobody judges."""


def _by_link(process: ProgramPaths, entry: str, link: SymbolicLink) -> str:
    """Return why an entry with `*` means a process by one of the links that it means."""
    names = {os.path.basename(link.name)}  # noqa: PTH119
    if environment := environment_of(link.name, link.target):
        return process.started_words(entry, link.target) if process.runs_in(environment, names, link.target) else ""
    for place in (*process.places, *process.folders, *process.mentioned):
        inside = place.file == link.target or place.file.startswith(link.target.rstrip("/") + "/")
        if inside and matches(link.name + place.file[len(link.target) :], entry):
            return match_text(place.written, entry, place.file, by=link.name)
    return process.started_words(entry, link.target) if process.may_run(link.target, names) else ""


def as_directory(entry: str) -> str:
    """Return the pattern of all that lies in an entry that is a directory; "" for any other."""
    is_directory = entry.startswith("/") and (entry.endswith("/") or os.path.isdir(entry))  # noqa: PTH112
    return f"{entry.rstrip('/')}/*" if is_directory else ""


def _of_unplaced(process: ProgramPaths, entry: str) -> str:
    """Return why a pattern may mean a process by a relative path, where the working directory is unknown."""
    last, ending = entry.rpartition("/")[2], "/".join(entry.split("/")[-2:])
    for written in process.unplaced:
        if matches(f"/{written}", f"*/{last}"):
            return match_text(written, entry, "", may_be=True, unseen=UNSEEN_FOLDER)
    for written in process.mentioned_unplaced:
        if matches(f"/{written}", f"*/{ending}") or matches(f"/{written}/_", f"*/{ending}"):
            return match_text(written, entry, "", may_be=True, unseen=UNSEEN_FOLDER)
    return ""


def _of_path(process: ProgramPaths, entry: str) -> str:
    """Return why an entry without `*` means a process. Raises SearchLimitExceeded."""
    try:
        os.stat(entry)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        places = (*process.places, *process.mentioned)
        written = next((each.written for each in places if entry in each.spellings), "")
        return match_text(written, entry, "") if written else ""
    except (OSError, ValueError) as error:
        raise SearchLimitExceeded(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from error
    led = spellings(entry)
    target = led[-1]
    names = {os.path.basename(each) for each in led}  # noqa: PTH119
    if environment := next(filter(None, (environment_of(each, target) for each in led)), ""):
        return process.started_words(entry, target) if process.runs_in(environment, names, target) else ""
    for place, file in process.files:
        if place.file == target or same_file(file, target):
            return match_text(place.written, entry, target)
    relative = [*process.unplaced, *(each for each in process.mentioned_unplaced if "/" in each or is_script(each))]
    for each in relative:
        if target.endswith(f"/{os.path.normpath(each)}") or entry.endswith(f"/{each}"):
            return match_text(each, entry, target, may_be=True, unseen=UNSEEN_FOLDER)
    return process.started_words(entry, target) if process.may_run(target, names) else ""


def _of_ending(process: ProgramPaths, entry: str) -> str:
    """Return why a relative entry means a process: the end of a path, or of a module's, is spelled so."""
    entry = entry.removesuffix("/") + "/*" if entry.endswith("/") else entry
    for text in process.texts:
        if matches(text, entry) or matches(text, f"*/{entry}"):
            return match_text(text, entry, "")
    return ""


def _script_in(program: ProcessProgram, names: Iterable[str]) -> Listed | None:
    """Return the name of a script that stands anywhere in the arguments, also in code (`bash -c '. prod.sh'`)."""
    scripts = [each for each in names if is_script(each)]
    return find_listed(program.mentioned, scripts) if scripts else None


def interpreter_entries(entries: Iterable[str]) -> Iterator[tuple[int, str, str, bool]]:
    """Yield each entry that means an interpreter: its place, its text, where it leads, whether as an environment's."""
    for index, entry in enumerate(entries):
        if "/" not in entry:
            if entry != "*" and INTERPRETER.fullmatch(entry.lower().rstrip("*")):
                yield index, entry, "", False
            continue
        if is_pattern(entry):
            continue
        led = spellings(entry)
        if INTERPRETER.fullmatch(os.path.basename(led[-1])) and os.path.isfile(led[-1]):  # noqa: PTH113, PTH119
            yield index, entry, led[-1], any(environment_of(each, led[-1]) for each in led)


def unbounded_patterns(entries: Iterable[str], bounds: SearchLimits | None = None) -> Iterator[tuple[int, str, str]]:
    """Yield each entry that means more than can be looked up: its place, its text, and why. It may hang."""
    for index, entry in enumerate(entries):
        pattern = entry if is_pattern(entry) else as_directory(entry)
        if "/" not in entry or not pattern:
            continue
        try:
            for _ in find_links(pattern, bounds):
                pass
        except SearchLimitExceeded as error:
            yield index, entry, str(error)


def own_ancestors(files: ProcFiles, pid: int, known: dict[int, Row]) -> Iterator[Stat]:
    """Yield each ancestor that may answer for a process, the nearest first; none of one that has ended since.

    `known` are those that were read for others at this moment. Raises FileNotFoundError or ProcessLookupError (the
    process has gone), OSError and ValueError (not to be read).
    """
    stat, uids, place = _read(files, pid)
    for _ in range(_MOST_ANCESTORS):
        if stat.parent_pid <= _HOST_INIT:
            return
        try:
            if stat.parent_pid not in known:
                known[stat.parent_pid] = _read(files, stat.parent_pid)
        except _GONE:
            return
        above, others, where = known[stat.parent_pid]
        if above.start_ticks > stat.start_ticks or where.difference(place):  # its number has changed hands, or a border
            return
        if others == uids or (others == _ROOT and _is_supervised(place)):
            yield above
        stat = above


def _read(files: ProcFiles, pid: int) -> Row:
    stat = parse_stat(files.read(pid, "stat"))
    return stat, frozenset(parse_status(files.read(pid, "status")).uids), read_placement(files, pid)


def _is_supervised(place: Placement) -> bool:
    membership = parse_cgroup(place.cgroups)
    return bool(membership.unit or membership.container_id)
