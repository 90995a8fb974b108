"""Sections of a file that a person writes, declared as dataclasses; and how one is read, with every fault at once.

A `Section` declares each key by an annotation and `key(...)`. The reader, the faults and the reference are all made
from the declaration, so none of them can lag behind it.
"""

from __future__ import annotations

import keyword
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from gpuagent.core.problems import KeyPath, Problem, kind_of, listed, nearest, shown


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Where the file is, which the values may be relative to."""

    folder: Path = Path("/")
    credentials: str = ""
    """`$CREDENTIALS_DIRECTORY`; "" where systemd sets none."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """How a kind of value is read and written, and what may be written, in words. Annotates a Python type."""

    allowed: str
    read: Callable[[object, ReadContext], Any]
    """Returns the value, or raises ValueError with what is wrong with it."""
    write: Callable[[Any], str] = str
    """Returns the value as the file would have it, without a secret."""


@dataclass(frozen=True, slots=True)
class ShortForm:
    """A shorter way to write a value, such as `6GiB` for a constant amount. Annotates a Python type."""

    allowed: str
    """What may be written, in words, short or in full."""
    expand: Callable[[object], object]
    """Returns the value written in full, and any other value as it is; raises ValueError. Also called with None."""


class SecretText:
    """A text that does not show itself."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def get_secret_value(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "SecretText(<hidden>)"


def _read_bool(value: object, _: ReadContext) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {kind_of(value)}")
    return value


def _read_whole_number(value: object, _: ReadContext) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {kind_of(value)}")
    return value


def _read_text(value: object, _: ReadContext) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {kind_of(value)}")
    return value


_BUILT_IN = {
    bool: ValueType("true or false", _read_bool, lambda value: str(value).lower()),
    int: ValueType("a whole number", _read_whole_number),
    str: ValueType("text", _read_text),
}


@dataclass(frozen=True, slots=True)
class _Options:
    """What `key` was given, beside the default."""

    description: str = ""
    ge: float | None = None
    le: float | None = None
    min_length: int = 0
    max_length: int | None = None


def key(
    *,
    default: Any = MISSING,  # noqa: ANN401  of the type that the key has
    description: str | None = "",
    ge: float | None = None,
    le: float | None = None,
    min_length: int = 0,
    max_length: int | None = None,
    repr: bool = True,  # noqa: A002  as of `dataclasses.field`
) -> Any:  # noqa: ANN401
    """Declare a key: what it is for, its least and largest value, and how many items its list has."""
    options = _Options(description or "", ge, le, min_length, max_length)
    return field(default=default, repr=repr, metadata={"key": options})


