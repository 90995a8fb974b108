"""`gpuagent leaks tune`: an override of the leak detector's sensitivity, checked, and written where it may be."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from gpuagent.cli.agent import Refused, answer_of, tell
from gpuagent.cli.cells import clean

if TYPE_CHECKING:
    from gpuagent.config.models import Config
import re
from typing import Final

from gpuagent.config.load import LIMITS
from gpuagent.core.problems import KeyPath
from gpuagent.core.yaml_document import Document, YamlFault, read_document

EXIT_OK, EXIT_NOT = 0, 1
_RELOAD_SECONDS = 60.0
_MOST_NAMED = 5


class _Cannot(Exception):
    """Why the file is not written: the lines are printed instead."""


class _Edit(NamedTuple):
    path: Path
    before: bytes
    after: bytes
    status: os.stat_result
    """The file's status when it was read."""


def tune_file(
    config: Path | None, match: Mapping[str, str], sensitivity: str, socket: Path | None, *, show: bool, yes: bool
) -> int:
    """Check an override, and write it or print its lines; returns the exit status."""
    from gpuagent.cli.leaks_tune import fragment
    from gpuagent.config.load import DEFAULT_PATH, ConfigError

    path = config or DEFAULT_PATH
    try:
        before, text, status = _read(path, required=config is not None)
        loaded = _load(path, before)
        after = _edited(path, text, loaded, match, sensitivity)
    except ConfigError as error:
        tell(str(error))
        return EXIT_NOT
    except OSError as error:
        tell(f"{path} cannot be read: {error.strerror}.")
        return EXIT_NOT
    _tell_who(match, socket)
    if after is not None and after == before:
        tell(f"{path} already says so.")
        return EXIT_OK
    reason = _why_not(path, status, after)
    if show or reason or not (yes or can_be_asked()):
        typer.echo(fragment(match, sensitivity), nl=False)
        _tell_how(path, "" if show else reason, is_given=config is not None)
        return EXIT_OK
    assert after is not None  # noqa: S101  else there was a reason
    assert status is not None  # noqa: S101  likewise
    return _write_and_reload(_Edit(path, before, after, status), socket, yes=yes)


def can_be_asked() -> bool:
    """Return whether a person sits there."""
    return sys.stdin.isatty()


def _read(path: Path, *, required: bool) -> tuple[bytes, str, os.stat_result | None]:
    """Return the file as it is, empty where there is none and none is needed. Raises OSError."""
    from gpuagent.core.regular_files import read_regular_file

    try:
        status = path.stat()
        content = read_regular_file(path)
    except FileNotFoundError:
        if required:
            raise
        return b"", "", None
    return content, content.decode("utf-8", "replace"), status


def _load(path: Path, content: bytes) -> Config:
    """Return the configuration of this content in the place of the file's. Raises ConfigError."""
    from gpuagent.config.load import load_config

    return load_config(path, is_root=os.geteuid() == 0, read=lambda _: content)


def _edited(path: Path, text: str, before: Config, match: Mapping[str, str], sensitivity: str) -> bytes | None:
    """Return the content with the override; None where the file is in a form that is not edited.

    Raises ConfigError for an override that cannot be, as the file with it would be refused.
    """
    from gpuagent.cli.leaks_tune import fragment, with_override
    from gpuagent.config.reference import effective

    wanted = {"match": dict(match), "sensitivity": sensitivity}
    new = with_override(text, match, sensitivity)
    if new is None:  # by itself, at the node's own sensitivity
        lines = fragment(match, sensitivity).replace("leaks:\n", f"leaks:\n  sensitivity: {before.leaks.sensitivity}\n")
        sockets = before.processes.container_socket
        more = f"processes: {{container_socket: {str(sockets)!r}}}\n" if sockets else ""
        _load(path, (lines + more).encode())
        return None
    after = effective(_load(path, new.encode()))
    known = effective(before)
    others = [each for each in known["leaks"].get("overrides", ()) if each["match"] != wanted["match"]]
    got = after["leaks"].pop("overrides")
    known["leaks"].pop("overrides", None)
    kept = [each for each in got if each["match"] != wanted["match"]]
    is_so = wanted in got and kept == others and after == known
    return new.encode() if is_so and "\N{REPLACEMENT CHARACTER}" not in new else None


