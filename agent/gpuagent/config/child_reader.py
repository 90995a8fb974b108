"""Configurations, read by a child: what checks them (pydantic and the models) takes some 9 MiB, for a moment's work.

Memory that Python code once took is never given back: it is spread over everything that came later. The agent runs for
months on nodes that are short of memory, so it never loads those modules; at its start and at each reload a child does.
What comes is a `Record`: the parts of the agent look at attributes alone, so that to them it is a `Config`.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from gpuagent.config.files import DEFAULT_PATH, Read, content_of, read_file

if TYPE_CHECKING:
    from gpuagent.config.models import Config


log = logging.getLogger(__name__)

T = TypeVar("T")


def load_config_apart(path: Path | None, *, python: str = sys.executable, read: Read = read_file) -> Config:
    """As `load_config`, but what comes is a `Record` that has all that a `Config` has.

    The file is read here, by `read`, and the child parses what was read: only so can the bytes be those of a file
    whose path was checked. Where no child can be had, or it does not answer, they are parsed in this process.

    Raises:
        ConfigError: with every fault.
    """
    content: bytes | OSError
    try:
        content = read(path or DEFAULT_PATH)
    except OSError as error:
        content = error
    return cast(
        "Config",
        read_apart(
            "gpuagent.config.child",
            path,
            Record,
            lambda: load_config_here(path, read=lambda _: content_of(content)),
            python=python,
            given=pickle.dumps(content),
        ),
    )


def load_config_here(path: Path | None, *, read: Read = read_file, simulated: bool = False) -> Config:
    """Return the configuration, parsed in this process. Raises ConfigError."""
    from gpuagent.config.load import load_config  # noqa: PLC0415  the child is there to avoid it

    return load_config(path, is_root=os.geteuid() == 0, simulated=simulated, read=read)


def read_apart(
    child: str,
    path: Path | None,
    kind: type[T],
    here: Callable[[], object],
    *,
    python: str = sys.executable,
    given: bytes = b"",
) -> T:
    """Return what a module says of a file in a process of its own; where none can be had, what is read `here`.

    `given` is put on its standard input. It pickles something of that kind, or the exception with which it could not be
    read, and that is raised.
    """
    # -P: modules are never taken from the folder that the agent was started in.
    command = [python, "-P", "-m", child, *([] if path is None else [str(path)])]
    try:
        told = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True)  # noqa: S603  ours
        outcome = pickle.loads(told.stdout)  # noqa: S301  our own child wrote it
    except (OSError, subprocess.SubprocessError, EOFError, pickle.UnpicklingError) as error:
        log.warning("no child could read %s (%s): it is read here", path or "the configuration", error)
        return cast("T", here())
    if isinstance(outcome, Exception):
        raise outcome
    if not isinstance(outcome, kind):
        raise TypeError(f"a child was to tell {kind.__name__} and told {type(outcome).__name__}")
    return outcome


class Record:
    """A section: its keys, and what it derives from them, as attributes. Frozen, compared by its values."""

    __slots__ = ("_section", "_values")
    _section: str
    _values: Mapping[str, object]

    def __init__(self, section: str, values: Mapping[str, object]) -> None:
        object.__setattr__(self, "_section", section)
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> object:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{self._section} has no {name}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self._section} is frozen")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self._section, self._values) == (other._section, other._values)

    def __hash__(self) -> int:
        return hash((self._section, *self._values.values()))

    def __repr__(self) -> str:
        return f"<{self._section}>"  # the values may be secret: an address may hold a password

    def __reduce__(self) -> tuple[type[Record], tuple[str, Mapping[str, object]]]:
        return Record, (self._section, self._values)


class SecretText:
    """A text that does not show itself. See `gpuagent_alerts.secret.Hidden`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "SecretText(<hidden>)"
