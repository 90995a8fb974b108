"""What one route takes and answers: the row of the table in `operations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuagent_exporters.openapi.schema import Schema, ref

JSON = "application/json"
TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the path or of the query."""

    name: str
    schema: Schema
    description: str = ""
    where: str = "query"
    required: bool = False
    example: object = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes with one status. `media` gives the schema of each media type; without any there is no body."""

    description: str
    media: Mapping[str, Schema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    tag: str
    method: str
    path: str
    name: str
    """Programs call it this: `operationId`."""
    summary: str
    answers: Mapping[int, Answer]
    description: str = ""
    parameters: Sequence[Parameter] = ()
    body: Schema | None = None
    body_required: bool = False
    control_only: bool = False
    """It is a command, or tells what only those may know who command."""
    route: str = ""
    """The route as starlette has it, where that is not `path`."""

    @property
    def route_path(self) -> str:
        """As starlette has it."""
        return self.route or self.path


def json_of(name: str, description: str) -> Answer:
    """One of the named schemas."""
    return Answer(description, {JSON: ref(name)})


def json_as(schema: Schema, description: str) -> Answer:
    """A small document of its own."""
    return Answer(description, {JSON: schema})


def fault(description: str) -> Answer:
    """An error as JSON: what went wrong, and what to do about it."""
    return json_of("Error", description)


def plain(description: str) -> Answer:
    """A line for people."""
    return Answer(description, {TEXT: {"type": "string"}})


def in_path(name: str, schema: Schema, description: str, example: object) -> Parameter:
    """A part of the path."""
    return Parameter(name, schema, description, "path", required=True, example=example)
