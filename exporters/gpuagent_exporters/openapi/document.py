"""The whole description as an OpenAPI 3.1 document.

`python -m gpuagent_exporters.openapi.document > docs/openapi.json` after a change of the tables.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpuagent_exporters.openapi.alert_schemas import ALERT_SCHEMAS
from gpuagent_exporters.openapi.client_schemas import CLIENT_SCHEMAS
from gpuagent_exporters.openapi.command_operations import COMMAND_OPERATIONS
from gpuagent_exporters.openapi.leak_operations import LEAK_COMMAND_OPERATIONS, LEAK_READ_OPERATIONS
from gpuagent_exporters.openapi.leak_schemas import LEAK_SCHEMAS
from gpuagent_exporters.openapi.operation import Answer, Operation, Parameter, fault
from gpuagent_exporters.openapi.read_operations import READ_OPERATIONS
from gpuagent_exporters.openapi.remedy_schemas import REMEDY_SCHEMAS
from gpuagent_exporters.openapi.schema import Schema, record, text, without
from gpuagent_exporters.openapi.status_schemas import STATUS_SCHEMAS

VERSION = "1"
"""Of the API, as in its paths: a document's own `schema` says when one of its keys changes."""

OPERATIONS = (*READ_OPERATIONS, *LEAK_READ_OPERATIONS, *COMMAND_OPERATIONS, *LEAK_COMMAND_OPERATIONS)

SCHEMAS: dict[str, Schema] = {
    **STATUS_SCHEMAS,
    **ALERT_SCHEMAS,
    **CLIENT_SCHEMAS,
    **REMEDY_SCHEMAS,
    **LEAK_SCHEMAS,
    "Error": without(record(
        "What went wrong.",
        error=text("In a word or two, mostly the status of HTTP."),
        message=text("What is the case, and what would have worked."),
        reason=text("Of an app's refusal: one word for programs."),
    ), "reason"),
}  # fmt: skip

TAGS = {
    "Measurements": "What was measured, from memory: an answer never waits for the driver.",
    "Alerts": "What fires, and what people do about it.",
    "Receivers": "Messages that are on their way.",
    "Remedies": "What was done to give memory back.",
    "Leaks": "Why the leak detector says what it says, and whether it was right.",
    "Apps": "Apps with the embedded client.",
    "Agent": "The agent itself.",
    "Page": "For people.",
}

DESCRIPTION = """\
Two doors, one API. The TCP address (`listen`) only reads. The control socket (`/run/gpuagent/control.sock`, HTTP over \
a unix socket) has all of that and the commands; who may connect there (root, and the group `gpuagent`) may command.

A command takes its arguments in the body, as a JSON object, but for the few that are listed in the query. What it \
does not know, in either place, is refused with 400 and nothing is done; so is a key that is there twice, and a number \
with a fraction (`7.0`) where a whole one is meant.

Numbers are bare and their units are in the keys; null is what is not known. A later version may add keys to a \
document; `schema` in it changes when a key goes or means something else."""

_CONTROL = [{"url": "http://localhost", "description": "The control socket, /run/gpuagent/control.sock"}]

COMMON_ANSWERS = {
    400: fault("No request that can be read in one way; or a command with an argument that it does not take."),
    401: fault("The address asks for a password (`web_config_file`)."),
    403: fault("The control socket answers only callers from the host's own namespaces."),
    405: fault("Not this method: `Allow` has those there are."),
    413: fault("The body is too large."),
    421: fault("The name in `Host` is none of this machine's (DNS rebinding); `http.allowed_hosts` adds names."),
    431: fault("The head is too large, or has more than 100 headers."),
}
"""What any route may answer beside its own."""


def document() -> dict[str, Any]:
    """JSON-ready."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpuagent",
            "version": VERSION,
            "summary": "GPU memory of one node",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The address that serves this document."}],
        "security": [{}, {"password": []}],
        "tags": [{"name": name, "description": words} for name, words in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {str(status): _answer(answer) for status, answer in COMMON_ANSWERS.items()},
            "securitySchemes": {"password": {"type": "http", "scheme": "basic"}},
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    answers = {status: {"$ref": f"#/components/responses/{status}"} for status in COMMON_ANSWERS}
    answers |= {status: _answer(answer) for status, answer in operation.answers.items()}
    made: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": {str(status): answers[status] for status in sorted(answers)},
    }
    if operation.description:
        made["description"] = operation.description
    if operation.parameters:
        made["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        made["requestBody"] = {"required": operation.body_required, "content": content}
    if operation.control_only:
        made |= {"x-control-socket-only": True, "servers": _CONTROL, "security": [{}]}
    return made


def _answer(answer: Answer) -> dict[str, Any]:
    made: dict[str, Any] = {"description": answer.description}
    if answer.media:
        made["content"] = {media: {"schema": schema} for media, schema in answer.media.items()}
    return made


def _parameter(parameter: Parameter) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.description,
        "schema": parameter.schema,
    }
    return made if parameter.example is None else {**made, "example": parameter.example}


def render() -> str:
    """As a file."""
    return json.dumps(document(), indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
