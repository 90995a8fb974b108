"""What the models say about themselves: the keys, and what each may hold, in words.

The faults and the reference are both made from this, so neither can lag behind the models.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gpuagent.config.faults import KeyPath, listed
from gpuagent.config.values import Allowed


@dataclass(frozen=True, slots=True)
class Spot:
    """One place that a value may stand in: its type, and what the type was annotated with."""

    annotation: Any
    metadata: tuple[Any, ...] = ()

    @classmethod
    def of_field(cls, field: FieldInfo) -> Spot:
        """The place that a model's field describes."""
        return cls(field.annotation, tuple(field.metadata)).plain()

    def plain(self) -> Spot:
        """The same without `Annotated` and without `None`."""
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
        """What may stand here, in words."""
        if self.section is not None:
            return f"a mapping with {', '.join(self.section.model_fields)}"
        if self.item is not None:
            return f"a list, each item {self.item.allowed()}"
        if get_origin(self.annotation) is Literal:
            return listed(get_args(self.annotation))
        text = self._described().text
        return text + "".join(f", {bound}" for bound in self._bounds())

    def write(self, value: object) -> str:
        """A value as the file would have it."""
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
    """What the models say of the place at `path`; None where they know no such place."""
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
