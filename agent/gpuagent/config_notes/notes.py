"""Notes on what a configuration names, with file and line: what is not there, and who is never told.

None of it is a fault: a secret may be placed later, and rules and nodes differ. `gpuagent config check` and the doctor
show the notes, the agent logs them at its start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpuagent.collector.memory_watch import DEFAULT_LIMITS
from gpuagent.config.load import LIMITS
from gpuagent.config.models import Config
from gpuagent.config_notes.inert_ladders import Accounts, Users, known_alerts, may_end_nobody, never_acts
from gpuagent.config_notes.receivers import receiver_notes
from gpuagent.config_notes.spared_names import KnownNames, spared_by_ladders, spared_name_notes
from gpuagent.config_notes.user_database import existing_users, user_problems
from gpuagent.core.matchers import Matcher
from gpuagent.core.problems import KeyPath
from gpuagent.core.regular_files import read_regular_file
from gpuagent.core.yaml_document import Document, YamlFault, read_document
from gpuagent.driver.memory_limits.client import refusal_here
from gpuagent.procfs.machine import may_trace
from gpuagent_alerts.remedies.execution.reclaim import CacheReclaimer
from gpuagent_alerts.rules.alert_labels import AlertLabels, label_note, literals, matcher_note, untaken_example
from gpuagent_alerts.rules.model import RuleGroup, suggest

SERVICE_USER = "gpuagent"
_UNIT_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
        "/lib/systemd/system", "/run/systemd/generator", "/run/systemd/generator.early", "/run/systemd/generator.late",
        "/run/systemd/transient", "/etc/systemd/system.control", "/run/systemd/system.control",
    )
)  # fmt: skip
"""Where systemd looks for units (systemd.unit(5))."""
_GPUS = Path("/proc/driver/nvidia/gpus")
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
_MODEL = re.compile(r"^Model:\s*(\S.*?)\s*$", re.MULTILINE)
_PATH = re.compile(r"[a-z_]+(?:\.[a-z_]+|\[\d+\])*")
_PART = re.compile(r"[a-z_]+|\d+")


class Machine(NamedTuple):
    """Where names are looked up."""

    users: Users = user_problems
    unit_folders: Sequence[Path] = _UNIT_FOLDERS
    service_user: str = SERVICE_USER
    gpus: Path = _GPUS
    """The driver's folder of the GPUs that it has."""
    may_trace: Callable[[], bool | None] = may_trace
    """Whether the agent has CAP_SYS_PTRACE; None is unknown. By default of this process."""
    accounts: Accounts = existing_users
    reclaim_refusal: Callable[[], str] = CacheReclaimer().refusal
    """Why the agent cannot drop page cache; "" if it can. By default of this process."""
    limit_refusal: Callable[[], str] = refusal_here
    """Why the agent can set no memory limit; "" if it can."""


class ConfigFile:
    """The text that a configuration came from: where each key stands, and how it was written."""

    def __init__(self, path: Path, read: Callable[[Path], bytes] = read_regular_file) -> None:
        """Read it; what cannot be read has no lines."""
        self._path = path
        self._document = Document()
        with suppress(OSError, ValueError, YamlFault):
            self._document = read_document(read(path).decode("utf-8-sig"), LIMITS)

    def written(self, *keys: str | int) -> object:
        """Return the value as it stands in the file, None where there is none."""
        value: Any = self._document.value
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def place(self, note: str) -> str:
        """Return a note with file and line, where it begins with a key of the file."""
        found = _PATH.match(note)
        path: KeyPath = tuple(
            int(part) if part.isdigit() else part for part in (_PART.findall(found[0]) if found is not None else ())
        )
        if not path or self.written(path[0]) is None:
            return note
        line = self._document.place_of(path).line
        return f"{self._path}:{line}: {note}" if line else note


def config_notes(
    config: Config,
    groups: Iterable[RuleGroup],
    file: ConfigFile,
    machine: Machine | None = None,
    *,
    asked: bool = False,
) -> list[str]:
    """Return all notes. It reads secret files and may ask a directory server for users: not for the event loop.

    `asked` says that a person wants to know: then also where a ladder acts, and may end nobody.
    """
    groups, machine = tuple(groups), machine or Machine()
    alerts = known_alerts(groups, [budget.label for budget in config.budgets])
    never = never_acts(config, groups, machine.users, machine.accounts)
    spared = _known_names(config, machine)
    notes = [
        *receiver_notes(config, file, machine.service_user, asked=asked),
        *route_notes(config, alerts, _lookups(machine)),
        *_units(config, machine.unit_folders),
        *_unseen_paths(config, machine.may_trace),
        *_reclaim(config, machine.reclaim_refusal),
        *_limit(config, machine.limit_refusal),
        *map(str, spared_name_notes(groups, spared)),
        *spared_by_ladders(config, alerts, spared),
        *never,
        *(may_end_nobody(config, never) if asked else ()),
    ]
    return [file.place(note) for note in dict.fromkeys(notes)]


