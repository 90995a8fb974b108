"""The description of the API, and whether a document keeps to it, to the letter."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jsonschema_rs

from gpuagent_exporters.api.openapi import document as description

DESCRIPTION = description()
SCHEMAS: dict[str, Any] = DESCRIPTION["components"]["schemas"]
_APP_COMMAND = re.compile(r"(/api/v1/clients/\{pid\})/(?:blame|census|lines|limit|rate)")


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    name: str
    control_only: bool
    query: frozenset[str]
    """Names of its arguments in the query."""

    @property
    def route_path(self) -> str:
        """As `plain_route` has it: most commands to apps share one route."""
        return _APP_COMMAND.sub(r"\1/{command}", self.path)


OPERATIONS = tuple(
    Operation(
        method.upper(),
        path,
        content["operationId"],
        content.get("x-control-socket-only", False),
        frozenset(each["name"] for each in content.get("parameters", ()) if each["in"] == "query"),
    )
    for path, methods in DESCRIPTION["paths"].items()
    for method, content in methods.items()
)


def plain_route(path: str) -> str:
    """Return a route of starlette's without the types of its parameters."""
    return re.sub(r":[a-z]+\}", "}", path)


def faults_of(name: str, document: Mapping[str, Any]) -> list[str]:
    """Where a document differs from the schema of this name: also by a key that is not described."""
    content = json.loads(json.dumps(document))
    return [
        f"{'/'.join(map(str, each.instance_path))}: {each.message}" for each in _validator(name).iter_errors(content)
    ]


@functools.cache
def _validator(name: str) -> Any:
    strict = {key: _strict(schema) for key, schema in SCHEMAS.items()}
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": {"schemas": strict}})


def _strict(schema: Any) -> Any:
    """Callers have to put up with further keys; the description must not."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **made} if "required" in made and "properties" in made else made
