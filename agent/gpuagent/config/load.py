"""From a file to a `Config`, or to every fault in it with its line; and where things are kept that no file places."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuagent.config.models import Config
from gpuagent.core.identity import SIMULATED_NAME
from gpuagent.core.problems import Problem, explain, kind_of, write_path
from gpuagent.core.regular_files import MAX_FILE_BYTES, read_regular_file
from gpuagent.core.sections import ReadContext, read_section
from gpuagent.core.yaml_document import Limits, Place, YamlFault, place_in, read_document


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to put right. Lines and columns count from 1; 0 is unknown (a missing file)."""

    file: str
    line: int
    column: int
    path: str
    """As people write it: receivers[0].slack.url_file; "" where the fault is of the whole file."""
    problem: str
    allowed: str = ""
    suggestion: str = ""
    """What was probably meant; "" where nothing is near."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = f"{self.path}: " if self.path else ""
        return f"{place}: {subject}{explain(self.problem, self.allowed, self.suggestion)}"


class ConfigError(Exception):
    """The configuration cannot be used; `faults` has every reason, in the order of the file."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class ConfigUnreadableError(ConfigError):
    """There is no text to judge: the file is missing, forbidden or not a file."""


DEFAULT_PATH = Path("/etc/gpuagent/gpuagent.yaml")
"""The configuration file where none is named; there need not be one."""

LIMITS = Limits(depth=32, values=5_000, typed=True)
"""How large and deep a configuration file may be."""

Read = Callable[[Path], bytes]
"""Returns a file's content, of a larger one the first `MAX_FILE_BYTES` + 1 bytes; raises OSError."""


def load_config(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    is_root: bool,
    required: bool = False,
    simulated: bool = False,
    default_path: Path = DEFAULT_PATH,
    read: Read = read_regular_file,
) -> Config:
    """Read the configuration; without a `path` that of the system, or the defaults if it has none.

    A given `path` must exist, and with `required` the system's file must, too. A `simulated` node has directories of
    its own where the file gives none. `read` returns a file's content. Raises ConfigError with every fault, or
    ConfigUnreadableError where there is nothing to read.
    """
    directories = default_directories(environ, is_root=is_root, uid=os.getuid(), simulated=simulated)
    file = path or default_path
    try:
        data = read(file)
    except FileNotFoundError:
        if path is None and not required:
            return _from_text(file, "", directories, ReadContext())
        raise ConfigUnreadableError([_whole(file, "there is no such file")]) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigUnreadableError([_whole(file, reason)]) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError([_whole(file, f"is larger than {MAX_FILE_BYTES // 1024} KiB")])
    context = ReadContext(file.absolute().parent, environ.get("CREDENTIALS_DIRECTORY", ""))
    return _from_text(file, _decode(file, data), directories, context)


def _decode(file: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig")
        place = place_in(before, len(before))
        raise ConfigError([_fault(file, place, Problem((), "is not UTF-8 text"))]) from None


def _from_text(file: Path, text: str, directories: Mapping[str, Path], context: ReadContext) -> Config:
    try:
        document = read_document(text, LIMITS)
    except YamlFault as bad:
        raise ConfigError([_fault(file, bad.place, Problem((), bad.problem))]) from None
    given = {} if document.value is None else document.value
    if not isinstance(given, dict):
        problem = f"the file must be a mapping (key: value), not {kind_of(given)}"
        raise ConfigError([_fault(file, document.place_of(()), Problem((), problem))])

    config, problems = read_section(Config, given, context, directories)
    found = [*document.problems, *((document.place_of(problem.path), problem) for problem in problems)]
    if config is None or found:
        faults = dict.fromkeys(_fault(file, place, problem) for place, problem in found)
        raise ConfigError(sorted(faults, key=lambda fault: (fault.line, fault.column)))
    return config


def _fault(file: Path, place: Place, problem: Problem) -> Fault:
    return Fault(
        str(file),
        place.line,
        place.column,
        write_path(problem.path),
        problem.problem,
        problem.allowed,
        problem.suggestion,
    )


def _whole(file: Path, problem: str) -> Fault:
    return _fault(file, Place(0, 0), Problem((), problem))


def default_directories(
    environ: Mapping[str, str], *, is_root: bool, uid: int, simulated: bool = False
) -> dict[str, Path]:
    """`state_dir`, `runtime_dir` and `client_dir` for this environment.

    systemd names a unit's directories in STATE_DIRECTORY and RUNTIME_DIRECTORY (systemd.exec(5)); an ordinary user has
    those of the XDG base directory specification. A simulated node that no unit runs has its own, beside the real
    one's: what is made up must not be found there later.
    """
    state = _of_unit(environ, "STATE_DIRECTORY")
    runtime = _of_unit(environ, "RUNTIME_DIRECTORY")
    name = SIMULATED_NAME if simulated else "gpuagent"
    if is_root:
        state = state or Path("/var/lib", name)
        runtime = runtime or Path("/run", name)
    home = _absolute(environ, "HOME")
    user_state = _absolute(environ, "XDG_STATE_HOME") or (home and home / ".local/state")
    user_runtime = _absolute(environ, "XDG_RUNTIME_DIR")
    # Without either there is still a place of one's own: a user's shell under cron or su.
    fallback = Path(f"/tmp/{name}-{uid}")  # noqa: S108 (its owner is checked: runtime.directories)
    state = state or (user_state / name if user_state else fallback / "state")
    runtime = runtime or (user_runtime / name if user_runtime else fallback / "run")
    return {
        "state_dir": state,
        "runtime_dir": runtime,
        # Beside the other, never inside it: containers may mount it.
        "client_dir": runtime.with_name(f"{runtime.name}-client"),
    }


def _of_unit(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first directory of a unit: systemd gives them all, with colons between."""
    first = environ.get(name, "").partition(":")[0]
    return Path(first) if first.startswith("/") else None


def _absolute(environ: Mapping[str, str], name: str) -> Path | None:
    """Return a directory; a relative one is invalid and ignored, says the XDG specification."""
    value = environ.get(name, "")
    return Path(value) if value.startswith("/") else None
