"""The tree of an expression: the part of PromQL that the agent evaluates, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuagent.core.matchers import Matcher


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: float


@dataclass(frozen=True, slots=True)
class String:
    """A literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """Series by name and labels. Without a name, matchers on `__name__` choose among the metrics."""

    name: str | None
    matchers: tuple[Matcher, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """The unary minus."""

    operand: Node


class Cardinality(StrEnum):
    """How many elements of each side belong together."""

    ONE_TO_ONE = "one-to-one"
    MANY_TO_ONE = "many-to-one"
    ONE_TO_MANY = "one-to-many"


@dataclass(frozen=True, slots=True)
class Matching:
    """Which elements of two vectors belong together: `on` or `ignoring`, and `group_left` or `group_right`."""

    cardinality: Cardinality = Cardinality.ONE_TO_ONE
    on: bool = False
    labels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands and what stands between them."""

    operator: str
    left: Node
    right: Node
    returns_bool: bool
    matching: Matching


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Groups of a vector's elements, by some labels or without some."""

    operator: str
    operand: Node
    parameter: Node | None
    without: bool
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function."""

    function: str
    arguments: tuple[Node, ...]


Node = Number | String | Selector | Negation | Binary | Aggregation | Call


def is_scalar(node: Node) -> bool:
    """Return whether a node is a scalar: it is matched with nothing."""
    match node:
        case Number():
            return True
        case Negation(operand):
            return is_scalar(operand)
        case Call(function):
            return function in {"scalar", "time"}
        case Binary(_, left, right):
            return is_scalar(left) and is_scalar(right)
    return False
