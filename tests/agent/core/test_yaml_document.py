"""YAML: what is taken, and what a file may cost."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.yaml_document import (
    Limits,
    Place,
    YamlFault,
    YamlList,
    YamlMapping,
    YamlNode,
    YamlScalar,
    parse_yaml,
    read_document,
)

MAX_DEPTH, MAX_VALUES = 16, 100_000


def parse(text: str, *, typed: bool = False) -> YamlNode | None:
    """Parse within bounds."""
    return parse_yaml(text, Limits(MAX_DEPTH, MAX_VALUES, typed=typed))


def test_a_tree_has_its_lines() -> None:
    """Every value knows the line that it stands on, and keeps the text that was written."""
    root = parse("a: 1\nb:\n  - yes\n  - '2'\n")
    assert isinstance(root, YamlMapping)
    place, items = root.pairs["b"]
    assert place == (2, 1)
    assert isinstance(items, YamlList)
    assert items.items == [YamlScalar(Place(3, 5), "yes", plain=True), YamlScalar(Place(4, 5), "2", plain=False)]


def test_nothing_is_no_tree() -> None:
    """A file with comments alone has no document."""
    assert parse("# nothing\n") is None


@pytest.mark.parametrize("text", ["a: ~", "a:", "a: null", "a: NULL"])
def test_null_is_nothing(text: str) -> None:
    """As go-yaml: these stand for a value that was not given; in quotes they are text."""
    root = parse(text)
    assert isinstance(root, YamlMapping)
    value = root.pairs["a"][1]
    assert isinstance(value, YamlScalar)
    assert value.is_null
    quoted = parse("a: 'null'")
    assert isinstance(quoted, YamlMapping)
    assert quoted.pairs["a"][1] == YamlScalar(Place(1, 4), "null", plain=False)


def test_an_alias_is_what_it_refers_to() -> None:
    """Anchors and aliases work for values of every kind."""
    root = parse("a: &x [1, 2]\nb: *x\n")
    assert isinstance(root, YamlMapping)
    assert root.pairs["a"][1] is root.pairs["b"][1]


def test_an_alias_bomb_is_refused_at_once() -> None:
    """Nine lists of nine aliases each stand for a billion values: counted, never unfolded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    begin = time.process_time()
    with pytest.raises(YamlFault, match="aliases counted"):
        parse("\n".join(lines))
    assert time.process_time() - begin < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: [", 2, "not YAML"),
        ("a: b: c", 1, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("a: &x [*x]", 1, "inside of what it refers to"),
        ("a: *x", 1, "not YAML|refers to nothing"),
        ("a: !!python/object:os.system x", 1, "tag"),
        ("a: !!int 5", 1, "tag"),
        ("a: \x07", 1, "control character|not YAML"),
        ("[" * 40, 1, f"more than {MAX_DEPTH} levels"),
        ("[" * 200_000, 1, f"more than {MAX_DEPTH} levels"),
        ("a:\n" + "- x\n" * (MAX_VALUES + 1), MAX_VALUES - 1, "values"),
        ("a: \ud800", 1, "surrogate"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, line: int, problem: str) -> None:
    """Broken or excessive YAML is one fault, with its line."""
    with pytest.raises(YamlFault, match=problem) as caught:
        parse(text)
    assert caught.value.place.line == line


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a: 1\na: 2\n", "is given twice: see line 1"), ("<<: {a: 1}\n", "<< is not followed"), ("[1]: 2\n", "no text")],
)
def test_bad_keys_are_noted(text: str, problem: str) -> None:
    """The rest of the mapping is read all the same, so that its faults are told too."""
    root = parse(text + "z: 1\n")
    assert isinstance(root, YamlMapping)
    assert "z" in root.pairs
    assert [found for _, _, found in root.faults if problem in found]


@given(st.text())
def test_any_text_is_a_tree_or_a_fault(text: str) -> None:
    """Nothing that anybody writes raises anything else."""
    with suppress(YamlFault):
        parse(text)


def test_types_are_those_of_yaml() -> None:
    """Plain texts are what PyYAML takes them for, with lists as tuples and dates as text; in quotes they are text."""
    text = "{a: 1, b: yes, c: '1', d: 1.5, e: ~, f: 2024-01-01, g: [1:30], h: !!int '7', i: 0x10}"
    found = read_document(text, Limits(4, 100, typed=True)).value
    assert found == {
        "a": 1, "b": True, "c": "1", "d": 1.5, "e": None, "f": "2024-01-01", "g": (90,), "h": 7, "i": 16
    }  # fmt: skip


def test_merged_keys_stand_where_they_were_written() -> None:
    """`<<` brings in keys, of which those beside it win."""
    document = read_document("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n", Limits(4, 100, typed=True))
    assert document.value == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    assert document.place_of(("b", "x")) == (1, 8)
    assert document.place_of(("b", "y", "z")) == (4, 3)
