"""The format and the coding that a client is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_exporters.http.middleware import accepts_gzip, wants_openmetrics

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS_2_42, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; Version=1.0.0", True),
        ("application/openmetrics-text; version=1.0.0; q=0.2, text/plain; q=0.9", False),
        ("application/openmetrics-text; version=1.0.0; q=0", False),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; q=many", False),
        ("text/plain", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("*/*", False),
        ("", False),
        (",;,;=;,", False),
    ],
)
def test_openmetrics_for_who_asks_for_it(accept: str, openmetrics: bool) -> None:
    """Prometheus of 2.42 and of 3.x gets OpenMetrics; a browser and curl get plain text."""
    assert wants_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("accept_encoding", "gzip"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0, *", False),
        ("gzip;q=0", False),
        ("identity", False),
        ("", False),
    ],
)
def test_gzip_for_who_accepts_it(accept_encoding: str, gzip: bool) -> None:
    """A body is compressed only for a client that says it can read that."""
    assert accepts_gzip(accept_encoding) is gzip


@given(st.text(alphabet=",;=*/q01. openmetrics-textgzip\t\"'", max_size=200))
def test_no_header_can_do_harm(header: str) -> None:
    """Whatever a stranger writes there gets an answer, and a refusal alone never gets a yes."""
    assert not wants_openmetrics(f"{header.replace('o', '')}")
    assert not accepts_gzip(f"gzip;q=0,{header.replace('g', '')}")
