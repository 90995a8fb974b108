"""What docstrings, comments and ARCHITECTURE.md name of this code exists: a rename that forgets them is found."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.packaging.test_house_style import ROOT, modules

PRODUCT = ("agent", "exporters", "alerts", "client", "simulator")
FOREIGN = re.compile(
    r"https?://|\.[ch]\b|\(\d\)|kernel|systemd|torch|sglang|vllm|jax|Slurm|NVML|Docker|Prometheus|Alertmanager",
    re.IGNORECASE,
)
"""A text that names one of these may name its functions and files too."""
NOT_OURS = {
    "PathExists", "RestartSec", "max_requests", "request_head",  # systemd, gunicorn, httptools
    "_old_forward", "f_type", "a_b", "SafeEncodeString", "focused_turing",  # accelerate, statfs(2), Slack, runc, Docker
    "gpuagent.incident.began",  # an event of OpenTelemetry
}  # fmt: skip
RAISES = re.compile(r"\b[Rr]aises ((?:[A-Z]\w+(?:, | and | or )?)+)")
RAISES_LIST = re.compile(r"\bRaises:\n(?: +.*\n?)+")
RAISED = re.compile(r"^ +([A-Z]\w+(?:, [A-Z]\w+)*): ", re.MULTILINE)
DOTTED = re.compile(r"`(gpuagent\w*(?:\.\w+)+)`")
NAMED = re.compile(r"`(?:[\w/]+[./])?(\w*[a-z]_[a-z]\w*|[A-Z][a-z]+[A-Z]\w+|\w+(?=\.py`))(?:\(\)|\.py)?`")


class SourceText(NamedTuple):
    """A docstring or comment, with the path of its module."""

    path: str
    text: str


class Code(NamedTuple):
    """Words of the product's code, with the names of its tests, and what is written beside them."""

    words: frozenset[str]
    texts: tuple[SourceText, ...]


@functools.cache
def code() -> Code:
    """Read every module of the product once."""
    words = {*dir(builtins), *(path.stem for path in modules("tests"))}
    texts: list[SourceText] = []
    for path in modules(*PRODUCT):
        source, name = path.read_text(), str(path.relative_to(ROOT))
        words.update(path.relative_to(ROOT).with_suffix("").parts)
        texts += [SourceText(name, comment) for comment in re.findall(r"(?:^|  )# .*", source, re.MULTILINE)]
        tree = ast.parse(source)
        docstrings = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings.add(node.value)
                texts.append(SourceText(name, str(node.value.value)))
            words.update(words_of(node, docstrings))
    return Code(frozenset(words), tuple(texts))


def words_of(node: ast.AST, docstrings: set[ast.Constant]) -> Iterator[str]:
    """Names of a node, and the words of a string that is no docstring."""
    for field in ("id", "attr", "arg", "name", "module", "asname"):
        if isinstance(word := getattr(node, field, None), str):
            yield from word.split(".")
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
        yield from re.findall(r"\w+", node.value)


def unknown_names(text: str, words: frozenset[str]) -> list[str]:
    """Names in backticks that no code has, and exceptions that no code raises."""
    raised = [each[1] for each in RAISES.finditer(text)]
    raised += [each[1] for part in RAISES_LIST.finditer(text) for each in RAISED.finditer(part[0])]
    found = [name for names in raised for name in re.findall(r"[A-Z]\w+", names)]
    if not FOREIGN.search(text):
        found += NAMED.findall(text)
    return [name for name in found if name not in words and name not in NOT_OURS]


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@pytest.mark.slow
def test_named_code_exists() -> None:
    """Names in backticks and exceptions under `Raises` are those of the code."""
    words, texts = code()
    unknown = [(each.path, name) for each in texts for name in unknown_names(each.text, words)]

    assert len(texts) > 5000
    assert unknown == []


@pytest.mark.slow
def test_dotted_names_exist() -> None:
    """A module, class or function under its full name can be imported."""
    named = {(each.path, dotted) for each in code().texts for dotted in DOTTED.findall(each.text)}

    assert len(named) > 20
    assert {(path, dotted) for path, dotted in named if dotted not in NOT_OURS and not exists(dotted)} == set()


def test_files_of_the_tour_exist() -> None:
    """ARCHITECTURE.md names modules that are there."""
    stems = {path.name for root in (*PRODUCT, "tests") for path in (ROOT / root).rglob("*.py")}
    named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()))

    assert len(named) > 100
    assert named - stems == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Return it. Raises Gone, ValueError.", ["Gone"]),
        ("Return it.\n\nRaises:\n    Gone: it went.\n    ValueError: it is odd.\n", ["Gone"]),
        ("Which `is_odd` tells, as `found` does.", ["is_odd"]),
        ("The words of `window.py`, see `a/there.py`.", ["window"]),
        ("The kernel's `do_exit` (https://example.org).", []),
    ],
    ids=["raises", "raises-list", "function", "file", "foreign"],
)
def test_an_unknown_name_is_found(text: str, found: list[str]) -> None:
    """The checks above see exceptions, functions and files, and leave what belongs to others alone."""
    assert unknown_names(text, frozenset({"ValueError", "there"})) == found
