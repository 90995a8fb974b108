"""Typed access to the YAML of a rule file: what does not fit becomes a fault with its line.

Values are decoded as go-yaml decodes into Prometheus' structs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from gpuagent.core.yaml_document import Limits, YamlList, YamlMapping, YamlNode, YamlScalar
from gpuagent_alerts.rules.formats import parse_milliseconds
from gpuagent_alerts.rules.model import RuleFault, quote_text, suggest

LIMITS = Limits(depth=16, values=100_000)
"""How large and deep a rule file may be."""

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
        self.line = node.place.line
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
        return self._node.pairs[key][0].line if key in self._node.pairs else self.line

    def check_keys(self, known: Collection[str], newer: Mapping[str, str] | None = None) -> None:
        """Fault every key that is not `known`; `newer` says why some that Prometheus has elsewhere are not."""
        for place, name, problem in self._node.faults:
            self.fault(place.line, f"{name} {problem}" if name else problem)
        for key, ((line, _), _) in self._node.pairs.items():
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
        for place, name, problem in node.faults:
            self.fault(place.line, f"{key}: {name} {problem}" if name else f"{key}: {problem}")
        found = {}
        for name, ((line, _), value) in node.pairs.items():
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
                self.fault(item.place.line, f"item {number} of {key} must be a mapping, not {_kind(item)}")

    def scalars(self, key: str) -> list[TextField]:
        """Return a list of texts."""
        found = []
        for number, item in enumerate(self.listing(key), 1):
            if isinstance(item, YamlScalar) and not item.is_null:
                found.append(TextField(item.text, item.place.line))
            else:
                self.fault(item.place.line, f"item {number} of {key} must be text, not {_kind(item)}")
        return found

    def _get(self, key: str) -> YamlNode | None:
        node = self._node.pairs[key][1] if key in self._node.pairs else None
        return None if isinstance(node, YamlScalar) and node.is_null else node


def _kind(node: YamlNode) -> str:
    if isinstance(node, YamlScalar):
        return "nothing" if node.is_null else quote_text(node.text)
    return "a list" if isinstance(node, YamlList) else "a mapping"
