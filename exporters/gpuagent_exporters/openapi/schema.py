"""A vocabulary for JSON schemas (2020-12, which OpenAPI 3.1 takes as they are) that reads like the documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Schema = dict[str, Any]


def text(description: str = "", *, null: bool = False, **further: object) -> Schema:
    """A string; "" where there is nothing to say, unless it may be null."""
    return _plain("string", description, null=null, **further)


def number(description: str = "", *, null: bool = False, **further: object) -> Schema:
    """A number. Its unit is in the key."""
    return _plain("number", description, null=null, **further)


def integer(description: str = "", *, null: bool = False, **further: object) -> Schema:
    """A whole number. Its unit is in the key."""
    return _plain("integer", description, null=null, **further)


def flag(description: str = "", *, null: bool = False, **further: object) -> Schema:
    """True or false."""
    return _plain("boolean", description, null=null, **further)


def one_of(values: Iterable[str], description: str = "", *, null: bool = False) -> Schema:
    """One of these words."""
    words: list[str | None] = [str(value) for value in values]
    return _plain("string", description, null=null, enum=[*words, None] if null else words)


def listing(items: Schema, description: str = "", **further: object) -> Schema:
    """A list."""
    return _described({"type": "array", "items": items, **further}, description)


def mapping(values: Schema, description: str = "") -> Schema:
    """An object whose keys are data."""
    return _described({"type": "object", "additionalProperties": values}, description)


def record(description: str, /, **fields: Schema) -> Schema:
    """An object that has all of these keys, always. A later version may add some."""
    return _described({"type": "object", "properties": fields, "required": list(fields)}, description)


def without(schema: Schema, *names: str) -> Schema:
    """A record in which these keys may be missing."""
    return {**schema, "required": [name for name in schema["required"] if name not in names]}


def request(description: str, /, **fields: Schema) -> Schema:
    """An object that callers send. Every key may be left out; `needing` says which may not."""
    return _described({"type": "object", "properties": fields}, description)


def needing(schema: Schema, *names: str) -> Schema:
    """An object without which of its keys nothing can be done."""
    return {**schema, "required": list(names)} if names else schema


def closed(schema: Schema, *names: str) -> Schema:
    """The same, and any further key is refused: in a command, a misspelt key must not be passed over."""
    return {**needing(schema, *names), "additionalProperties": False}


def not_all(schema: Schema, **values: bool) -> Schema:
    """The same, and not with all of these values at a time."""
    constants = {name: {"const": value} for name, value in values.items()}
    return {**schema, "not": {"properties": constants, "required": list(constants)}}


def ref(name: str) -> Schema:
    """A schema that is told once, under `components`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _plain(kind: str, description: str, *, null: bool, **further: object) -> Schema:
    return _described({"type": [kind, "null"] if null else kind, **further}, description)


def _described(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description} if description else schema