@dataclass(frozen=True, slots=True)
class Key:
    """One place that a value may stand in: a key of a section, or an item of its list."""

    annotation: Any
    """Its type, without `Annotated` and without None."""
    value_type: ValueType | None
    options: _Options = _Options()
    default: Any = None
    is_required: bool = False
    is_optional: bool = False
    """Whether None may be given."""
    short_forms: tuple[ShortForm, ...] = ()
    """In the order in which they are expanded."""

    @classmethod
    def of(cls, annotation: Any, options: _Options = _Options(), default: Any = MISSING) -> Key:  # noqa: ANN401
        """Return the place that an annotation describes."""
        value_type, is_optional, short_forms = None, False, list[ShortForm]()
        while get_origin(annotation) in {Annotated, Union, types.UnionType}:
            if get_origin(annotation) is Annotated:
                annotation, *extras = get_args(annotation)
                value_type = next((extra for extra in extras if isinstance(extra, ValueType)), value_type)
                short_forms += (extra for extra in reversed(extras) if isinstance(extra, ShortForm))
            else:
                (annotation,) = (argument for argument in get_args(annotation) if argument is not type(None))
                is_optional = True
        required = default is MISSING
        given = None if required else default
        return cls(annotation, value_type, options, given, required, is_optional, tuple(short_forms))

    @property
    def description(self) -> str:
        """What the key is for."""
        return self.options.description

    @property
    def section(self) -> type[Section] | None:
        """The section, where a mapping with keys of its own stands here."""
        found = isinstance(self.annotation, type) and issubclass(self.annotation, Section)
        return self.annotation if found else None

    @property
    def item(self) -> Key | None:
        """The place of a list's items, where a list of any length stands here."""
        types_ = get_args(self.annotation)
        is_list = get_origin(self.annotation) is frozenset or types_[1:] == (...,)
        return Key.of(types_[0]) if is_list else None

    @property
    def positions(self) -> tuple[Key, ...]:
        """The places of a list's items, where a list of so many stands here: `tuple[int, int]`."""
        is_list = get_origin(self.annotation) is tuple and self.item is None
        return tuple(map(Key.of, get_args(self.annotation))) if is_list else ()

    @property
    def entry(self) -> Key | None:
        """The place of each value, where a mapping with keys of the writer's choice stands here.

        A mapping with a `ValueType` of its own is read by that, as a whole.
        """
        is_mapping = get_origin(self.annotation) is Mapping and self.value_type is None
        return Key.of(get_args(self.annotation)[1]) if is_mapping else None

    @property
    def words(self) -> tuple[str, ...]:
        """The words of which one stands here; none where it is something else."""
        if isinstance(self.annotation, type) and issubclass(self.annotation, StrEnum):
            return tuple(word.value for word in self.annotation)
        return get_args(self.annotation) if get_origin(self.annotation) is Literal else ()

    @property
    def empty_is_default(self) -> bool:
        """Whether nothing below the key is as if it were not there: the items of a list are commented out."""
        return isinstance(self.default, tuple | frozenset | Section) and not self.short_forms

    def allowed(self) -> str:
        """Return what may stand here, in words."""
        if self.short_forms:
            return self.short_forms[0].allowed
        if self.words:
            return listed(self.words)
        return self._allowed_below() or self._allowed_alone()

    def _allowed_below(self) -> str:
        """Return what may stand here where it holds other values, or ""."""
        if self.section is not None:
            return f"a mapping with {', '.join(self.section.keys)}"
        if self.entry is not None:
            return f"a mapping, each value {self.entry.allowed()}"
        if self.item is not None:
            return f"a list, each item {self.item.allowed()}"
        if self.positions:
            return f"a list of {len(self.positions)}: {', '.join(place.allowed() for place in self.positions)}"
        return ""

    def _allowed_alone(self) -> str:
        least, most = self.options.ge, self.options.le
        text = self._type().allowed
        text += "" if least is None else f", at least {self.write(least)}"
        return text + ("" if most is None else f", at most {self.write(most)}")

    def write(self, value: object) -> str:
        """Return a value as the file would have it."""
        return value if isinstance(value, str) and self.words else self._type().write(value)

    def read(self, value: object, context: ReadContext) -> Any:  # noqa: ANN401
        """Return a single value. Raises ValueError with what is wrong with it."""
        found = self._type().read(value, context)
        if self.options.ge is not None and found < self.options.ge:
            raise ValueError(f"{self.write(found)} is too little: it must be at least {self.write(self.options.ge)}")
        if self.options.le is not None and found > self.options.le:
            raise ValueError(f"{self.write(found)} is too much: it must be at most {self.write(self.options.le)}")
        return found

    def _type(self) -> ValueType:
        return self.value_type or _BUILT_IN[self.annotation]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(key,))
