"""Metrics and incidents pushed to an OpenTelemetry collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuagent.config.values import Duration, SecretFilePath, WebUrl
from gpuagent.core.problems import Problem
from gpuagent.core.sections import Section, key
from gpuagent_exporters.otlp import NOT_INSTALLED, is_installed


class Otlp(Section):
    """Metrics and incidents pushed to an OpenTelemetry collector by OTLP over HTTP. Off until `endpoint` is set."""

    endpoint: WebUrl | None = key(
        default=None,
        description="Where the collector is, such as `http://127.0.0.1:4318`; `/v1/metrics` and `/v1/logs` are added.",
    )
    headers_file: SecretFilePath | None = key(
        default=None,
        description="A file with a header in each line, `Name: value`, such as a token. It is read before each push.",
    )
    interval: Duration = key(default=15.0, ge=1, le=3600, description="Time between two pushes.")

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        if given.get("endpoint") is None:
            if given.get("headers_file") is not None:
                yield Problem(("headers_file",), "nothing is pushed without otlp.endpoint")
        elif not is_installed():
            yield Problem(("endpoint",), NOT_INSTALLED)
