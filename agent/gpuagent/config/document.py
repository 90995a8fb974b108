"""YAML with line numbers: plain values, and the place in the file that each of them came from.

Values are those of PyYAML's SafeLoader, with lists as tuples and dates left as text. No file can
cost more than its bounds: size, nesting, and the number of values once aliases are followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import yaml

from gpuagent.config.faults import KeyPath, Problem, shown

MAX_DEPTH = 32
MAX_VALUES = 5_000
MAX_TEXT_CHARACTERS = 8192
"""Of one value. It bounds what PyYAML reads as an integer in base 60, at the cost of its square."""

_TAG = "tag:yaml.org,2002:"
_TYPED_TAGS = frozenset(_TAG + name for name in ("bool", "int", "float", "null"))
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "value"))
_LIST_TAG, _MAPPING_TAG, _MERGE_TAG = _TAG + "seq", _TAG + "map", _TAG + "merge"


class Place(NamedTuple):
    """Line and column, from 1; 0 is unknown."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """What stands in a file, where, and what is wrong with it as YAML."""

    value: object = None
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[tuple[Place, Problem]] = field(default_factory=list)

    def place_of(self, path: KeyPath) -> Place:
        """Where `path` stands, or else the nearest thing around it that has a place."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(0, 0))


class YamlFault(Exception):
    """The text is no YAML, or more than can be taken."""

    def __init__(self, place: Place, problem: str) -> None:
        super().__init__(place, problem)
        self.place = place
        self.problem = problem


def read_document(text: str) -> Document:
    """Read a file's text. Raises YamlFault where there is nothing to go on with."""
    try:
        loader = _BoundedLoader(text)
    except yaml.reader.ReaderError as error:
        raise YamlFault(place_in(text, error.position), "has a control character") from None
    try:
        node = loader.get_single_node()
        return Document() if node is None else _Walk(loader).document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlFault(_place(mark) if mark else Place(0, 0), _in_words(error)) from None
    finally:
        loader.dispose()


def place_in(text: str, position: int) -> Place:
    """Return the place of a character of the text."""
    before = text[:position]
    return Place(before.count("\n") + 1, position - before.rfind("\n"))


class _BoundedLoader(yaml.SafeLoader):
    """Composes a tree of nodes, but never a deep or a large one: PyYAML recurses."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        self._nodes += 1
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        _check_bounds(mark, self._depth, self._nodes)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Walk:
    """Turns nodes into values and notes their places."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._visits = 0
        self._found = Document()

    def document(self, root: yaml.Node) -> Document:
        self._found.places[()] = _place(root.start_mark)
        value = self._value(root, (), 1)
        return Document(value, self._found.places, self._found.problems)

    def _value(self, node: yaml.Node, path: KeyPath, depth: int) -> object:
        self._visits += 1
        _check_bounds(node.start_mark, depth, self._visits)
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING_TAG:
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _LIST_TAG:
            items = []
            for index, item in enumerate(node.value):
                self._found.places[*path, index] = _place(item.start_mark)
                items.append(self._value(item, (*path, index), depth + 1))
            return tuple(items)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise YamlFault(_place(node.start_mark), f"has the tag {shown(node.tag)}, which is unknown")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, object]:
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE_TAG:
                values = {**self._merged(value_node, path, depth), **values}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            place = _place(key_node.start_mark)
            if key_node.tag == _MERGE_TAG:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(place, path, "has a key that is no text")
                continue
            key = _bounded(key_node)
            if key in lines:
                self._problem(place, (*path, key), f"is given twice: see line {lines[key]}")
                continue
            lines[key] = place.line
            self._found.places[*path, key] = place
            values[key] = self._value(value_node, (*path, key), depth + 1)
        return values

    def _merged(self, node: yaml.Node, path: KeyPath, depth: int) -> dict[str, object]:
        """Return what `<<: *anchor` or `<<: [*one, *other]` brings in."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, object] = {}
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                raise YamlFault(_place(node.start_mark), "<< takes a mapping")
            self._visits += 1
            _check_bounds(node.start_mark, depth, self._visits)
            for name, value in self._mapping(source, path, depth + 1).items():
                merged.setdefault(name, value)
        return merged

    def _scalar(self, node: yaml.ScalarNode) -> object:
        place = _place(node.start_mark)
        text = _bounded(node)
        if node.tag in _TEXT_TAGS:
            return text
        if node.tag not in _TYPED_TAGS:
            raise YamlFault(place, f"has the tag {shown(node.tag)}, which is unknown")
        try:
            value: object = self._loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):  # !!int x, or a number of 5,000 digits
            raise YamlFault(place, "has a number that cannot be read") from None
        if isinstance(value, int) and value.bit_length() > 64:  # Python may refuse to write it
            raise YamlFault(place, "has a number of more than 64 bits")
        return value

    def _problem(self, place: Place, path: KeyPath, problem: str) -> None:
        self._found.problems.append((place, Problem(path, problem)))


def _check_bounds(mark: yaml.Mark, depth: int, count: int) -> None:
    if depth > MAX_DEPTH:
        raise YamlFault(_place(mark), f"is nested more than {MAX_DEPTH} levels deep")
    if count > MAX_VALUES:
        raise YamlFault(_place(mark), f"has more than {MAX_VALUES} values, aliases counted")


def _bounded(node: yaml.ScalarNode) -> str:
    text: str = node.value
    if len(text) > MAX_TEXT_CHARACTERS:
        place = _place(node.start_mark)
        raise YamlFault(place, f"has a text of more than {MAX_TEXT_CHARACTERS} characters")
    try:
        text.encode()
    except UnicodeEncodeError:  # "\\ud800": no terminal, file or log could take it
        raise YamlFault(_place(node.start_mark), "has half a character (a surrogate)") from None
    return text


def _place(mark: yaml.Mark) -> Place:
    return Place(mark.line + 1, mark.column + 1)


_IN_WORDS = {
    "mapping values are not allowed": "a colon does not fit: is the line indented right, does a "
    "text with a colon need quotes?",
    "could not find expected ':'": "a key has no colon after it",
    "another document": "a second document begins, and there may be only one",
    "'\\t'": "a tab stands where only spaces may",
    "end of stream": "a quote or bracket is never closed",
    "undefined alias": "a text that begins with * needs quotes",
    "cannot start any token": "a text that begins with this character needs quotes",
    "expected <block end>": "the line is indented otherwise than those above it, or a text needs quotes",
    "expected ',' or": "a comma or a closing bracket is missing",
}


def _in_words(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's finding without its jargon."""
    found = error.problem or error.context or "it cannot be read"
    plain = next((plain for words, plain in _IN_WORDS.items() if words in found), found)
    return f"this is not YAML: {plain}"
