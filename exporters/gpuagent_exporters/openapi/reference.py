"""The same description for people: `docs/api.md`.

Run `python -m gpuagent_exporters.openapi.reference > docs/api.md` after a change of the tables.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from gpuagent_exporters.http.limits import HttpLimits
from gpuagent_exporters.http.middleware import phrase_of
from gpuagent_exporters.openapi.document import COMMON_ANSWERS, DESCRIPTION, OPERATIONS, SCHEMAS, TAGS
from gpuagent_exporters.openapi.operation import Answer, Operation
from gpuagent_exporters.openapi.schema import Schema

_INTRODUCTION = """\
# HTTP API

<!-- Made by `python -m gpuagent_exporters.openapi.reference`: change the tables in that package, not this file. -->

{description}

The commands of `gpuagent` use nothing but this. For programs there is [openapi.json](openapi.json) (OpenAPI 3.1), which
every agent serves at `/api/v1/openapi.json` too.

    curl -fsS http://127.0.0.1:9837/api/v1/status
    curl -fsS http://127.0.0.1:9837/api/v1/history?top=1
    curl -fsS --unix-socket /run/gpuagent/control.sock -X POST http://localhost/api/v1/resume
    curl -fsS --unix-socket /run/gpuagent/control.sock http://localhost/api/v1/silences \\
      --data '{{"matchers": ["gpu=\\"3\\""], "seconds": 3600, "comment": "driver work"}}'

Where the TCP address is neither loopback nor behind a password, these documents tell no command lines and users, no
texts of alerts, nobody who silenced, acknowledged or asked for something, no words of receivers, and nothing that only
identifies a process; each says so. `/metrics` does tell users and command lines, at every address
([who can do what](threat-model.md)).

An error is JSON with `error` and `message`; the message says what would have worked. HEAD answers as GET does, without
the body. A request has at most {head} KiB of head and {body} KiB of body, and an address at most {connections}
connections at a time; `http` in the [configuration](configuration.md) changes that. A request that could be read in two
ways, such as one with both `Content-Length` and `Transfer-Encoding`, gets 400, and the connection is closed.

Beside what is said below, any route may answer:
"""


def render() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    limits = HttpLimits()
    yield _INTRODUCTION.format(
        description="\n\n".join(textwrap.fill(part, 120) for part in DESCRIPTION.split("\n\n")),
        head=limits.max_header_bytes // 1024,
        body=limits.max_body_bytes // 1024,
        connections=limits.max_connections,
    )
    for status, answer in COMMON_ANSWERS.items():
        yield f"- {_status(status)}: {answer.description}"
    yield ""
    yield from _overview()
    for tag, words in TAGS.items():
        yield f"## {tag}\n"
        yield f"{words}\n"
        for operation in OPERATIONS:
            if operation.tag == tag:
                yield from _operation(operation)
    yield "## Documents\n"
    yield "Every key is always there, unless it is said that it may be missing.\n"
    for name, schema in SCHEMAS.items():
        yield f"### Document: {name}\n"
        yield f"{schema['description']}\n"
        yield "| key | value | meaning |"
        yield "|---|---|---|"
        yield from _rows(schema, "")
        yield ""


def _overview() -> Iterator[str]:
    yield "| request | where | what |"
    yield "|---|---|---|"
    for operation in OPERATIONS:
        where = "control socket" if operation.control_only else "both"
        yield f"| [{operation.method} `{operation.path}`](#{_anchor(operation)}) | {where} | {operation.summary} |"
    yield ""


def _operation(operation: Operation) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}\n"
    where = " On the control socket only." if operation.control_only else ""
    yield f"{operation.summary}.{f' {operation.description}' if operation.description else ''}{where}\n"
    body = (operation.body or {}).get("properties", {})
    if operation.parameters or body:
        yield "| parameter | in | value | meaning |"
        yield "|---|---|---|---|"
        for each in operation.parameters:
            name = f"`{each.name}`{' (required)' if each.required else ''}"
            yield f"| {name} | {each.where} | {_value(each.schema)} | {_cell(each.description)} |"
        for key, schema in body.items():
            required = " (required)" if key in (operation.body or {}).get("required", ()) else ""
            yield f"| `{key}`{required} | body | {_value(schema)} | {_cell(schema.get('description', ''))} |"
        yield ""
    for status, answer in sorted(operation.answers.items()):
        yield f"- {_status(status)}: {answer.description}{_media(answer)}"
    yield ""


def _media(answer: Answer) -> str:
    """What comes with it, where that is no error."""
    named = [
        f"[{name}](#document-{name.lower()})"
        for schema in answer.media.values()
        if (name := schema.get("$ref", "").rpartition("/")[2]) and name != "Error"
    ]
    keys = [f"`{key}`" for schema in answer.media.values() for key in schema.get("properties", ())]
    return f" {', '.join(named or keys)}." if named or keys else ""


def _rows(schema: Schema, path: str) -> Iterator[str]:
    """The keys of an object, those of the objects in it below them."""
    required = schema.get("required", ())
    for key, value in schema.get("properties", {}).items():
        missing = "" if key in required else " May be missing."
        words = _cell(value.get("description", "")) + missing
        yield f"| `{path}{key}` | {_value(value)} | {words.strip()} |"
        below, brackets = (value["items"], "[]") if "items" in value else (value, "")
        if "properties" in below:
            yield from _rows(below, f"{path}{key}{brackets}.")


def _value(schema: Schema) -> str:
    """The type in a word or two."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#document-{name.lower()})"
    if "const" in schema:
        return f"`{_word(schema['const'])}`"
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = next(each for each in kinds if each != "null")
    or_null = " or null" if "null" in kinds else ""
    if "enum" in schema:
        return ", ".join(f"`{_word(each)}`" for each in schema["enum"])
    if kind == "array":
        return f"list of {_value(schema['items'])}{or_null}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_value(schema['additionalProperties'])}"
    if kind == "integer":
        kind = "whole number"
    return f"{kind}{or_null}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if low is None:
        return ""
    above = "above " if "exclusiveMinimum" in schema else ""
    return f", {above}{low} to {schema['maximum']}"


def _word(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _status(status: int) -> str:
    return f"{status} {phrase_of(status)}"


def _anchor(operation: Operation) -> str:
    """As GitHub makes it from the heading."""
    heading = f"{operation.method} {operation.path}".lower()
    return "".join(letter for letter in heading.replace(" ", "-") if letter.isalnum() or letter in "-_")


def _cell(text: str) -> str:
    """Text that cannot break out of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(render())
