"""Push metrics and incidents to an OpenTelemetry collector by OTLP over HTTP; an optional package.

In reading order: `names` (which series has a name in the semantic conventions), `batch` (what is pushed at one moment),
`payload` (the only module that imports opentelemetry) and `sender` (the thread that pushes, and what became of it).
"""

from __future__ import annotations

import importlib.util

NOT_INSTALLED = "the packages of OpenTelemetry are not installed: pip install 'gpuagent[otlp]'"


def is_installed() -> bool:
    """Return whether the optional packages are there, without loading them."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
