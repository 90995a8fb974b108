"""Notes on receivers: programs that cannot run, and secrets that are missing or cannot be what they should be.

No note shows a secret, nor a part of one.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuagent_alerts.notify.receivers.addresses import is_forbidden
from gpuagent_alerts.notify.receivers.apprise import BAD_ADDRESS, PROGRAM
from gpuagent_alerts.notify.receivers.webhook import sign
from gpuagent_alerts.programs.run import SEARCH_PATH, WORKING_DIRECTORY
from gpuagent_alerts.remedies.files.path_walk import XATTR
from gpuagent_alerts.secret import HiddenText, Misconfigured, Secret

if TYPE_CHECKING:
    from gpuagent.config.alerting import Receiver
    from gpuagent.config.models import Config
    from gpuagent.config_notes.notes import ConfigFile

_SECRET_KEYS = {"url": "URL", "secret": "key", "routing_key": "routing key", "token": "token"}
_CHANNEL_ID = re.compile(r"[CDG][A-Z0-9]{8,}", re.ASCII)
_ROUTING_KEY = re.compile(r"[A-Za-z0-9]{32}", re.ASCII)
_TOKEN = re.compile(r"xox[a-z]-\S+", re.ASCII)
_API_PATH = re.compile(r"/api(?:/|$)", re.ASCII)
_APPRISE_SECONDS = 10.0


def receiver_notes(config: Config, file: ConfigFile, service_user: str, *, asked: bool = False) -> Iterator[str]:
    """Yield the notes; `asked` also has Apprise look at its addresses, which takes a second."""
    for index, receiver in enumerate(config.receivers):
        path = f"receivers[{index}].{receiver.kind}"
        for key, what in _SECRET_KEYS.items():
            yield from _of_secret(receiver, key, what, path, asked=asked)
            place: Path | None = getattr(_section(receiver), f"{key}_file", None)
            raw = file.written("receivers", index, receiver.kind, f"{key}_file")
            if place is not None and isinstance(raw, str) and Path(raw).is_absolute() and os.geteuid() == 0:
                barrier = _unreadable_for(service_user, place)
                if barrier is not None:
                    yield (
                        f"{path}.{key}_file: {barrier} may not be read by the user {service_user}, as which the"
                        " service runs"
                    )
        command: tuple[str, ...] = getattr(_section(receiver), "command", ())
        if command and (problem := program_problem(command[0])):
            yield f"{path}.command[0]: {problem}: {receiver.name} cannot be told"
        channel: str | None = getattr(_section(receiver), "channel", None)
        if channel and not _CHANNEL_ID.fullmatch(channel):
            yield f"{path}.channel: {channel} is no id of a channel: Slack shows it (C0123456789) in its details"


def _of_secret(receiver: Receiver, key: str, what: str, path: str, *, asked: bool) -> Iterator[str]:
    section = _section(receiver)
    given: str | HiddenText | None = getattr(section, key, None)
    place: Path | None = getattr(section, f"{key}_file", None)
    if given is None and place is None:
        return
    where = f"{path}.{key}_file" if given is None else f"{path}.{key}"
    secret = Secret(what, given, place)
    try:
        secret.read()
    except Misconfigured as error:
        yield f"{where}: {error}: {receiver.name} cannot be told"
        return
    try:
        problem = _form_problem(receiver.kind, key, secret.line(), asked=asked)
    except Misconfigured as error:
        problem = str(error)
    if problem:
        yield f"{where}: {problem}"


def _section(receiver: Receiver) -> object:
    return getattr(receiver, receiver.kind)


def _form_problem(kind: str, key: str, text: str, *, asked: bool) -> str:
    """Return why a text cannot be the secret that it should be; "" where nothing is known against it."""
    if kind == "apprise":
        return _apprise_problem(text) if asked else ""
    problem = _FORMS[key](text)
    if not problem and kind == "alertmanager" and _API_PATH.search(urlsplit(text).path):
        return "the address of an Alertmanager ends before /api: the agent adds that"
    return problem


def _url_problem(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_web = parts.scheme.lower() in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_web = False
    if not is_web:
        return "what stands there is no URL that begins with http:// or https://"
    if _is_forbidden(parts.hostname):
        return "no message is sent to a link-local address or to a cloud's metadata service"
    return ""


def _is_forbidden(host: str | None) -> bool:
    try:
        return is_forbidden(host or "")
    except ValueError:  # a name, whose addresses are looked at when a message is sent
        return False


def _signing_problem(text: str) -> str:
    try:
        sign(text, "", 0, b"")
    except Misconfigured as error:
        return str(error)
    return ""


def _routing_problem(text: str) -> str:
    return "" if _ROUTING_KEY.fullmatch(text) else "an integration key of PagerDuty has 32 letters and digits"


def _token_problem(text: str) -> str:
    return "" if _TOKEN.fullmatch(text) else "what stands there is no token of a bot, which begins with xoxb-"


_FORMS: dict[str, Callable[[str], str]] = {
    "url": _url_problem,
    "secret": _signing_problem,
    "routing_key": _routing_problem,
    "token": _token_problem,
}


def _apprise_problem(url: str) -> str:
    """Return whether Apprise refuses an address. It looks in a process of its own, and sends nothing."""
    if find_spec("apprise") is None:
        return "the package apprise is not installed: pip install gpuagent[apprise]"
    request = json.dumps({"url": url, "check": "1"})
    try:
        command = [sys.executable, "-I", "-m", PROGRAM]
        looked = subprocess.run(  # noqa: S603 (a module of the agent's own)
            command, input=request, text=True, capture_output=True, check=False, timeout=_APPRISE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "Apprise cannot use this address" if looked.returncode == BAD_ADDRESS else ""


def program_problem(program: str) -> str:
    """Return why a program cannot be run; "" where nothing is known against it."""
    found = Path(WORKING_DIRECTORY, program)
    if shutil.which(str(found) if "/" in program else program, path=SEARCH_PATH) is not None:
        return ""
    word, space, _ = program.partition(" ")
    if space and not found.exists():
        return (
            f"there is no program {program!r}; no shell is involved: write {word} and each argument as items of a list"
        )
    if "/" in program and found.is_dir():
        return f"{program} is a directory"
    if "/" in program and found.exists():
        return f"{program} may not be executed"
    where = "" if "/" in program else f" in {SEARCH_PATH}"
    return f"there is no program {program}{where}"


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
