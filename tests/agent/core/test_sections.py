"""What the parts of a section promise whatever file they are in."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from gpuagent.core.sections import SecretText, Section, key, read_section


class Inner(Section):
    """A section below another one."""

    limit: int = key(ge=1, le=5, description="How many.")


class Outer(Section):
    """A section with everything in it."""

    inner: tuple[Inner, ...] = key(default=(), max_length=2, description="Items.")
    secret: SecretText | None = key(default=None, description="A secret.")


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
