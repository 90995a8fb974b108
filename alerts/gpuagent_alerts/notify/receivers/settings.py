"""A receiver's settings, declared beside what sends: a frozen dataclass whose fields are made by `key`.

The configuration's sections, their checks and their reference are made from these (`gpuagent.config.alerting`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, field, fields
from enum import StrEnum
from typing import Any, NamedTuple


class KeyType(StrEnum):
    """What a key may hold, by the names of `gpuagent.config.values`."""

    TEXT = "text"
    TEXTS = "texts"
    """A list of at least one text."""
    NUMBER = "number"
    """A whole number."""
    FLAG = "flag"
    DURATION = "duration"
    """Seconds, written as Prometheus writes durations."""
    WEB_URL = "web URL"
    SECRET_WEB_URL = "secret web URL"  # noqa: S105  names of types
    SECRET_URL = "secret URL"  # noqa: S105
    SECRET_TEXT = "secret text"  # noqa: S105
    SECRET_FILE = "secret file"  # noqa: S105


class KeyOfSettings(NamedTuple):
    """One key of a receiver's settings. A default of None leaves it out, `MISSING` demands it."""

    type: KeyType
    description: str
    default: object
    least: float | None
    most: float | None
    shown: bool


def key(
    type_of: KeyType,
    description: str,
    *,
    default: object = MISSING,
    least: float | None = None,
    most: float | None = None,
    shown: bool = True,
) -> Any:  # noqa: ANN401  as dataclasses.field
    """Return a field of settings. `shown` is False where the value may hold a password without being a secret type."""
    declared = KeyOfSettings(type_of, description, default, least, most, shown)
    return (
        field(metadata={"key": declared}) if default is MISSING else field(default=default, metadata={"key": declared})
    )


URL_KEYS = ("url", "url_file")
"""Keys of what is reached by a URL: exactly one of them is given."""


def url_file() -> Any:  # noqa: ANN401  as dataclasses.field
    """Return the key `url_file`, which stands beside a key `url`."""
    return key(
        KeyType.SECRET_FILE, "Instead of `url`: a file that holds it and nothing else, read anew at every use.",
        default=None,
    )  # fmt: skip


def keys_of(settings: type) -> Iterator[tuple[str, KeyOfSettings]]:
    """Yield the keys of settings by their names, in the order of their declaration."""
    for each in fields(settings):
        yield each.name, each.metadata["key"]
