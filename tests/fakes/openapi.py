"""Whether a document keeps to the API's description, to the letter."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from gpuagent_exporters.openapi.document import SCHEMAS


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
