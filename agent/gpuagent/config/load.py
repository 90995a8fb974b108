"""From a file to a `Config`, or to every fault in it at once.

Pydantic's findings are put in plain English, with what is allowed and what was probably meant.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpuagent.config.document import Document, Place, YamlFault, place_in, read_document
from gpuagent.config.faults import (
    ConfigError,
    ConfigUnreadableError,
    Fault,
    KeyPath,
    Problem,
    listed,
    nearest,
    shown,
    write_path,
)
from gpuagent.config.files import DEFAULT_PATH, Read, default_directories, read_file
from gpuagent.config.models import Config
from gpuagent.config.section import Section, Spot, check_sections, spot_at
from gpuagent.config.values import kind_of
from gpuagent.core.regular_files import MAX_FILE_BYTES


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


_WANTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "tuple_type": "a list",
    "model_type": "a mapping",
}
"""Pydantic's types of errors, for the types that the models use."""


def explain(model: type[BaseModel], error: ValidationError) -> Iterator[Problem]:
    """Turn each finding into a problem in the words of the configuration file."""
    for details in error.errors(include_url=False):
        # A list is also called too short when its items are bad: those are told by themselves.
        if details["type"] != "too_short" or not details["input"]:
            yield _problem(model, details)


def _problem(model: type[BaseModel], details: ErrorDetails) -> Problem:
    path = details["loc"]
    if details["type"] == "extra_forbidden":
        return _unknown_key(model, path)
    spot = spot_at(model, path)
    allowed = spot.allowed() if spot else ""
    if details["type"] == "missing":
        return Problem(path, "is missing", allowed)
    if details["input"] is None:
        return Problem(path, "has no value", allowed)
    if details["type"] == "literal_error" and spot is not None:
        return _wrong_word(path, details["input"], spot)
    return Problem(path, _in_words(details, spot), allowed)


def _unknown_key(model: type[BaseModel], path: KeyPath) -> Problem:
    parent = spot_at(model, path[:-1])
    if parent is None or parent.section is None or not issubclass(parent.section, Section):
        return Problem(path, "unknown key")
    section = parent.section
    noun = section.key_noun
    near = nearest(str(path[-1]), section.model_fields)
    return Problem(path, f"unknown {noun}", ", ".join(section.key_names()), near)


def _wrong_word(path: KeyPath, given: object, spot: Spot) -> Problem:
    if not isinstance(given, str):
        return Problem(path, f"must be text, not {kind_of(given)}", spot.allowed())
    words = get_args(spot.annotation)
    return Problem(path, f"{shown(given)} is unknown", listed(words), nearest(given, words))


def _in_words(details: ErrorDetails, spot: Spot | None) -> str:
    context = details.get("ctx", {})
    bound = next((context[name] for name in ("ge", "le") if name in context), None)
    write: Callable[[object], str] = spot.write if spot else str
    match details["type"]:
        case "value_error":
            return str(context["error"])
        case "greater_than_equal":
            return f"{write(details['input'])} is too little: it must be at least {write(bound)}"
        case "less_than_equal":
            return f"{write(details['input'])} is too much: it must be at most {write(bound)}"
        case "too_short":
            return "is empty"
        case "too_long":
            return f"has more than {context['max_length']} items"
    wanted = _WANTED.get(details["type"])
    return f"must be {wanted}, not {kind_of(details['input'])}" if wanted else "cannot be used"
