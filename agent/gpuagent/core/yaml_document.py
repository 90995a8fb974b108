"""YAML with line numbers: a tree of what was written, and plain values with the place that each of them came from.

Trees are built from the events of a parser, so nothing recurses on what is nested, and no file can cost more than its
`Limits`: nesting, and the number of values once aliases are followed. A scalar keeps its text as it was written;
`plain_values` gives it the type that PyYAML's SafeLoader would, with lists as tuples and dates left as text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from gpuagent.core.problems import KeyPath, Problem, shown

MAX_TEXT_CHARACTERS = 8192
"""The longest of the `plain_values`: PyYAML reads an integer in base 60 at the cost of the square of its length."""

_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Parses rule files, which may be large: libyaml, as go-yaml, refuses some of what PyYAML takes, such as `{a:}`."""
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TAG = "tag:yaml.org,2002:"
_STRING_TAGS = frozenset({"!", f"{_TAG}str"})
_LIST_TAG, _MAPPING_TAG = f"{_TAG}seq", f"{_TAG}map"
_TYPED_TAGS = {f"{_TAG}{name}": name for name in ("bool", "int", "float", "null")}


class Place(NamedTuple):
    """Line and column, from 1; 0 is unknown."""

    line: int
    column: int


class Limits(NamedTuple):
    """How much a file may hold."""

    depth: int
    """Most levels of lists and mappings."""
    values: int
    """Most values and keys; what aliases stand for is counted again at each use."""
    typed: bool = False
    """Whether `<<` brings in another mapping's keys, and tags such as `!!int` a type; else both are faults."""


class YamlFault(Exception):
    """The text is no YAML, or more than can be taken."""

    def __init__(self, place: Place, problem: str) -> None:
        super().__init__(place, problem)
        self.place = place
        self.problem = problem


@dataclass(slots=True)
class YamlScalar:
    """A single value as it was written; `plain` without quotes."""

    place: Place
    text: str
    plain: bool
    tag: str = ""
    """A tag that asks for a type, such as `!!int`; "" for none and for text."""

    @property
    def is_null(self) -> bool:
        """Whether nothing was given."""
        return self.plain and self.text in _NULLS


@dataclass(slots=True)
class YamlList:
    """A sequence. `size` counts the values in it, itself included."""

    place: Place
    items: list[YamlNode] = field(default_factory=list)
    size: int = 1
    closed: bool = False
    tag: str = ""


@dataclass(slots=True)
class YamlMapping:
    """A mapping. Keys that are no text, or given twice, are in `faults`, with the key or ""."""

    place: Place
    pairs: dict[str, tuple[Place, YamlNode]] = field(default_factory=dict)
    """Key to its place and its value."""
    merges: list[YamlNode] = field(default_factory=list)
    """What `<<` names."""
    faults: list[tuple[Place, str, str]] = field(default_factory=list)
    size: int = 1
    closed: bool = False
    tag: str = ""


YamlNode = YamlScalar | YamlList | YamlMapping


@dataclass(frozen=True, slots=True)
class Document:
    """Plain values of a file, where each stands, and what is wrong with them as YAML."""

    value: object = None
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[tuple[Place, Problem]] = field(default_factory=list)

    def place_of(self, path: KeyPath) -> Place:
        """Return where `path` stands, or else the nearest thing around it that has a place."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(0, 0))


def place_in(text: str, position: int) -> Place:
    """Return the place of a character of the text."""
    before = text[:position]
    return Place(before.count("\n") + 1, position - before.rfind("\n"))


def read_document(text: str, limits: Limits) -> Document:
    """Return the plain values of a text. Raises YamlFault where there is nothing to go on with."""
    return plain_values(parse_yaml(text, limits))


def parse_yaml(text: str, limits: Limits) -> YamlNode | None:
    """Return the tree of a text; None where it has no document. Raises YamlFault."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if found is not None:
        half = "\ud800" <= found[0] <= "\udfff"
        problem = "half a character (a surrogate)" if half else "a control character"
        raise YamlFault(place_in(text, found.start()), f"has {problem}")
    try:
        return _Builder(limits).build(yaml.parse(text, Loader=yaml.SafeLoader if limits.typed else _FAST_LOADER))
    except yaml.MarkedYAMLError as error:
        raise _fault_of(error, text) from None
    except yaml.YAMLError as error:
        raise YamlFault(Place(0, 0), f"this is not YAML: {error}") from None


