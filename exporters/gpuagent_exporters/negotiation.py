"""What a client would rather have: `Accept` and `Accept-Encoding` (RFC 9110, section 12.5).

Only as much as a metrics endpoint needs. What cannot be understood counts as not asked for, so that
nobody is ever refused: plain text is always an answer.
"""

from __future__ import annotations

from typing import NamedTuple

PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/"""
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""https://prometheus.io/docs/specs/om/open_metrics_spec/"""

_MAX_CHOICES = 32
"""Prometheus sends five; a header of 16 KiB full of commas shall not be an hour's work."""


class _Choice(NamedTuple):
    """One element of the header: a media range or a coding, with its parameters and its weight."""

    name: str
    parameters: dict[str, str]
    weight: float


def wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.0 is liked at least as much as the plain text format.

    Prometheus 2.42 asks for `version=1.0.0` without a weight, 3.x with `escaping=allow-utf-8` and
    0.6; both also name 0.0.1, which is another format and not ours. A wildcard means plain text, as
    everywhere.
    """
    openmetrics = plain = 0.0
    for choice in _choices(accept):
        if choice.name == "application/openmetrics-text":
            if choice.parameters.get("version", "1.0.0").startswith("1."):
                openmetrics = max(openmetrics, choice.weight)
        elif choice.name in {"text/plain", "text/*", "*/*"}:
            plain = max(plain, choice.weight)
    return openmetrics > 0 and openmetrics >= plain


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a gzip body is welcome. `gzip;q=0` is a refusal, and is stronger than `*`."""
    weights = {choice.name: choice.weight for choice in _choices(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _choices(header: str) -> list[_Choice]:
    return [_choice(element) for element in header.split(",", _MAX_CHOICES)[:_MAX_CHOICES]]


def _choice(element: str) -> _Choice:
    name, *rest = element.split(";")
    pairs = (part.partition("=") for part in rest)
    parameters = {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}
    return _Choice(name.strip().lower(), parameters, _weight(parameters.get("q", "1")))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
