"""YAML as a small tree with line numbers, built from parser events, never recursively.

PyYAML's composer recurses and its constructor guesses types in its own way. Here a scalar stays the text that was
written, so that its reader can take it as Prometheus does (go-yaml into typed fields). No file costs more than its
bounds: size, nesting, and the number of values once aliases are followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 16
MAX_VALUES = 100_000
"""In a file, with what its aliases stand for counted again at each use."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_STRING_TAG = "tag:yaml.org,2002:str"


class YamlFault(Exception):
    """The text is no YAML, or more than can be taken. `line` counts from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line = line
        self.problem = problem


@dataclass(slots=True)
class Scalar:
    """A single value as it was written; `plain` without quotes."""

    line: int
    text: str
    plain: bool

    @property
    def is_null(self) -> bool:
        """Nothing was given."""
        return self.plain and self.text in _NULLS


@dataclass(slots=True)
class Listing:
    """A sequence. `size` counts the values in it, itself included."""

    line: int
    items: list[Node] = field(default_factory=list)
    size: int = 1
    closed: bool = False


@dataclass(slots=True)
class Mapping:
    """A mapping. Keys that are no text, or given twice, are in `faults`."""

    line: int
    pairs: dict[str, tuple[int, Node]] = field(default_factory=dict)
    """Key to its line and its value."""
    faults: list[tuple[int, str]] = field(default_factory=list)
    size: int = 1
    closed: bool = False


Node = Scalar | Listing | Mapping


@dataclass(slots=True)
class _Open:
    """A collection that is being filled, and the key that waits for its value."""

    node: Listing | Mapping
    anchor: str | None
    key: Scalar | None = None
    bad_key: bool = False
    expects_value: bool = False


def parse_yaml(text: str) -> Node | None:
    """The tree of a text; None where it has no document. Raises YamlFault."""
    try:
        return _Builder().build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it cannot be read"
        raise YamlFault(mark.line + 1 if mark else 0, f"this is not YAML: {problem}") from None
    except yaml.YAMLError as error:  # a control character: has a position in characters at most
        position = getattr(error, "position", None)
        line = text[:position].count("\n") + 1 if isinstance(position, int) else 0
        raise YamlFault(line, "this is not YAML: it has a control character") from None
    except UnicodeEncodeError:
        raise YamlFault(0, "this is not YAML: it has half a character (a surrogate)") from None


class _Builder:
    def __init__(self) -> None:
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._root: Node | None = None
        self._documents = 0
        self._values = 0

    def build(self, events: Any) -> Node | None:  # noqa: ANN401  an iterator of PyYAML's untyped events
        for event in events:
            self._take(event)
        return self._root

    def _take(self, event: Any) -> None:  # noqa: ANN401
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise YamlFault(line, "a second document begins, and there may be only one: write one file for each")
        elif isinstance(event, yaml.ScalarEvent):
            self._check_tag(event, line)
            event.value.encode()  # a surrogate: no terminal, file or log could take it
            plain = bool(event.implicit[0]) and event.tag is None
            self._value(Scalar(line, event.value, plain), event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, line)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._check_tag(event, line)
            node = Listing(line) if isinstance(event, yaml.SequenceStartEvent) else Mapping(line)
            self._value(node, event.anchor)
            self._stack.append(_Open(node, event.anchor))
            if len(self._stack) > MAX_DEPTH:
                raise YamlFault(line, f"this is nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            self._close()

    def _check_tag(self, event: Any, line: int) -> None:  # noqa: ANN401
        if event.tag is not None and event.tag not in {"!", _STRING_TAG}:
            raise YamlFault(line, f"the tag {str(event.tag)[:60]!r} has no place here: leave it out")

    def _alias(self, anchor: str | None, line: int) -> None:
        node = self._anchors.get(anchor or "")
        if node is None:
            raise YamlFault(line, f"*{anchor} refers to nothing before it: a text that begins with * needs quotes")
        if not isinstance(node, Scalar):
            if not node.closed:
                raise YamlFault(line, f"*{anchor} stands inside of what it refers to")
            self._count(node.size - 1, line)
        self._value(node, None)

    def _count(self, more: int, line: int) -> None:
        self._values += more
        if self._values > MAX_VALUES:
            raise YamlFault(line, f"the file has more than {MAX_VALUES} values, aliases counted")

    def _value(self, node: Node, anchor: str | None) -> None:
        self._count(1, node.line)
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        if isinstance(top.node, Listing):
            top.node.items.append(node)
            top.node.size += _size(node)
        elif not top.expects_value:
            top.expects_value = True
            top.key = node if isinstance(node, Scalar) else None
        else:
            self._pair(top, top.node, node)

    def _pair(self, top: _Open, mapping: Mapping, value: Node) -> None:
        key, top.key, top.expects_value = top.key, None, False
        mapping.size += 1 + _size(value)
        if key is None:
            mapping.faults.append((value.line, "a key is no text"))
        elif key.plain and key.text == "<<":
            mapping.faults.append((key.line, "<< is not followed here: write the keys out"))
        elif key.text in mapping.pairs:
            first = mapping.pairs[key.text][0]
            mapping.faults.append((key.line, f"{key.text} is given twice: see line {first}"))
        else:
            mapping.pairs[key.text] = (key.line, value)

    def _close(self) -> None:
        done = self._stack.pop().node
        done.closed = True
        if self._stack:
            self._stack[-1].node.size += done.size


def _size(node: Node) -> int:
    """What it adds to the collection around it now: one that is still being filled adds itself when it is closed."""
    if isinstance(node, Scalar):
        return 1
    return node.size if node.closed else 0