_IN_WORDS = {
    "mapping values are not allowed": "a colon does not fit: is the line indented right, does a "
    "text with a colon need quotes?",
    "could not find expected ':'": "a key has no colon after it",
    "<document start>": "a text before this needs quotes, or the line is indented otherwise than those above it",
    "end of stream": "a quote or bracket is never closed",
    "cannot start any token": "a text that begins with this character needs quotes",
    "invalid Unicode character escape": "an escape is half a character (a surrogate), or none",
    "expected ',' or": "a comma or a closing bracket is missing",
    "did not find expected": "the line is indented otherwise than those above it, or a text needs quotes",
    "expected <block end>": "the line is indented otherwise than those above it, or a text needs quotes",
}
"""Words of a finding, and what it means. The parser in C and the one in Python say some things differently."""


def _fault_of(error: yaml.MarkedYAMLError, text: str) -> YamlFault:
    """Return PyYAML's finding without its jargon."""
    found = error.problem or error.context or "it cannot be read"
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return YamlFault(Place(0, 0), f"this is not YAML: {found}")
    lines = text.splitlines()
    rest = lines[mark.line][mark.column :] if mark.line < len(lines) else ""
    plain = next((plain for words, plain in _IN_WORDS.items() if words in found), found)
    if rest.startswith("\t"):
        plain = "a tab stands where only spaces may"
    elif not rest and mark.line >= len(lines) - 1:
        mark, plain = error.context_mark or mark, "a quote or bracket is never closed"
    place = _place(mark)
    return YamlFault(place._replace(line=min(place.line, max(len(lines), 1))), f"this is not YAML: {plain}")


def _place(mark: Any) -> Place:  # noqa: ANN401  one of two untyped marks
    return Place(mark.line + 1, mark.column + 1)


# ---- from events to a tree ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Open:
    """A collection that is being filled, and the key that waits for its value."""

    node: YamlList | YamlMapping
    key: YamlScalar | None = None
    expects_value: bool = False


class _Builder:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
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
        place = _place(event.start_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise YamlFault(place, "a second document begins, and there may be only one: write one file for each")
        elif isinstance(event, yaml.ScalarEvent):
            plain = bool(event.implicit[0]) and event.tag is None
            self._check_text(event.value, place)
            self._value(
                YamlScalar(place, event.value, plain, _tag(event, place, _TYPED_TAGS if self._limits.typed else {})),
                event.anchor,
            )
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor, place)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            is_list = isinstance(event, yaml.SequenceStartEvent)
            tag = _tag(event, place, {_LIST_TAG if is_list else _MAPPING_TAG: ""} if self._limits.typed else {})
            node = YamlList(place, tag=tag) if is_list else YamlMapping(place, tag=tag)
            self._value(node, event.anchor)
            self._stack.append(_Open(node))
            if len(self._stack) > self._limits.depth:
                raise YamlFault(place, f"this is nested more than {self._limits.depth} levels deep")
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            self._close()

    def _check_text(self, text: str, place: Place) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:  # "\\ud800": no terminal, file or log could take it
            raise YamlFault(place, "has half a character (a surrogate)") from None

    def _alias(self, anchor: str | None, place: Place) -> None:
        node = self._anchors.get(anchor or "")
        if node is None:
            raise YamlFault(place, f"*{anchor} refers to nothing before it: a text that begins with * needs quotes")
        if not isinstance(node, YamlScalar):
            if not node.closed:
                raise YamlFault(place, f"*{anchor} stands inside of what it refers to")
            self._count(node.size - 1, place)
        self._value(node, None)

    def _count(self, more: int, place: Place) -> None:
        self._values += more
        if self._values > self._limits.values:
            raise YamlFault(place, f"the file has more than {self._limits.values} values, aliases counted")

    def _value(self, node: YamlNode, anchor: str | None) -> None:
        self._count(1, node.place)
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
            mapping.faults.append((value.place, "", "a key is no text"))
        elif key.plain and key.text == "<<":
            if self._limits.typed:
                mapping.merges.append(value)
            else:
                mapping.faults.append((key.place, "", "<< is not followed here: write the keys out"))
        elif key.text in mapping.pairs:
            first = mapping.pairs[key.text][0].line
            mapping.faults.append((key.place, key.text, f"is given twice: see line {first}"))
        else:
            mapping.pairs[key.text] = (key.place, value)

    def _close(self) -> None:
        done = self._stack.pop().node
        done.closed = True
        if self._stack:
            self._stack[-1].node.size += done.size