def _first_step(config: Config, kind: str) -> str:
    """Return the path of the first step of a kind in the configuration; "" where there is none."""
    steps = (
        f"remedies.ladders[{index}].steps[{number}].{kind}"
        for index, ladder in enumerate(config.remedies.ladders)
        for number, step in enumerate(ladder.steps)
        if getattr(step, kind) is not None
    )
    return next(steps, "")


def _limit(config: Config, refusal: Callable[[], str]) -> Iterator[str]:
    """Yield notes on the first step that limits memory, where none can be set here."""
    if (path := _first_step(config, "limit")) and (why := refusal()):
        yield f"{path}: is passed over, or refused as the last step: {why}"


def _reclaim(config: Config, refusal: Callable[[], str]) -> Iterator[str]:
    """Yield notes on the first step that drops page cache: it cannot be done, or its alert comes too late."""
    path = _first_step(config, "drop_caches")
    if not path:
        return
    if why := refusal():
        yield f"{path}: is passed: {why}"
    if config.poll_interval > DEFAULT_LIMITS.window_seconds:
        yield (
            f"poll_interval: at more than {DEFAULT_LIMITS.window_seconds:g} s GpuMemoryStallImminent comes too late, or"
            " never: memory that GPU and CPU share runs out within seconds"
        )


def _unseen_paths(config: Config, may_trace: Callable[[], bool | None]) -> Iterator[str]:
    """Yield a note where entries with a path spare more than they say, as the agent may not see where others work."""
    remedies = config.remedies
    index = next((index for index, entry in enumerate(remedies.never) if "/" in entry), None)
    if index is None or not remedies.ladders or may_trace() is not False:
        return
    yield (
        f"remedies.never[{index}]: without CAP_SYS_PTRACE the agent may not see in which directory other users'"
        " processes work: who was started by a relative path that an entry could mean is left alone as well. Add"
        " CAP_SYS_PTRACE to AmbientCapabilities= and CapabilityBoundingSet= of the unit, or have jobs started by"
        " absolute paths"
    )


def _lookups(machine: Machine) -> dict[str, Known]:
    """Return what looks up values of matchers on this machine."""

    def units(names: Iterable[str]) -> dict[str, str]:
        if not any(folder.is_dir() for folder in machine.unit_folders):  # no systemd here
            return {}
        return {
            name: f"this machine has no unit {name}{_with_suffix(name, machine.unit_folders)}"
            for name in names
            if "/" not in name and not _has_unit(name, machine.unit_folders)
        }

    def uuids(names: Iterable[str]) -> dict[str, str]:
        known = _gpu_uuids(machine.gpus)
        return {name: f"this machine has no GPU {name}" for name in names if known and name not in known}

    def indices(names: Iterable[str]) -> dict[str, str]:
        number = len(_gpu_uuids(machine.gpus))
        return {
            name: f"this machine has no GPU {name}: it has {number}"
            for name in names
            if number and name.isdecimal() and int(name) >= number
        }

    def users(names: Iterable[str]) -> dict[str, str]:
        return dict(machine.users(names))

    return {"user": users, "unit": units, "uuid": uuids, "gpu": indices}


def _known_names(config: Config, machine: Machine) -> KnownNames:
    """Return what is known of whom rules leave out: no units, as containers and pods are unknown too."""
    labels = [budget.label for budget in config.budgets]

    def budgets(names: Iterable[str]) -> dict[str, str]:
        return {
            name: f"there is no budget {name}{near and f'; {near}'}"
            for name in names
            if name not in labels
            for near in [suggest(name, labels)]
        }

    lookups = _lookups(machine)
    uuids, names = _gpu_uuids(machine.gpus), _gpu_names(machine.gpus)
    present = {"uuid": uuids, "name": names, "gpu": frozenset(map(str, range(len(uuids))))}
    return KnownNames({"user": lookups["user"], "budget": budgets}, present)


def _with_suffix(name: str, folders: Sequence[Path]) -> str:
    suggested = f"{name}.service"
    return f"; did you mean {suggested}?" if "." not in name and _has_unit(suggested, folders) else ""


def _gpu_uuids(folder: Path) -> frozenset[str]:
    """Return the GPUs of which the driver tells; empty where it tells of none, or not of all."""
    return _told_of_gpus(folder, _UUID)


def _gpu_names(folder: Path) -> frozenset[str]:
    """Return what the driver calls its GPUs; empty where it does not tell that of all."""
    return _told_of_gpus(folder, _MODEL)


def _told_of_gpus(folder: Path, pattern: re.Pattern[str]) -> frozenset[str]:
    found: set[str] = set()
    with suppress(OSError):
        for gpu in folder.iterdir():
            told = pattern.search((gpu / "information").read_text(encoding="utf-8", errors="replace"))
            if told is None:
                return frozenset()
            found.add(told[1])
        return frozenset(found)
    return frozenset()


