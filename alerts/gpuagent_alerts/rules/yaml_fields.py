"""YAML with line numbers, and typed access to it: what does not fit becomes a fault with its line.

Values are decoded as go-yaml decodes into Prometheus' structs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from gpuagent_alerts.rules.formats import parse_milliseconds
from gpuagent_alerts.rules.model import RuleFault, quote_text, suggest

MAX_FILE_BYTES = 1024 * 1024
MAX_DEPTH = 16
MAX_VALUES = 100_000
"""Most values in a file; what aliases stand for is counted again at each use."""

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
class YamlScalar:
    """A single value as it was written; `plain` without quotes."""

    line: int
    text: str
    plain: bool

    @property
    def is_null(self) -> bool:
        """Nothing was given."""
        return self.plain and self.text in _NULLS


@dataclass(slots=True)
class YamlList:
    """A sequence. `size` counts the values in it, itself included."""

    line: int
    items: list[YamlNode] = field(default_factory=list)
    size: int = 1
    closed: bool = False


@dataclass(slots=True)
class YamlMapping:
    """A mapping. Keys that are no text, or given twice, are in `faults`."""

    line: int
    pairs: dict[str, tuple[int, YamlNode]] = field(default_factory=dict)
    """Key to its line and its value."""
    faults: list[tuple[int, str]] = field(default_factory=list)
    size: int = 1
    closed: bool = False


YamlNode = YamlScalar | YamlList | YamlMapping


@dataclass(slots=True)
class _Open:
    """A collection that is being filled, and the key that waits for its value."""

    node: YamlList | YamlMapping
    anchor: str | None
    key: YamlScalar | None = None
    bad_key: bool = False
    expects_value: bool = False


def parse_yaml(text: str) -> YamlNode | None:
    """Return the tree of a text; None where it has no document. Raises YamlFault."""
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
        self._anchors: dict[str, YamlNode] = {}
        self._root: YamlNode | None = None
        self._documents = 0
        self._values = 0

    def build(self, events: Any) -> YamlNode | None:  # noqa: ANN401  an iterator of PyYAML's untyped events
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
            self._value(YamlScalar(line, event.value, plain), event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, line)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._check_tag(event, line)
            node = YamlList(line) if isinstance(event, yaml.SequenceStartEvent) else YamlMapping(line)
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
        if not isinstance(node, YamlScalar):
            if not node.closed:
                raise YamlFault(line, f"*{anchor} stands inside of what it refers to")
            self._count(node.size - 1, line)
        self._value(node, None)

    def _count(self, more: int, line: int) -> None:
        self._values += more
        if self._values > MAX_VALUES:
            raise YamlFault(line, f"the file has more than {MAX_VALUES} values, aliases counted")

    def _value(self, node: YamlNode, anchor: str | None) -> None:
        self._count(1, node.line)
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._stack:
            self._root = node
            return
        top = self._stack[-1]
        if isinstance(top.node, YamlList):
            top.node.items.append(node)
            top.node.size += _size(node)
        elif not top.expects_value:
            top.expects_value = True
            top.key = node if isinstance(node, YamlScalar) else None
        else:
            self._pair(top, top.node, node)

    def _pair(self, top: _Open, mapping: YamlMapping, value: YamlNode) -> None:
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


def _size(node: YamlNode) -> int:
    """Return what it adds to the collection around it now: an open one adds itself when it is closed."""
    if isinstance(node, YamlScalar):
        return 1
    return node.size if node.closed else 0


_INTEGER = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


class TextField(NamedTuple):
    """A text and the line that it stands on."""

    text: str
    line: int


class FaultCollector:
    """Collects the faults of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[RuleFault] = []

    def add(self, line: int, problem: str, *, group: str = "", rule: str = "", remedy: str = "") -> None:
        self.faults.append(RuleFault(self.file, line, problem, group, rule, remedy))

    def sorted(self) -> list[RuleFault]:
        """Return the faults in the order of the file."""
        return sorted(self.faults, key=lambda fault: fault.line)


