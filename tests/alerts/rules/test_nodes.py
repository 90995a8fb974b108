"""YAML: what is taken, and what a file may cost."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.rules.yaml_fields import (
    MAX_DEPTH,
    MAX_VALUES,
    YamlFault,
    YamlList,
    YamlMapping,
    YamlScalar,
    parse_yaml,
)


def test_a_tree_has_its_lines() -> None:
    """Every value knows the line that it stands on, and keeps the text that was written."""
    root = parse_yaml("a: 1\nb:\n  - yes\n  - '2'\n")
    assert isinstance(root, YamlMapping)
    line, items = root.pairs["b"]
    assert line == 2
    assert isinstance(items, YamlList)
    assert items.items == [YamlScalar(3, "yes", plain=True), YamlScalar(4, "2", plain=False)]


def test_nothing_is_no_tree() -> None:
    """A file with comments alone has no document."""
    assert parse_yaml("# nothing\n") is None


@pytest.mark.parametrize("text", ["a: ~", "a:", "a: null", "a: NULL"])
def test_null_is_nothing(text: str) -> None:
    """As go-yaml: these stand for a value that was not given; in quotes they are text."""
    root = parse_yaml(text)
    assert isinstance(root, YamlMapping)
    value = root.pairs["a"][1]
    assert isinstance(value, YamlScalar)
    assert value.is_null
    quoted = parse_yaml("a: 'null'")
    assert isinstance(quoted, YamlMapping)
    assert quoted.pairs["a"][1] == YamlScalar(1, "null", plain=False)


def test_an_alias_is_what_it_refers_to() -> None:
    """Anchors and aliases work for values of every kind."""
    root = parse_yaml("a: &x [1, 2]\nb: *x\n")
    assert isinstance(root, YamlMapping)
    assert root.pairs["a"][1] is root.pairs["b"][1]


def test_an_alias_bomb_is_refused_at_once() -> None:
    """Nine lists of nine aliases each stand for a billion values: counted, never unfolded."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    begin = time.process_time()
    with pytest.raises(YamlFault, match="aliases counted"):
        parse_yaml("\n".join(lines))
    assert time.process_time() - begin < 5


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: [", 3, "not YAML"),
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
        ("a: \ud800", 0, "surrogate"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, line: int, problem: str) -> None:
    """Broken or excessive YAML is one fault, with its line."""
    with pytest.raises(YamlFault, match=problem) as caught:
        parse_yaml(text)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a: 1\na: 2\n", "a is given twice: see line 1"), ("<<: {a: 1}\n", "<< is not followed"), ("[1]: 2\n", "no text")],
)
def test_bad_keys_are_noted(text: str, problem: str) -> None:
    """The rest of the mapping is read all the same, so that its faults are told too."""
    root = parse_yaml(text + "z: 1\n")
    assert isinstance(root, YamlMapping)
    assert "z" in root.pairs
    assert [found for _, found in root.faults if problem in found]


@given(st.text())
def test_any_text_is_a_tree_or_a_fault(text: str) -> None:
    """Nothing that anybody writes raises anything else."""
    with suppress(YamlFault):
        parse_yaml(text)