class Section:
    """Base of every mapping: frozen, no unknown keys, no guessing at types.

    A key that is a word of Python's is declared with `_` behind it: `from_` for `from`. What `__post_init__` raises as
    ValueError is a problem of the whole section, told when each of its values can be read.
    """

    keys: ClassVar[Mapping[str, Key]] = {}
    """Its keys, by their names."""
    key_noun: ClassVar[str] = "key"
    """What an unknown key is called in a fault."""
    variant_key: ClassVar[str] = ""
    """The key of a base class whose word says which of its subclasses is meant."""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=kw_only)(cls)
        hints = get_type_hints(cls, include_extras=True)
        cls.keys = {
            each.name.removesuffix("_"): Key.of(hints[each.name], each.metadata.get("key", _Options()), each.default)
            for each in fields(cls)
        }

    @classmethod
    def variants(cls) -> dict[str, type[Section]]:
        """Return the subclasses of which one is meant, by the word of their `variant_key`; {} where there is none."""
        name = cls.variant_key
        if not name or name in cls.keys:
            return {}
        return {word: found for found in cls.__subclasses__() for word in found.keys[name].words}

    @classmethod
    def complete(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """Return the keys that are given, with those that they stand for, such as those of a named model."""
        return given

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:  # noqa: ARG003 (for others)
        """Find what is wrong between the keys of this section. Paths start at the section."""
        yield from ()

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """Return what an unknown key is told that there is."""
        return tuple(cls.keys)

    @classmethod
    def hint(cls, name: str, given: Mapping[str, object]) -> str:
        """Return what to do about an unknown key, to be put after a fault; "" where nothing is known."""
        for other in (each for each, value in given.items() if value is None and each in cls.keys):
            below = cls.keys[other].section
            if below is not None and name in below.keys:
                return f": it belongs below {other}, with more spaces before it"
        return ""

    @classmethod
    def exactly_one(cls, given: Mapping[str, object], names: Sequence[str]) -> Iterator[Problem]:
        """Find out whether one of these keys is given, and only one."""
        found = [name for name in names if name in given]
        if not found and given.keys() <= cls.keys.keys():  # else a misspelt one is told
            yield Problem((), f"needs one of {listed(names)}")
        for name in found:
            if given[name] is None:
                yield Problem((name,), "has no value")
            elif name != found[0]:
                yield Problem((name,), f"cannot stand beside {found[0]}: one of them is enough")


S = TypeVar("S", bound=Section)


def read_section(
    section: type[S],
    given: Mapping[str, object],
    context: ReadContext = ReadContext(),
    defaults: Mapping[str, object] | None = None,
) -> tuple[S | None, list[Problem]]:
    """Return a section made of plain values, and every problem: None where there are any.

    `defaults` are values of keys that are not given, in place of those that the section declares.
    """
    reader = _Reader(context)
    found = reader.section(section, given, (), defaults or {})
    problems = [*reader.problems, *reader.between_keys]
    return (None, problems) if problems else (found, [])


class _Reader:
    def __init__(self, context: ReadContext) -> None:
        self._context = context
        self.problems: list[Problem] = []
        self.between_keys: list[Problem] = []

    def section(
        self, section: type[S], given: Mapping[str, object], path: KeyPath, defaults: Mapping[str, object]
    ) -> S | None:
        variants = section.variants()
        if variants:
            word = self._variant(section.variant_key, tuple(variants), given, path)
            return None if word is None else cast("S | None", self.section(variants[word], given, path, defaults))
        known = len(self.problems)
        given = section.complete(given)
        self.between_keys += [problem._replace(path=path + problem.path) for problem in section.check(given)]
        for name in (name for name in given if name not in section.keys):
            near = nearest(name, section.keys)
            allowed = ", ".join(section.key_names())
            problem = f"unknown {section.key_noun}{section.hint(name, given)}"
            self.problems.append(Problem((*path, name), problem, allowed, near))
            if section.key_noun == "key" and near in section.keys and near not in given:  # its own faults, too
                self._value(section.keys[near], given[name], (*path, name))
        values = dict(defaults)
        for name, place in section.keys.items():
            attribute = _attribute(name)
            if name in given and not (given[name] is None and place.empty_is_default):
                values[attribute] = self._value(place, given[name], (*path, name))
            elif place.is_required and attribute not in values:
                self.problems.append(Problem((*path, name), "is missing", place.allowed()))
        if len(self.problems) > known:
            return None
        try:
            return section(**values)
        except ValueError as error:
            self.problems.append(Problem(path, str(error)))
            return None

    def _variant(self, name: str, words: tuple[str, ...], given: Mapping[str, object], path: KeyPath) -> str | None:
        """Return the word of a variant that there is."""
        if given.get(name) is None:
            self.problems.append(
                Problem((*path, name), "has no value" if name in given else "is missing", listed(words))
            )
            return None
        found = self._word(words, given[name], (*path, name))
        return found if isinstance(found, str) and found in words else None

    def _value(self, place: Key, value: object, path: KeyPath) -> object:
        written, known = value, len(self.problems)
        try:
            for short_form in place.short_forms:
                value = short_form.expand(value)
        except ValueError as error:
            self._refuse(path, str(error), place)
            return None
        if place.short_forms and value is None and written is not None:
            return None
        found = self._full_value(place, value, path)
        if value is not written:  # the keys of the full form do not stand in the file
            self.problems[known:] = [problem._replace(path=path) for problem in self.problems[known:]]
        return found

    def _full_value(self, place: Key, value: object, path: KeyPath) -> object:
        if value is None:
            if not place.is_optional:
                self._refuse(path, "has no value", place)
            return None
        if place.section is not None or place.entry is not None:
            if isinstance(value, Mapping):
                return self._mapping(place, value, path)
            by_url = isinstance(value, str) and place.section is not None and "url" in place.section.keys
            how = f": write {path[-1]}: {{url: ...}}" if by_url else ""
            self._refuse(path, f"must be a mapping, not {kind_of(value)}{how}", place)
        elif place.item is not None or place.positions:
            return self._list(place, value, path)
        elif place.words:
            word = self._word(place.words, value, path)
            if word in place.words:
                return place.annotation(word) if isinstance(place.annotation, type) else word
        else:
            try:
                return place.read(value, self._context)
            except ValueError as error:
                self._refuse(path, str(error), place)
        return None

    def _mapping(self, place: Key, value: Mapping[str, object], path: KeyPath) -> object:
        if place.section is not None:
            return self.section(place.section, value, path, {})
        return {name: self._value(place.entry, each, (*path, name)) for name, each in value.items() if place.entry}

    def _list(self, place: Key, value: object, path: KeyPath) -> object:
        if not isinstance(value, tuple):
            self._refuse(path, f"must be a list, not {kind_of(value)}", place)
            return None
        if place.positions and len(value) != len(place.positions):
            self._refuse(path, f"must have {len(place.positions)} items, not {len(value)}", place)
            return None
        if len(value) < place.options.min_length:
            self._refuse(path, "is empty", place)
        if place.options.max_length is not None and len(value) > place.options.max_length:
            self._refuse(path, f"has more than {place.options.max_length} items", place)
        places = place.positions or (place.item,) * len(value)
        found = (
            self._value(each, value[index], (*path, index)) for index, each in enumerate(places) if each is not None
        )
        return frozenset(found) if get_origin(place.annotation) is frozenset else tuple(found)

    def _word(self, words: tuple[str, ...], value: object, path: KeyPath) -> object:
        if value is False and "off" in words:  # YAML takes a bare off for false
            return "off"
        if not isinstance(value, str):
            self.problems.append(Problem(path, f"must be text, not {kind_of(value)}", listed(words)))
        elif value not in words:
            near = nearest(value, words)
            self.problems.append(Problem(path, f"{shown(value)} is unknown", listed(words), near))
        return value

    def _refuse(self, path: KeyPath, problem: str, place: Key) -> None:
        self.problems.append(Problem(path, problem, place.allowed()))


def _attribute(name: str) -> str:
    """Return what a key is called in Python."""
    return f"{name}_" if keyword.iskeyword(name) else name
