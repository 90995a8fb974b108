"""The description of the HTTP API for people: `docs/api.md`.

Run `python -m gpuagent_exporters.api.reference > docs/api.md` after a change of `openapi.yaml`.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpuagent.core.units import table_cell
from gpuagent_exporters.api.openapi import document
from gpuagent_exporters.http.limits import HttpLimits
from gpuagent_exporters.http.middleware import phrase_of

Json = dict[str, Any]

_INTRODUCTION = """\
# HTTP API

<!-- Made by `python -m gpuagent_exporters.api.reference`: change openapi.yaml beside that module, not this file. -->

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


class _Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    content: Json

    @property
    def where(self) -> str:
        return "control socket" if self.content.get("x-control-socket-only") else "both"


def render() -> str:
    """Return the whole page."""
    return "\n".join(_lines(document())) + "\n"


def _lines(description: Json) -> Iterator[str]:
    limits = HttpLimits()
    yield _INTRODUCTION.format(
        description="\n\n".join(textwrap.fill(part, 120) for part in description["info"]["description"].split("\n\n")),
        head=limits.max_header_bytes // 1024,
        body=limits.max_body_bytes // 1024,
        connections=limits.max_connections,
    )
    for status, answer in description["components"]["responses"].items():
        yield f"- {_status(status)}: {answer['description']}"
    yield ""
    operations = [
        _Operation(method.upper(), path, content)
        for path, methods in description["paths"].items()
        for method, content in methods.items()
    ]
    yield from _overview(operations)
    for tag in description["tags"]:
        yield f"## {tag['name']}\n"
        yield f"{tag['description']}\n"
        for operation in operations:
            if operation.content["tags"] == [tag["name"]]:
                yield from _operation(operation)
    yield "## Documents\n"
    yield "Every key is always there, unless it is said that it may be missing.\n"
    for name, schema in description["components"]["schemas"].items():
        yield f"### Document: {name}\n"
        yield f"{schema['description']}\n"
        yield "| key | value | meaning |"
        yield "|---|---|---|"
        yield from _rows(schema, "")
        yield ""


def _overview(operations: list[_Operation]) -> Iterator[str]:
    yield "| request | where | what |"
    yield "|---|---|---|"
    for each in operations:
        yield f"| [{each.method} `{each.path}`](#{_anchor(each)}) | {each.where} | {each.content['summary']} |"
    yield ""


def _operation(operation: _Operation) -> Iterator[str]:
    content = operation.content
    yield f"### {operation.method} {operation.path}\n"
    words = f"{content['summary']}."
    if "description" in content:
        words += f" {content['description']}"
    yield words + (" On the control socket only.\n" if operation.where == "control socket" else "\n")
    sent: Json = content["requestBody"]["content"]["application/json"]["schema"] if "requestBody" in content else {}
    parameters, body = content.get("parameters", ()), sent.get("properties", {})
    if parameters or body:
        yield "| parameter | in | value | meaning |"
        yield "|---|---|---|---|"
        for each in parameters:
            name = f"`{each['name']}`{' (required)' if each['required'] else ''}"
            yield f"| {name} | {each['in']} | {_value(each['schema'])} | {table_cell(each['description'])} |"
        for key, schema in body.items():
            required = " (required)" if key in sent.get("required", ()) else ""
            yield f"| `{key}`{required} | body | {_value(schema)} | {table_cell(schema.get('description', ''))} |"
        yield ""
    for status, answer in content["responses"].items():
        if "$ref" not in answer:
            yield f"- {_status(status)}: {answer['description']}{_media(answer)}"
    yield ""


def _media(answer: Json) -> str:
    """Return what comes with it, where that is no error."""
    schemas = [media["schema"] for media in answer.get("content", {}).values()]
    named = [
        f"[{name}](#document-{name.lower()})"
        for schema in schemas
        if (name := schema.get("$ref", "").rpartition("/")[2]) and name != "Error"
    ]
    keys = [f"`{key}`" for schema in schemas for key in schema.get("properties", ())]
    return f" {', '.join(named or keys)}." if named or keys else ""


def _rows(schema: Json, path: str) -> Iterator[str]:
    """Yield the keys of an object, those of the objects in it below them."""
    required = schema.get("required", ())
    for key, value in schema.get("properties", {}).items():
        missing = "" if key in required else " May be missing."
        words = table_cell(value.get("description", "")) + missing
        yield f"| `{path}{key}` | {_value(value)} | {words.strip()} |"
        below, brackets = (value["items"], "[]") if "items" in value else (value, "")
        if "properties" in below:
            yield from _rows(below, f"{path}{key}{brackets}.")


def _value(schema: Json) -> str:
    """Return the type in a word or two."""
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


def _bounds(schema: Json) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    if low is None:
        return ""
    above = "above " if "exclusiveMinimum" in schema else ""
    return f", {above}{low} to {schema['maximum']}"


def _word(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _status(status: str) -> str:
    return f"{status} {phrase_of(int(status))}"


def _anchor(operation: _Operation) -> str:
    """Return the anchor as GitHub makes it from the heading."""
    heading = f"{operation.method} {operation.path}".lower()
    return "".join(letter for letter in heading.replace(" ", "-") if letter.isalnum() or letter in "-_")


if __name__ == "__main__":
    sys.stdout.write(render())