def _tell_who(match: Mapping[str, str], socket: Path | None) -> None:
    """Name the processes on GPUs that this is for now: a name that is misspelt is for none."""
    try:
        rows = answer_of("GET", "/api/v1/processes", socket)["processes"]
        apps = {each["pid"]: each["app"] for each in answer_of("GET", "/api/v1/clients", socket)["clients"]}
    except (Refused, KeyError, TypeError):
        return
    pids = {row["pid"]: clean(row["process"]) for row in rows if _is_for(match, row, apps.get(row["pid"], ""))}
    if not pids:
        tell("No process on a GPU matches now.")
        return
    named = ", ".join(f"{name} (pid {pid})" for pid, name in list(pids.items())[:_MOST_NAMED])
    more = f" and {len(pids) - _MOST_NAMED} more" if len(pids) > _MOST_NAMED else ""
    tell(f"Matches now: {named}{more}")


def _is_for(match: Mapping[str, str], row: Mapping[str, Any], app: str) -> bool:
    has: dict[str, tuple[Any, ...]] = {"app": (app,), "process_name": (row.get("process"),)}
    container = str(row.get("container_id") or "")
    has["container"] = (container, container[: len(match.get("container", ""))], row.get("container_name"))
    return all(value in has.get(key, (row.get(key),)) for key, value in match.items())


def _why_not(path: Path, status: os.stat_result | None, after: bytes | None) -> str:
    """Return why the file is not edited, "" if it may be."""
    if status is None:
        return f"there is no file {path}"
    if after is None:
        return f"{path} is written in a form that is not edited"
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        return f"{path} has several names"
    real = path.resolve()
    if not os.access(real.parent, os.W_OK) or not os.access(real, os.W_OK):
        return f"{path} may not be written by this user"
    return ""


def _tell_how(path: Path, reason: str, *, is_given: bool) -> None:
    before = f"{reason}: " if reason else ""
    place = f"{path}" if is_given else f"the file that the agent reads (by default {path})"
    tell(f"{before}add these lines to {place}, before other overrides, then run: gpuagent config reload")


def _write_and_reload(edit: _Edit, socket: Path | None, *, yes: bool) -> int:
    old, new = edit.before.decode().splitlines(), edit.after.decode().splitlines()
    for line in difflib.unified_diff(old, new, str(edit.path), str(edit.path), lineterm="", n=2):
        typer.echo(clean(line))
    if not yes and not typer.confirm("Write this, and have the agent read it again?", default=False, err=True):
        tell("Nothing was changed.")
        return EXIT_NOT
    try:
        _replace(edit)
    except (OSError, _Cannot) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        tell(f"{edit.path} was not written: {reason}")
        return EXIT_NOT
    tell(f"Written: {edit.path}")
    try:
        answer = answer_of("POST", "/api/v1/reload", socket, timeout_seconds=_RELOAD_SECONDS, also=(409,))
    except Refused as error:
        tell(f"{error}\nIt takes effect at the next `gpuagent config reload` or start.")
        return EXIT_NOT
    if answer.get("error"):
        tell(f"The agent refused the file; the old configuration stays in force:\n{answer['error']}")
        return EXIT_NOT
    tell("The agent has reloaded it. Histories are kept; verdicts follow within 15 s.")
    return EXIT_OK


def _replace(edit: _Edit) -> None:
    """Put the new content in the file's place, with its owner, mode and ACL. Raises OSError and _Cannot."""
    from gpuagent.core.regular_files import read_regular_file

    real = edit.path.resolve()
    new = real.with_name(f".{real.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600), "wb") as stream:
        try:
            stream.write(edit.after)
            stream.flush()
            if (edit.status.st_uid, edit.status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), edit.status.st_uid, edit.status.st_gid)
            shutil.copystat(real, new)
            os.utime(new)
            os.fsync(stream.fileno())
            if read_regular_file(real) != edit.before:
                raise _Cannot("it has changed in the meantime")
            new.replace(real)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise


_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./@:-]*[A-Za-z0-9_./@-]", re.ASCII)
_WORDS: Final = frozenset({"yes", "no", "on", "off", "true", "false", "null", "y", "n"})
_SENSITIVITY: Final = re.compile(r"(sensitivity[\"']?\s*:\s*)[\"']?[a-z]+[\"']?")
_OVERRIDES: Final = ("leaks", "overrides")