def _units(config: Config, folders: Sequence[Path]) -> Iterator[str]:
    if not any(folder.is_dir() for folder in folders):  # no systemd here
        return
    allow = config.remedies.allow
    named = [(f"budgets[{i}].match.unit", budget.match.unit) for i, budget in enumerate(config.budgets)]
    named += [(f"leaks.overrides[{i}].match.unit", each.match.unit) for i, each in enumerate(config.leaks.overrides)]
    named += [(f"remedies.allow.units[{i}]", unit) for i, unit in enumerate(allow.units)]
    named += [(f"remedies.allow.shared_units[{i}]", unit) for i, unit in enumerate(allow.shared_units)]
    named += [(f"remedies.supervisors[{i}]", unit) for i, unit in enumerate(config.remedies.supervisors)]
    for path, unit in named:
        if not unit or "/" in unit:
            continue
        if not _has_unit(unit, folders):
            yield f"{path}: this machine has no unit {unit}"
        elif name := _aliased(unit, folders):
            yield f"{path}: {unit} is an alias of {name}, and means nobody: processes are known by the unit's own name"


def _aliased(unit: str, folders: Sequence[Path]) -> str:
    """Return the unit of which this name is an alias (`Alias=`: a link beside the units); "" where it is none."""
    for folder in folders:
        link = folder / unit
        if link.is_symlink():
            target = link.readlink().name
            return target if target.endswith(".service") and target.partition("@")[0] != unit.partition("@")[0] else ""
        if link.exists():
            return ""
    return ""


def _has_unit(unit: str, folders: Sequence[Path]) -> bool:
    name, at, _ = unit.partition("@")
    files = {unit, f"{name}@.service"} if at else {unit}
    return any((folder / file).exists() or (folder / file).is_symlink() for folder in folders for file in files)


_MOST_NAMED = 5
Known = Callable[[Sequence[str]], Mapping[str, str]]
"""By name, why this machine has nothing of that name."""


def route_notes(
    config: Config, alerts: Sequence[AlertLabels], known: Mapping[str, Known], *, most_named: int = _MOST_NAMED
) -> Iterator[str]:
    """Yield the notes; `known` looks up values of some labels (user, unit, gpu, uuid) on this machine."""
    people = {receiver.name for receiver in config.receivers if getattr(receiver, "heartbeat", None) is None}
    if config.receivers and not people:
        yield "receivers: only heartbeats: they take no alerts, so nobody is told of any"
    for index, route in enumerate(config.routes):
        path = f"routes[{index}]"
        if not people & set(route.receivers):
            yield f"{path}.receivers: only heartbeats: they take no alerts, so this route leads nowhere"
        notes = [
            f"{path}.match[{place}]: {note}"
            for place, matcher in enumerate(route.match)
            if (note := matcher_note(matcher, alerts, config.disabled_rules) or _unknown_here(matcher, known))
        ]
        yield from notes
        if not notes and not any(alert.can_match(route.match) for alert in alerts):
            yield f"{path}.match: no rule has alerts of which all of these hold"
        for place, label in enumerate(route.group_by):
            if note := label_note(label, alerts):
                yield f"{path}.group_by[{place}]: {note}"
    yield from _told_to_nobody(config, alerts, people, most_named)


def _unknown_here(matcher: Matcher, known: Mapping[str, Known]) -> str:
    """Return why what a matcher names does not exist on this machine."""
    look_up = known.get(matcher.name)
    values = [value for value in literals(matcher) if value]
    return "; ".join(look_up(values).values()) if look_up is not None and values else ""


def _told_to_nobody(config: Config, alerts: Sequence[AlertLabels], people: set[str], most: int) -> Iterator[str]:
    """Yield the alerts for people that no route takes, while every receiver is named by some route."""
    if not config.routes or people - {name for route in config.routes for name in route.receivers}:
        return
    routes = [route.match for route in config.routes if people & set(route.receivers)]
    lost: dict[str, None] = {}
    partly: dict[str, str] = {}
    for alert in alerts:
        if alert.values("severity") == frozenset({"none"}):
            continue
        if not any(alert.can_match(match) for match in routes):
            lost[alert.name] = None
        elif (example := untaken_example(alert, routes)) is not None:
            partly[alert.name] = ", ".join(
                f'{name}="{value}"' for name, value in example.items() if name != "alertname"
            )
    if lost:
        yield f"routes: nobody is told of {_some(lost, most)}: no route takes them"
    if partly := {name: shown for name, shown in partly.items() if name not in lost}:
        name, shown = next(iter(partly.items()))
        such = f", such as {name} with {shown}" if shown else ""
        yield f"routes: nobody is told of some alerts of {_some(partly, most)}{such}: no route takes those"


def _some(found: Mapping[str, object], most: int) -> str:
    names = list(found)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