def _tag(event: Any, place: Place, known: dict[str, str]) -> str:  # noqa: ANN401
    """Return the type that a tag asks for; "" where there is no tag, or that of a text."""
    if event.tag is None or event.tag in _STRING_TAGS:
        return ""
    if event.tag not in known:
        raise YamlFault(place, f"the tag {shown(str(event.tag))} has no place here: leave it out")
    return known[event.tag]


def _size(node: YamlNode) -> int:
    """Return what it adds to the collection around it now: an open one adds itself when it is closed."""
    if isinstance(node, YamlScalar):
        return 1
    return node.size if node.closed else 0


# ---- from a tree to plain values ---------------------------------------------------------------------


def plain_values(root: YamlNode | None) -> Document:
    """Return the values of a tree, typed as PyYAML's SafeLoader does. Raises YamlFault."""
    document = Document()
    if root is None:
        return document
    document.places[()] = root.place
    return Document(_value(document, root, ()), document.places, document.problems)


def _value(document: Document, node: YamlNode, path: KeyPath) -> object:
    if isinstance(node, YamlMapping):
        return _mapping(document, node, path)
    if isinstance(node, YamlScalar):
        return _scalar(node)
    items = []
    for index, item in enumerate(node.items):
        document.places[*path, index] = item.place
        items.append(_value(document, item, (*path, index)))
    return tuple(items)


def _mapping(document: Document, node: YamlMapping, path: KeyPath) -> dict[str, object]:
    values: dict[str, object] = {}
    for merged in node.merges:
        for source in merged.items if isinstance(merged, YamlList) else [merged]:
            if not isinstance(source, YamlMapping):
                raise YamlFault(merged.place, "<< takes a mapping")
            for name, value in _mapping(document, source, path).items():
                values.setdefault(name, value)
    for name, (place, value_node) in node.pairs.items():
        document.places[*path, name] = place
        values.pop(name, None)
        values[name] = _value(document, value_node, (*path, name))
    for place, name, problem in node.faults:
        document.problems.append((place, Problem((*path, name) if name else path, problem)))
    return values


class _Scalars(yaml.constructor.SafeConstructor, yaml.resolver.Resolver):
    """Types of scalars alone: what a plain text is, and how its value is had."""

    def __init__(self) -> None:
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)


_SCALARS = _Scalars()


def _type_of(text: str) -> str:
    """Return the type of a text without quotes; "" for a text."""
    tag: str = _SCALARS.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _TYPED_TAGS.get(tag, "")


def _scalar(node: YamlScalar) -> object:
    kind = node.tag
    if not kind and node.plain:
        kind = _type_of(node.text)
    if len(node.text) > MAX_TEXT_CHARACTERS:
        raise YamlFault(node.place, f"has a text of more than {MAX_TEXT_CHARACTERS} characters")
    if not kind:
        return node.text
    try:
        construct = getattr(_SCALARS, f"construct_yaml_{kind}")
        value: object = construct(yaml.ScalarNode(f"{_TAG}{kind}", node.text))
    except (ValueError, LookupError, ArithmeticError):  # !!int x, or a number of 5,000 digits
        raise YamlFault(node.place, "has a number that cannot be read") from None
    if isinstance(value, int) and value.bit_length() > 64:  # Python may refuse to write it
        raise YamlFault(node.place, "has a number of more than 64 bits")
    return value
