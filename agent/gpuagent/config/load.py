"""From a file to a `Config`, or to every fault in it at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from gpuagent.config.contents import MAX_FILE_BYTES, Read, read_file
from gpuagent.config.directories import DEFAULT_PATH, default_directories
from gpuagent.config.document import (
    Document,
    Place,
    YamlFault,
    place_in,
    read_document,
)
from gpuagent.config.explain import explain
from gpuagent.config.faults import (
    ConfigError,
    ConfigUnreadableError,
    Fault,
    Problem,
    write_path,
)
from gpuagent.config.models import Config
from gpuagent.config.section import check_sections
from gpuagent.config.values import kind_of


def load_config(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    is_root: bool,
    required: bool = False,
    simulated: bool = False,
    default_path: Path = DEFAULT_PATH,
    read: Read = read_file,
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
            return Config.model_validate(directories)
        raise ConfigUnreadableError([_whole(file, "there is no such file")]) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise ConfigUnreadableError([_whole(file, reason)]) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError([_whole(file, f"is larger than {MAX_FILE_BYTES // 1024} KiB")])
    context = {"folder": file.absolute().parent, "credentials": environ.get("CREDENTIALS_DIRECTORY")}
    return _from_text(file, _decode(file, data), directories, context)


def _decode(file: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig")
        place = place_in(before, len(before))
        raise ConfigError([_fault(file, place, Problem((), "is not UTF-8 text"))]) from None


def _from_text(file: Path, text: str, directories: Mapping[str, Path], context: Mapping[str, object]) -> Config:
    """`context` is for the values: what relative paths are relative to."""
    try:
        document = read_document(text)
    except YamlFault as bad:
        raise ConfigError([_fault(file, bad.place, Problem((), bad.problem))]) from None
    given = {} if document.value is None else document.value
    if not isinstance(given, dict):
        problem = f"the file must be a mapping (key: value), not {kind_of(given)}"
        raise ConfigError([_fault(file, document.place_of(()), Problem((), problem))])

    found = [*document.problems]
    config = None
    try:
        config = Config.model_validate({**directories, **given}, context=dict(context))
    except ValidationError as error:
        found += _placed(document, explain(Config, error))
    found += _placed(document, check_sections(Config, given))
    if config is None or found:
        faults = dict.fromkeys(_fault(file, place, problem) for place, problem in found)
        raise ConfigError(sorted(faults, key=lambda fault: (fault.line, fault.column)))
    return config


def _placed(document: Document, problems: Iterator[Problem]) -> Iterator[tuple[Place, Problem]]:
    return ((document.place_of(problem.path), problem) for problem in problems)


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
