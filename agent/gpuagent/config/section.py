"""A mapping of the configuration file, and the checks that need more than one of its keys.

Pydantic checks each value by itself, and no longer compares values as soon as one of them is bad.
People want every fault at once: so `check` looks at what was given, beside pydantic, not after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from gpuagent.config.describe import Spot
from gpuagent.config.faults import KeyPath, Problem, listed


class Section(BaseModel):
    """Base of every mapping: frozen, no unknown keys, no guessing at types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
    key_noun: ClassVar[str] = "key"
    """What an unknown key is called in a fault."""

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:  # noqa: ARG003 (for others)
        """Find what is wrong between the keys of this section. Paths start at the section."""
        yield from ()

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """What an unknown key is told that there is."""
        return tuple(cls.model_fields)

    @classmethod
    def exactly_one(cls, given: Mapping[str, object], names: Sequence[str]) -> Iterator[Problem]:
        """Find out whether one of these keys is given, and only one."""
        found = [name for name in names if name in given]
        if not found and given.keys() <= cls.model_fields.keys():  # else a misspelt one is told
            yield Problem((), f"needs one of {listed(names)}")
        for name in found:
            if given[name] is None:
                yield Problem((name,), "has no value")
            elif name != found[0]:
                yield Problem((name,), f"cannot stand beside {found[0]}: one of them is enough")

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, given: object) -> object:
        """Take `routes:` with nothing below it for an empty list: its items are commented out."""
        if not isinstance(given, Mapping):
            return given
        collections = {
            name
            for name, field in cls.model_fields.items()
            if isinstance(field.get_default(call_default_factory=True), tuple | BaseModel)
        }
        return {name: value for name, value in given.items() if value is not None or name not in collections}


def check_sections(section: type[BaseModel], given: object, path: KeyPath = ()) -> Iterator[Problem]:
    """Run the checks of a section and of all below it on what was given."""
    if not isinstance(given, Mapping):
        return
    if issubclass(section, Section):
        for problem in section.check(given):
            yield problem._replace(path=path + problem.path)
    for name, value in given.items():
        if name not in section.model_fields:
            continue
        spot = Spot.of_field(section.model_fields[name])
        if spot.section is not None:
            yield from check_sections(spot.section, value, (*path, name))
        elif spot.item is not None and spot.item.section is not None and isinstance(value, tuple):
            for index, item in enumerate(value):
                yield from check_sections(spot.item.section, item, (*path, name, index))
