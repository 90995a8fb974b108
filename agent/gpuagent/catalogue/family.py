"""A metric family: its name, type, help, labels and origin, declared beside the code that fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

Part = TypeVar("Part")

Value = float | int | bool | None
Labelled = tuple[tuple[str, ...], Value]
"""Values of a family's own labels, in their order, and the value they belong to."""


class Kind(StrEnum):
    """Prometheus' metric types, as far as we use them."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Sample(NamedTuple):
    """One series of a family: values of all its labels, in the family's order. None leaves a label out."""

    labels: tuple[str | None, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Family(Generic[Part]):
    """One metric name. `of` takes its values from a part of the snapshot: a reading of a GPU, of a process, or all.

    `collector` names the collector behind the series: while it fails on a GPU, the family's series of that GPU are
    missing, which is not the same as gone.
    """

    name: str
    kind: Kind
    help: str
    collector: str
    labels: tuple[str, ...]
    of: Callable[[Part], Iterable[Labelled]]

    @property
    def unit(self) -> str:
        """Base unit by the name's suffix; "" for counts, flags and info."""
        stem = self.name.removesuffix("_total")
        for unit in ("bytes_per_second", "bytes", "ratio", "celsius", "watts", "joules", "hertz", "seconds"):
            if stem.endswith(f"_{unit}"):
                return unit.replace("_per_second", "/s")
        return ""


@dataclass(frozen=True, slots=True)
class Single(Generic[Part]):
    """Reads a family without labels of its own. Who reads many parts may call `value` and save the tuples."""

    value: Callable[[Part], Value]

    def __call__(self, part: Part) -> Iterable[Labelled]:
        return (((), self.value(part)),)


def single(value: Callable[[Part], Value]) -> Callable[[Part], Iterable[Labelled]]:
    """For a family without labels of its own."""
    return Single(value)
