"""Typed access to a YAML mapping, as go-yaml decodes into Prometheus' structs; what does not fit becomes a fault."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from collections.abc import Mapping as Dict
from typing import NamedTuple

from gpuagent_alerts.rules.durations import parse_milliseconds
from gpuagent_alerts.rules.faults import RuleFault, guess, shown
from gpuagent_alerts.rules.nodes import Listing, Mapping, Node, Scalar

_INTEGER = re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


class Text(NamedTuple):
    """A text and the line that it stands on."""

    text: str
    line: int


class Sink:
    """Collects the faults of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.faults: list[RuleFault] = []

    def add(self, line: int, problem: str, *, group: str = "", rule: str = "", remedy: str = "") -> None:
        self.faults.append(RuleFault(self.file, line, problem, group, rule, remedy))

    def sorted(self) -> list[RuleFault]:
        """In the order of the file."""
        return sorted(self.faults, key=lambda fault: fault.line)


class Fields:
    """One mapping of the file, and who it belongs to. A value that is null counts as not given."""

    def __init__(self, sink: Sink, node: Mapping, *, group: str = "", rule: str = "") -> None:
        self.line = node.line
        self.group = group
        self.rule = rule
        self.file = sink.file
        self._sink = sink
        self._node = node

    def fault(self, line: int, problem: str, remedy: str = "") -> None:
        """Note what is wrong here."""
        self._sink.add(line, problem, group=self.group, rule=self.rule, remedy=remedy)

    def inner(self, node: Mapping) -> Fields:
        """A mapping inside of this one, of the same group and rule."""
        return Fields(self._sink, node, group=self.group, rule=self.rule)

    def has(self, key: str) -> bool:
        """Whether it is given."""
        return self._get(key) is not None

    def line_of(self, key: str) -> int:
        """The line of a key, or else of the mapping."""
        return self._node.pairs[key][0] if key in self._node.pairs else self.line

    def check_keys(self, known: Collection[str], newer: Dict[str, str] | None = None) -> None:
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
                self.fault(line, f"the key {shown(key)} is unknown", guess(key, known))

    def text(self, key: str) -> Text | None:
        """A scalar, as it was written."""
        node = self._get(key)
        if node is None:
            return None
        if not isinstance(node, Scalar):
            self.fault(self.line_of(key), f"{key} must be text, not {_kind(node)}")
            return None
        return Text(node.text, self.line_of(key))

    def milliseconds(self, key: str) -> int:
        """A duration; 0 where none is given."""
        found = self.text(key)
        if found is None:
            return 0
        try:
            return parse_milliseconds(found.text)
        except ValueError as error:
            self.fault(found.line, f"{key}: {error}")
            return 0

    def integer(self, key: str) -> int:
        """A number from 0; 0 where none is given."""
        found = self.text(key)
        if found is None:
            return 0
        if not _INTEGER.fullmatch(found.text):
            self.fault(found.line, f"{key} must be a whole number, 0 or more, not {shown(found.text)}")
            return 0
        return int(found.text)

    def texts(self, key: str) -> dict[str, Text]:
        """A mapping of texts, such as labels."""
        node = self._get(key)
        if node is None:
            return {}
        if not isinstance(node, Mapping):
            self.fault(self.line_of(key), f"{key} must be a mapping of names to texts, not {_kind(node)}")
            return {}
        for line, problem in node.faults:
            self.fault(line, f"{key}: {problem}")
        found = {}
        for name, (line, value) in node.pairs.items():
            if isinstance(value, Scalar) and not value.is_null:
                found[name] = Text(value.text, line)
            else:
                self.fault(line, f"{key}: {shown(name)} must be text, not {_kind(value)}", 'an empty text is ""')
        return found

    def listing(self, key: str) -> list[Node]:
        """A list; empty where none is given."""
        node = self._get(key)
        if node is None:
            return []
        if not isinstance(node, Listing):
            self.fault(self.line_of(key), f"{key} must be a list, not {_kind(node)}")
            return []
        return node.items

    def sections(self, key: str) -> Iterator[Mapping]:
        """A list of mappings."""
        for number, item in enumerate(self.listing(key), 1):
            if isinstance(item, Mapping):
                yield item
            else:
                self.fault(item.line, f"item {number} of {key} must be a mapping, not {_kind(item)}")

    def scalars(self, key: str) -> list[Text]:
        """A list of texts."""
        found = []
        for number, item in enumerate(self.listing(key), 1):
            if isinstance(item, Scalar) and not item.is_null:
                found.append(Text(item.text, item.line))
            else:
                self.fault(item.line, f"item {number} of {key} must be text, not {_kind(item)}")
        return found

    def _get(self, key: str) -> Node | None:
        node = self._node.pairs[key][1] if key in self._node.pairs else None
        return None if isinstance(node, Scalar) and node.is_null else node


def _kind(node: Node) -> str:
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else shown(node.text)
    return "a list" if isinstance(node, Listing) else "a mapping"
