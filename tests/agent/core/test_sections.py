"""What the parts of a section promise whatever file they are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

import pytest

from gpuagent.core.sections import ReadContext, SecretText, Section, ShortForm, ValueType, key, read_section
from tests.tables import table


class Inner(Section):
    """A section below another one."""

    limit: int = key(ge=1, le=5, description="How many.")


class Outer(Section):
    """A section with everything in it."""

    inner: tuple[Inner, ...] = key(default=(), max_length=2, description="Items.")
    secret: SecretText | None = key(default=None, description="A secret.")


class Color(StrEnum):
    """Words of which one is meant."""

    RED = "red"
    BLUE = "blue"


class Figure(Section):
    """A section of which one variant is meant."""

    variant_key: ClassVar[str] = "form"


class Circle(Figure, kw_only=False):
    """A variant, made with positions."""

    radius: int = key(ge=1)
    form: Literal["circle"] = "circle"


class Box(Figure):
    """A variant that has a figure of its own."""

    inside: Figure | None = None
    form: Literal["box"] = "box"


def _radius(value: object) -> object:
    if value == 0:
        raise ValueError("is nothing at all")
    return {"form": "circle", "radius": value} if isinstance(value, int) else value


class Drawing(Section):
    """A section with what a configuration has not."""

    figure: Annotated[Figure, ShortForm("a radius or a figure", _radius)] = Circle(1)
    from_: int = 0
    color: Color = Color.RED
    colors: frozenset[Color] = frozenset()
    size: tuple[int, int] = (1, 2)
    limits: Mapping[str, Inner] | None = None

    def __post_init__(self) -> None:
        """Refuse a drawing that begins too late."""
        if self.from_ > 9:
            raise ValueError("begins too late")


@table(
    "written, read",
    [
        ({}, Drawing()),
        ({"figure": 3, "from": 7}, Drawing(figure=Circle(3), from_=7)),
        ({"figure": {"form": "box", "inside": {"form": "circle", "radius": 2}}}, Drawing(figure=Box(inside=Circle(2)))),
        ({"color": "blue", "colors": ("red", "red")}, Drawing(color=Color.BLUE, colors=frozenset({Color.RED}))),
        ({"colors": None}, Drawing()),
        ({"size": (3, 4), "limits": {"a b": {"limit": 1}}}, Drawing(size=(3, 4), limits={"a b": Inner(limit=1)})),
    ],
)
def test_every_form_of_a_value_is_read(written: dict[str, object], read: Drawing) -> None:
    """Variants, short forms, words of Python's, sets, pairs and mappings with the writer's own keys."""
    found, problems = read_section(Drawing, written)

    assert (found, problems) == (read, [])
    assert isinstance(found, Drawing)
    assert isinstance(found.color, Color)


@table(
    "written, path, problem",
    [
        ({"figure": 0}, ("figure",), "is nothing at all"),
        ({"figure": -1}, ("figure",), "-1 is too little: it must be at least 1"),
        ({"figure": {"form": "circle", "radius": -1}}, ("figure", "radius"), "-1 is too little: it must be at least 1"),
        ({"figure": {"form": "boxx"}}, ("figure", "form"), "'boxx' is unknown"),
        ({"figure": {"form": 3}}, ("figure", "form"), "must be text, not a number"),
        ({"figure": {"form": None}}, ("figure", "form"), "has no value"),
        ({"figure": {"radius": 1}}, ("figure", "form"), "is missing"),
        ({"figure": {"form": "box", "inside": {"form": "circle"}}}, ("figure", "inside", "radius"), "is missing"),
        ({"figure": None}, ("figure",), "has no value"),
        ({"from_": 1}, ("from_",), "unknown key"),
        ({"from": 10}, (), "begins too late"),
        ({"colors": ("red", "green")}, ("colors", 1), "'green' is unknown"),
        ({"colors": ({"red": 1},)}, ("colors", 0), "must be text, not a mapping"),
        ({"size": (1, 2, 3)}, ("size",), "must have 2 items, not 3"),
        ({"size": (1, "x")}, ("size", 1), "must be a whole number, not text"),
        ({"limits": {"a": {"limit": 9}}}, ("limits", "a", "limit"), "9 is too much: it must be at most 5"),
        ({"limits": (1,)}, ("limits",), "must be a mapping, not a list"),
    ],
)
def test_every_form_is_refused_where_it_is_wrong(
    written: dict[str, object], path: tuple[str | int, ...], problem: str
) -> None:
    """The path is that of what stands in the file: a short form has no keys."""
    found, problems = read_section(Drawing, written)

    assert found is None
    assert [(each.path, each.problem) for each in problems] == [(path, problem)]


def test_a_section_tells_every_problem_with_its_path() -> None:
    """A list that is too long, a missing key, a bound and an unknown key: all at once."""
    _, problems = read_section(Outer, {"inner": ({}, {"limit": 9}, {"limit": 1, "limmit": 2})})

    assert [(problem.path, problem.problem) for problem in problems] == [
        (("inner",), "has more than 2 items"),
        (("inner", 0, "limit"), "is missing"),
        (("inner", 1, "limit"), "9 is too much: it must be at most 5"),
        (("inner", 2, "limmit"), "unknown key"),
    ]
    assert problems[-1].suggestion == "limit"


def test_a_section_is_frozen_and_compared_by_its_values() -> None:
    """A reload finds out by comparing what has changed."""
    one, same, other = Inner(limit=1), Inner(limit=1), Inner(limit=2)

    assert one == same != other
    assert hash(one) == hash(same)
    with pytest.raises(FrozenInstanceError):
        one.limit = 2  # type: ignore[misc]


def test_secrets_do_not_show_themselves() -> None:
    """Neither alone nor in what holds them, and a new one is seen to be another."""
    section = Outer(secret=SecretText("hooks"))

    assert "hooks" not in f"{section!r}{section}{section.secret!r}{section.secret}"
    assert SecretText("a") == SecretText("a") != SecretText("b")
    assert hash(SecretText("a")) == hash(SecretText("a"))


def _names_of_two(value: object, _: ReadContext) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or len(value) != 2:
        raise ValueError("must have two names")
    return value


class Pairs(Section):
    """A section whose mapping is read as a whole."""

    names: Annotated[Mapping[str, str], ValueType("two names", _names_of_two)] = key(description="Names.")


def test_a_mapping_with_a_type_of_its_own_is_read_by_that() -> None:
    """What a type refuses, such as a password that is no hash, no other way of reading lets through."""
    assert read_section(Pairs, {"names": {"a": "1", "b": "2"}})[0] == Pairs(names={"a": "1", "b": "2"})
    assert [problem.problem for problem in read_section(Pairs, {"names": {"a": "1"}})[1]] == ["must have two names"]
