"""A section of the configuration: its keys and what each may hold in words, and checks between keys.

The faults and the reference are both made from this, so neither can lag behind the models.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from gpuagent.config.faults import KeyPath, Problem, listed
from gpuagent.config.values import Allowed


@dataclass(frozen=True, slots=True)
class Spot:
    """One place that a value may stand in: its type, and what the type was annotated with."""

    annotation: Any
    metadata: tuple[Any, ...] = ()

    @classmethod
    def of_field(cls, field: FieldInfo) -> Spot:
        """Return the place that a model's field describes."""
        return cls(field.annotation, tuple(field.metadata)).plain()

    def plain(self) -> Spot:
        """Return the same without `Annotated` and without `None`."""
        annotation, metadata = self.annotation, self.metadata
        if get_origin(annotation) is Annotated:
            inner, *extra = get_args(annotation)
            return Spot(inner, (*extra, *metadata)).plain()
        if get_origin(annotation) in {Union, types.UnionType}:
            (inner,) = (arg for arg in get_args(annotation) if arg is not type(None))
            return Spot(inner, metadata).plain()
        return self

    @property
    def section(self) -> type[BaseModel] | None:
        """The model, where a mapping with keys of its own stands here."""
        found = isinstance(self.annotation, type) and issubclass(self.annotation, BaseModel)
        return self.annotation if found else None

    @property
    def item(self) -> Spot | None:
        """The place of a list's items, where a list stands here."""
        is_list = get_origin(self.annotation) is tuple
        return Spot(get_args(self.annotation)[0]).plain() if is_list else None

    def allowed(self) -> str:
        """Return what may stand here, in words."""
        if self.section is not None:
            return f"a mapping with {', '.join(self.section.model_fields)}"
        if self.item is not None:
            return f"a list, each item {self.item.allowed()}"
        if get_origin(self.annotation) is Literal:
            return listed(get_args(self.annotation))
        text = self._described().text
        return text + "".join(f", {bound}" for bound in self._bounds())

    def write(self, value: object) -> str:
        """Return a value as the file would have it."""
        return self._described().write(value)

    def _described(self) -> Allowed:
        for extra in self.metadata:
            if isinstance(extra, Allowed):
                return extra
        if self.annotation is bool:
            return Allowed("true or false", lambda value: str(value).lower())
        return Allowed("a whole number" if self.annotation is int else "text")

    def _bounds(self) -> Iterator[str]:
        for extra in self.metadata:
            if isinstance(extra, Ge):
                yield f"at least {self.write(extra.ge)}"
            if isinstance(extra, Le):
                yield f"at most {self.write(extra.le)}"


def spot_at(model: type[BaseModel], path: KeyPath) -> Spot | None:
    """Return what the models say of the place at `path`; None where they know no such place."""
    spot: Spot | None = Spot(model)
    for part in path:
        if spot is None:
            return None
        if isinstance(part, int):
            spot = spot.item
        elif spot.section is not None and part in spot.section.model_fields:
            spot = Spot.of_field(spot.section.model_fields[part])
        else:
            return None
    return spot


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
        """Return what an unknown key is told that there is."""
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
