"""The effective configuration as a file again: complete, and without secrets."""

from __future__ import annotations

from typing import Any

import yaml

from gpuagent.config.models import Config


def effective(config: Config) -> dict[str, Any]:
    """Every key with its value, defaults included, in the types of YAML and JSON.

    Secrets are `<hidden>`. Below the top, a key that is not set is left out.
    """
    document = config.model_dump(mode="json")
    return {key: _without_none(value) for key, value in document.items()}


def to_yaml(config: Config) -> str:
    """`effective` as YAML, in the order of the reference."""
    return yaml.safe_dump(effective(config), sort_keys=False, allow_unicode=True, width=100)


def _without_none(value: Any) -> Any:  # noqa: ANN401 (whatever JSON can hold)
    match value:
        case dict():
            return {key: _without_none(part) for key, part in value.items() if part is not None}
        case list():
            return [_without_none(part) for part in value]
        case _:
            return value