def fragment(match: Mapping[str, str], sensitivity: str) -> str:
    """Return the lines that stand for it, from the top of a file.

    >>> print(fragment({"unit": "whisper.service"}, "strict"), end="")
    leaks:
      overrides:
        - match: {unit: whisper.service}
          sensitivity: strict
    """
    return "leaks:\n  overrides:\n" + _item(match, sensitivity, "    ")


def with_override(text: str, match: Mapping[str, str], sensitivity: str) -> str | None:
    """Return the text with this override, ahead of the others; None where it is written in a form that is not edited.

    Of an override that is there for the same match, the sensitivity alone is replaced.
    """
    try:
        document = read_document(text, LIMITS)
    except YamlFault:
        return None
    value = document.value
    if value is None:
        return _joined(text, fragment(match, sensitivity))
    if not isinstance(value, dict) or _is_flow(text, document, ()):
        return None
    if "leaks" not in value:
        return _joined(text, fragment(match, sensitivity))
    return _into_leaks(text, document, value["leaks"], match, sensitivity)


def _into_leaks(text: str, document: Document, leaks: object, match: Mapping[str, str], sensitivity: str) -> str | None:
    lines = text.splitlines(keepends=True)
    place = document.place_of(("leaks",))
    overrides = leaks.get("overrides") if isinstance(leaks, dict) else None
    for index, item in enumerate(overrides if isinstance(overrides, tuple) else ()):
        if isinstance(item, dict) and item.get("match") == dict(match):
            return _replaced(lines, document, (*_OVERRIDES, index, "sensitivity"), sensitivity)
    if not _ends_with_colon(lines[place.line - 1]):
        return None
    if leaks is None:
        return _inserted(lines, place.line, "  overrides:\n" + _item(match, sensitivity, "    "))
    if not isinstance(leaks, dict):
        return None
    if "overrides" in leaks:
        return _into_overrides(lines, document, overrides, match, sensitivity)
    indent = " " * (min(document.place_of(("leaks", key)).column for key in leaks) - 1)
    return _inserted(lines, place.line, f"{indent}overrides:\n" + _item(match, sensitivity, f"{indent}  "))


def _into_overrides(
    lines: list[str], document: Document, overrides: object, match: Mapping[str, str], sensitivity: str
) -> str | None:
    """Put it ahead of those that are there: the first one that matches is taken."""
    key = document.place_of(_OVERRIDES)
    if not _ends_with_colon(lines[key.line - 1]):
        return None
    if not isinstance(overrides, tuple) or not overrides:
        return _inserted(lines, key.line, _item(match, sensitivity, " " * (key.column + 1)))
    first = document.place_of((*_OVERRIDES, 0))
    line = lines[first.line - 1]
    if not line.lstrip(" ").startswith("- "):
        return None
    return _inserted(lines, first.line - 1, _item(match, sensitivity, " " * (len(line) - len(line.lstrip(" ")))))


def _item(match: Mapping[str, str], sensitivity: str, indent: str) -> str:
    keys = ", ".join(f"{key}: {_scalar(value)}" for key, value in match.items())
    return f"{indent}- match: {{{keys}}}\n{indent}  sensitivity: {sensitivity}\n"


def _scalar(value: str) -> str:
    """Return a text of YAML, in quotes where it needs them."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable() and letter < "\ud800":
        return letter
    return f"\\U{ord(letter):08X}"


def _is_flow(text: str, document: Document, path: KeyPath) -> bool:
    place = document.place_of(path)
    return text.splitlines()[place.line - 1][place.column - 1 :].startswith(("{", "["))


def _ends_with_colon(line: str) -> bool:
    """Whether nothing but a comment follows a key."""
    return re.fullmatch(r"\s*[\w\"']+\s*:\s*(#.*)?", line.rstrip("\r\n")) is not None


def _joined(text: str, more: str) -> str:
    gap = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{gap}{more}"


def _inserted(lines: list[str], place: int, more: str) -> str:
    before = lines[:place]
    if before and not before[-1].endswith("\n"):
        before[-1] += "\n"
    return "".join([*before, more, *lines[place:]])


def _replaced(lines: list[str], document: Document, path: KeyPath, sensitivity: str) -> str | None:
    place = document.place_of(path)
    line = lines[place.line - 1]
    head, tail = line[: place.column - 1], line[place.column - 1 :]
    new, count = _SENSITIVITY.subn(rf"\g<1>{sensitivity}", tail, count=1)
    return "".join([*lines[: place.line - 1], head + new, *lines[place.line :]]) if count else None
