"""Notes on what a configuration names, with file and line: what is not there, and who is never told.

None of it is a fault: a secret may be placed later, and rules and nodes differ. `gpuagent config check` and the doctor
show the notes, the agent logs them at its start.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuagent.acting.alert_labels import KnownAlert, known_alerts
from gpuagent.acting.never_acts import Users, may_end_nobody, never_acts
from gpuagent.acting.posix_acl import XATTR
from gpuagent.acting.user_database import user_problems
from gpuagent.config.document import Document, YamlFault, read_document
from gpuagent.config.faults import KeyPath
from gpuagent.config.files import read_file
from gpuagent_alerts.rules.model import RuleGroup, suggest
from gpuagent_alerts.secret import Misconfigured, Secret

if TYPE_CHECKING:
    from gpuagent.config.models import Config
    from gpuagent.core.matchers import Matcher

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
_SECRET_KEYS = {"url_file": "URL", "secret_file": "key", "routing_key_file": "routing key", "token_file": "token"}
_MOST_NAMED = 5
_PATH = re.compile(r"[a-z_]+(?:\.[a-z_]+|\[\d+\])*")
_PART = re.compile(r"[a-z_]+|\d+")


class Machine(NamedTuple):
    """Where names are looked up."""

    users: Users = user_problems
    unit_folders: Sequence[Path] = _UNIT_FOLDERS
    service_user: str = SERVICE_USER


class ConfigFile:
    """The text that a configuration came from: where each key stands, and how it was written."""

    def __init__(self, path: Path, read: Callable[[Path], bytes] = read_file) -> None:
        """Read it; what cannot be read has no lines."""
        self._path = path
        self._document = Document()
        with suppress(OSError, ValueError, YamlFault):
            self._document = read_document(read(path).decode("utf-8-sig"))

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
    never = never_acts(config, groups, machine.users)
    notes = [
        *_secrets(config, file, machine.service_user),
        *_routes(config, alerts),
        *_told_to_nobody(config, alerts),
        *_units(config, machine.unit_folders),
        *never,
        *(may_end_nobody(config, never) if asked else ()),
    ]
    return [file.place(note) for note in dict.fromkeys(notes)]


def _secrets(config: Config, file: ConfigFile, service_user: str) -> Iterator[str]:
    for index, receiver in enumerate(config.receivers):
        kind = getattr(receiver, receiver.kind)
        for key, what in _SECRET_KEYS.items():
            path = getattr(kind, key, None)
            if path is None:
                continue
            where = f"receivers[{index}].{receiver.kind}.{key}"
            try:
                Secret(what, None, path).read()
            except Misconfigured as error:
                yield f"{where}: {error}: {receiver.name} cannot be told"
                continue
            raw = file.written("receivers", index, receiver.kind, key)
            if isinstance(raw, str) and Path(raw).is_absolute() and os.geteuid() == 0:
                barrier = _unreadable_for(service_user, path)
                if barrier is not None:
                    yield f"{where}: {barrier} may not be read by the user {service_user}, as which the service runs"


def _unreadable_for(name: str, path: Path) -> Path | None:
    """Return what keeps a user from reading a file, None if nothing is known to: where there are ACLs, they decide."""
    try:
        account = pwd.getpwnam(name)
        groups = set(os.getgrouplist(name, account.pw_gid))
        for part in (*reversed(path.resolve().parents), path.resolve()):
            needed = 0o4 if part == path.resolve() else 0o1
            status = part.stat()
            if XATTR in os.listxattr(part):
                continue
            shift = 6 if status.st_uid == account.pw_uid else 3 if status.st_gid in groups else 0
            if account.pw_uid and not status.st_mode >> shift & needed:
                return part
    except (KeyError, OSError):
        return None
    return None


def _routes(config: Config, alerts: Sequence[KnownAlert]) -> Iterator[str]:
    told = {receiver.name for receiver in config.receivers if receiver.heartbeat is None}
    for index, route in enumerate(config.routes):
        path = f"routes[{index}]"
        if not told & set(route.receivers):
            yield f"{path}.receivers: only heartbeats: they take no alerts, so this route leads nowhere"
        if not any(alert.can_match(route.match) for alert in alerts):
            yield f"{path}.match: {_why_unmatched(route.match, alerts, config)}"


def _why_unmatched(matchers: Sequence[Matcher], alerts: Sequence[KnownAlert], config: Config) -> str:
    for matcher in matchers:
        if matcher.name == "alertname" and not any(alert.can_match([matcher]) for alert in alerts):
            if matcher.value in config.disabled_rules:
                return f"{matcher.value} is among disabled_rules: there is no such alert"
            near = suggest(matcher.value, {alert.name for alert in alerts})
            return f"there is no rule {matcher.value}{near and f'; {near}'}"
        if not any(alert.can_match([matcher]) for alert in alerts):
            return f"{matcher} holds of no alert"
    return "no rule has alerts of which all of these hold"


def _told_to_nobody(config: Config, alerts: Sequence[KnownAlert]) -> Iterator[str]:
    """Alerts for people that no route takes, while every receiver is named by some route."""
    named = {name for route in config.routes for name in route.receivers}
    people = {receiver.name for receiver in config.receivers if receiver.heartbeat is None}
    if not config.routes or people - named:
        return
    routes = [route for route in config.routes if people & set(route.receivers)]
    lost = [
        alert.name
        for alert in alerts
        if alert.values("severity") != frozenset({"none"}) and not any(alert.can_match(route.match) for route in routes)
    ]
    if lost:
        names = list(dict.fromkeys(lost))
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        yield f"routes: nobody is told of {', '.join(names[:_MOST_NAMED])}{more}: no route takes them"


def _units(config: Config, folders: Sequence[Path]) -> Iterator[str]:
    if not any(folder.is_dir() for folder in folders):  # no systemd here
        return
    allow = config.remedies.allow
    named = [(f"budgets[{i}].match.unit", budget.match.unit) for i, budget in enumerate(config.budgets)]
    named += [(f"leaks.overrides[{i}].match.unit", each.match.unit) for i, each in enumerate(config.leaks.overrides)]
    named += [(f"remedies.allow.units[{i}]", unit) for i, unit in enumerate(allow.units)]
    named += [(f"remedies.allow.shared_units[{i}]", unit) for i, unit in enumerate(allow.shared_units)]
    for path, unit in named:
        if unit and "/" not in unit and not _has_unit(unit, folders):
            yield f"{path}: this machine has no unit {unit}"


def _has_unit(unit: str, folders: Sequence[Path]) -> bool:
    name, at, _ = unit.partition("@")
    files = {unit, f"{name}@.service"} if at else {unit}
    return any((folder / file).exists() or (folder / file).is_symlink() for folder in folders for file in files)
