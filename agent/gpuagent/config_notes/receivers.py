"""Notes on receivers: programs that cannot run, and secrets that are missing or cannot be what they should be.

No note shows a secret, nor a part of one.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuagent.core.sections import SecretText
from gpuagent_alerts.notify.receivers.addresses import is_forbidden
from gpuagent_alerts.notify.receivers.apprise import BAD_ADDRESS, PROGRAM
from gpuagent_alerts.notify.receivers.registry import KINDS
from gpuagent_alerts.notify.receivers.settings import KeyType, keys_of
from gpuagent_alerts.programs.run import SEARCH_PATH, WORKING_DIRECTORY
from gpuagent_alerts.remedies.files.path_walk import XATTR
from gpuagent_alerts.secret import Misconfigured, Secret

if TYPE_CHECKING:
    from gpuagent.config.alerting import Receiver
    from gpuagent.config.models import Config
    from gpuagent.config_notes.notes import ConfigFile

_FILE = "_file"
_IN_WORDS = {"url": "URL", "secret": "key"}
"""What messages call the value of a key, where that is not its name."""
_APPRISE_SECONDS = 10.0


def receiver_notes(config: Config, file: ConfigFile, service_user: str, *, asked: bool = False) -> Iterator[str]:
    """Yield the notes; `asked` also has Apprise look at its addresses, which takes a second."""
    for index, receiver in enumerate(config.receivers):
        path = f"receivers[{index}].{receiver.kind}"
        types = {name: key.type for name, key in keys_of(KINDS[receiver.kind].settings)}
        for name, key_type in types.items():
            if key_type is KeyType.SECRET_FILE:
                yield from _of_file(
                    receiver, name, path, file.written("receivers", index, receiver.kind, name), service_user
                )
            if f"{name}{_FILE}" not in types:
                yield from _of_value(receiver, name.removesuffix(_FILE), path, types, asked=asked)
        command: tuple[str, ...] = getattr(_section(receiver), "command", ())
        if command and (problem := program_problem(command[0])):
            yield f"{path}.command[0]: {problem}: {receiver.name} cannot be told"


def _of_file(receiver: Receiver, key: str, path: str, raw: object, service_user: str) -> Iterator[str]:
    place: Path | None = getattr(_section(receiver), key)
    if place is not None and isinstance(raw, str) and Path(raw).is_absolute() and os.geteuid() == 0:
        barrier = _unreadable_for(service_user, place)
        if barrier is not None:
            yield f"{path}.{key}: {barrier} may not be read by the user {service_user}, as which the service runs"


def _of_value(
    receiver: Receiver, key: str, path: str, types: Mapping[str, KeyType], *, asked: bool
) -> Iterator[str]:  # fmt: skip
    section = _section(receiver)
    given: object = getattr(section, key, None)
    place: Path | None = getattr(section, f"{key}{_FILE}", None)
    is_text = isinstance(given, str | SecretText)
    if not is_text and place is None:
        return
    where = f"{path}.{key}" if is_text else f"{path}.{key}{_FILE}"
    what = _IN_WORDS.get(key, key.replace("_", " "))
    secret = Secret(what, given if isinstance(given, str | SecretText) else None, place)
    try:
        secret.read()
    except Misconfigured as error:
        yield f"{where}: {error}: {receiver.name} cannot be told"
        return
    try:
        problem = _form_problem(receiver.kind, key, secret.line(), types.get(key), asked=asked)
    except Misconfigured as error:
        problem = str(error)
    if problem:
        yield f"{where}: {problem}"


def _section(receiver: Receiver) -> object:
    return getattr(receiver, receiver.kind)


def _form_problem(kind: str, key: str, text: str, key_type: KeyType | None, *, asked: bool) -> str:
    """Return why a text cannot be the value that it should be; "" where nothing is known against it."""
    if kind == "apprise":
        return _apprise_problem(text) if asked else ""
    problem = _url_problem(text) if key_type in {KeyType.WEB_URL, KeyType.SECRET_WEB_URL} else ""
    return problem or KINDS[kind].value_problem(key, text)


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
