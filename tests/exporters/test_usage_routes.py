"""The route behind `gpuagent usage`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuagent_exporters.api.alert_routes import NotNow
from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.api.usage_routes import usage_routes
from tests.exporters.wire import connected, run, serving
from tests.fakes.source import FakeSource


class FakeUsage:
    """Answers with what it was asked."""

    async def usage(self, by: str, since_seconds: float) -> dict[str, Any]:
        if by == "pod":
            raise NotNow("the daily table of usage cannot be read: disk")
        if by not in {"user", "job"}:
            raise ValueError(f"{by} is no grouping")
        return {"by": by, "since": since_seconds}


@pytest.mark.parametrize(
    ("query", "status", "answer"),
    [
        ("", 200, {"by": "user", "since": 604_800.0}),
        ("?by=job&since=1h", 200, {"by": "job", "since": 3600.0}),
        ("?by=planet", 400, "planet is no grouping"),
        ("?since=soon", 400, "not a duration"),
        ("?since=0s", 400, "at most 400d"),
        ("?since=401d", 400, "at most 400d"),
        ("?by=pod", 503, "cannot be read"),
    ],
)
def test_what_is_asked_for(short_folder: Path, query: str, status: int, answer: object) -> None:
    """By user over seven days, or what the query says; what is none is refused with the reason."""

    async def ask() -> tuple[int, Any]:
        app = build_app(FakeSource(), control=True, extra_routes=usage_routes(FakeUsage()))
        async with serving(app, unix_socket=short_folder / "s"), connected(short_folder / "s") as client:
            await client.send(f"GET /api/v1/usage{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            found = await client.answer()
            return found.status, json.loads(found.body)

    found, document = run(ask())
    assert found == status
    assert document == answer if status == 200 else str(answer) in document["message"]
