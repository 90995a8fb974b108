"""The configuration file that a first installation writes: every key with its default, all of it commented out.

Made from the models, so that it has every key of this very version. A line of prose begins with `# `; a line that
becomes configuration begins with `#` alone, so that taking that one character away is all there is to do.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpuagent.config.describe import Spot
from gpuagent.config.models import Config
from gpuagent.config.reference import EXAMPLE

_HEAD = """\
# gpuagent's configuration. Nothing has to be set: what stands here commented out is the default, or an example where
# it says so. Take away the # before a key, that one character, to change it. Then:
#
# `gpuagent config check` names every fault at once.
# `systemctl reload gpuagent` has it read; a bad file is refused, and the old configuration stays.
#
# Secrets are best put into /etc/gpuagent/secrets, a file each, for root alone, and named here as secrets/NAME.
"""
_DIRECTORIES = frozenset({"state_dir", "runtime_dir", "client_dir"})
"""The unit makes them: another one has to be writable in its sandbox, too."""
_WIDTH = 120


def starter() -> str:
    """The whole file."""
    return "\n".join([_HEAD, *_keys(Config)])


def _keys(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if name not in _DIRECTORIES:
            yield from _key(name, field)
            yield ""


def _key(name: str, field: FieldInfo) -> Iterator[str]:
    spot = Spot.of_field(field)
    about = field.description or (spot.section.__doc__ if spot.section else "") or ""
    example = _example(name) if spot.section is None or _has_lists(spot.section) else ""
    plain = spot.section is None and (spot.item is None or spot.item.section is None)
    yield from _prose(about if plain or not example else f"{about} For example:")
    if example and not plain:
        yield from (f"#{line}" for line in example.splitlines())
    elif spot.section is not None:
        yield f"#{name}:"
        yield from _fields(spot.section, "  ")
    else:
        yield f"#{name}: {_default(field, spot)}"


def _fields(section: type[BaseModel], indent: str) -> Iterator[str]:
    """The keys of a section. What has no default is left to the reference: there is nothing to write."""
    for name, field in section.model_fields.items():
        spot = Spot.of_field(field)
        if spot.section is not None:
            yield f"#{indent}{name}:"
            yield from _fields(spot.section, f"{indent}  ")
        else:
            yield f"#{indent}{name}: {_default(field, spot)}"


def _has_lists(section: type[BaseModel]) -> bool:
    """A section whose point is in its lists, such as remedies, says nothing by its defaults."""
    spots = (Spot.of_field(field) for field in section.model_fields.values())
    return any(spot.item is not None and spot.item.section is not None for spot in spots)


def _default(field: FieldInfo, spot: Spot) -> str:
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "null"
    if spot.item is not None:
        return "[]"
    written = spot.write(default)
    return written or '""'


def _example(name: str) -> str:
    """The key's part of the reference's example; nothing where that has none."""
    found = re.search(rf"(?m)^{name}:.*\n(?:[ -].*\n)*", EXAMPLE)
    return found[0] if found else ""


def _prose(text: str) -> Iterator[str]:
    joined = " ".join(text.split())
    yield from (f"# {line}" for line in textwrap.wrap(joined, _WIDTH - 2))