class MappingFields:
    """One mapping of the file, and who it belongs to. A value that is null counts as not given."""

    def __init__(self, sink: FaultCollector, node: YamlMapping, *, group: str = "", rule: str = "") -> None:
        self.line = node.line
        self.group = group
        self.rule = rule
        self.file = sink.file
        self._sink = sink
        self._node = node

    def fault(self, line: int, problem: str, remedy: str = "") -> None:
        """Note what is wrong here."""
        self._sink.add(line, problem, group=self.group, rule=self.rule, remedy=remedy)

    def inner(self, node: YamlMapping) -> MappingFields:
        """Return a mapping inside of this one, of the same group and rule."""
        return MappingFields(self._sink, node, group=self.group, rule=self.rule)

    def has(self, key: str) -> bool:
        """Return whether it is given."""
        return self._get(key) is not None

    def line_of(self, key: str) -> int:
        """Return the line of a key, or else of the mapping."""
        return self._node.pairs[key][0] if key in self._node.pairs else self.line

    def check_keys(self, known: Collection[str], newer: Mapping[str, str] | None = None) -> None:
        """Fault every key that is not `known`; `newer` says why some that Prometheus has elsewhere are not."""
        for line, problem in self._node.faults:
            self.fault(line, problem)
        for key, (line, _) in self._node.pairs.items():
            if key in known:
                continue
            why = (newer or {}).get(key)
            if why:
                self.fault(line, f"{key} is {why}", "leave it out")
            else:
                self.fault(line, f"the key {quote_text(key)} is unknown", suggest(key, known))

    def text(self, key: str) -> TextField | None:
        """Return a scalar, as it was written."""
        node = self._get(key)
        if node is None:
            return None
        if not isinstance(node, YamlScalar):
            self.fault(self.line_of(key), f"{key} must be text, not {_kind(node)}")
            return None
        return TextField(node.text, self.line_of(key))

    def milliseconds(self, key: str) -> int:
        """Return a duration; 0 where none is given."""
        found = self.text(key)
        if found is None:
            return 0
        try:
            return parse_milliseconds(found.text)
        except ValueError as error:
            self.fault(found.line, f"{key}: {error}")
            return 0

    def integer(self, key: str) -> int:
        """Return a number from 0; 0 where none is given."""
        found = self.text(key)
        if found is None:
            return 0
        if not _INTEGER.fullmatch(found.text):
            self.fault(found.line, f"{key} must be a whole number, 0 or more, not {quote_text(found.text)}")
            return 0
        return int(found.text)

    def texts(self, key: str) -> dict[str, TextField]:
        """Return a mapping of texts, such as labels."""
        node = self._get(key)
        if node is None:
            return {}
        if not isinstance(node, YamlMapping):
            self.fault(self.line_of(key), f"{key} must be a mapping of names to texts, not {_kind(node)}")
            return {}
        for line, problem in node.faults:
            self.fault(line, f"{key}: {problem}")
        found = {}
        for name, (line, value) in node.pairs.items():
            if isinstance(value, YamlScalar) and not value.is_null:
                found[name] = TextField(value.text, line)
            else:
                self.fault(line, f"{key}: {quote_text(name)} must be text, not {_kind(value)}", 'an empty text is ""')
        return found

    def listing(self, key: str) -> list[YamlNode]:
        """Return a list; empty where none is given."""
        node = self._get(key)
        if node is None:
            return []
        if not isinstance(node, YamlList):
            self.fault(self.line_of(key), f"{key} must be a list, not {_kind(node)}")
            return []
        return node.items

    def sections(self, key: str) -> Iterator[YamlMapping]:
        """Yield a list of mappings."""
        for number, item in enumerate(self.listing(key), 1):
            if isinstance(item, YamlMapping):
                yield item
            else:
                self.fault(item.line, f"item {number} of {key} must be a mapping, not {_kind(item)}")

    def scalars(self, key: str) -> list[TextField]:
        """Return a list of texts."""
        found = []
        for number, item in enumerate(self.listing(key), 1):
            if isinstance(item, YamlScalar) and not item.is_null:
                found.append(TextField(item.text, item.line))
            else:
                self.fault(item.line, f"item {number} of {key} must be text, not {_kind(item)}")
        return found

    def _get(self, key: str) -> YamlNode | None:
        node = self._node.pairs[key][1] if key in self._node.pairs else None
        return None if isinstance(node, YamlScalar) and node.is_null else node


def _kind(node: YamlNode) -> str:
    if isinstance(node, YamlScalar):
        return "nothing" if node.is_null else quote_text(node.text)
    return "a list" if isinstance(node, YamlList) else "a mapping"
