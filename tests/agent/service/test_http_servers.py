"""The servers that the configuration asks for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

from gpuagent.service.http_servers import HttpServers
from gpuagent_exporters.http.web_config import WebConfig
from tests.agent.config.loading import load, write
from tests.exporters.test_openapi import NOBODY
from tests.exporters.test_remedy_routes import FakeRemedies
from tests.exporters.wire import ask, run
from tests.fakes.source import FakeSource

PRIVATE = "ask alice"
"""What the agent's own alert says of somebody."""


class Alerts:
    """One alert with a text."""

    async def alerts(self) -> dict[str, Any]:
        annotations = {"summary": PRIVATE}
        return {"alerts": [{"name": "Mine", "state": "firing", "severity": "info", "annotations": annotations}]}


def test_names_of_the_configuration_are_served() -> None:
    """`http.allowed_hosts` reaches the TCP address: its names are answered, and others still are not."""

    async def test(folder: str) -> list[int]:
        http = 'http: {allowed_hosts: [gpu7.corp.example.com, "*.pool.example.com"]}'
        config = load(write(Path(folder), f"{{listen: '127.0.0.1:0', runtime_dir: {folder}, {http}}}"))
        http_servers = HttpServers(config, WebConfig())
        await http_servers.open(cast("Any", FakeSource()), NOBODY, NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
        try:
            hosts = ("gpu7.corp.example.com:9837", "a.pool.example.com", "localhost", "evil.com", "corp.example.com")
            return [(await ask(http_servers._servers[-1], "/metrics", host=host)).status for host in hosts]
        finally:
            await http_servers.close()

    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:  # the path of a socket must be short
        assert run(test(folder)) == [200, 200, 200, 421, 421]


@pytest.mark.parametrize(("listen", "shown"), [("127.0.0.1:0", True), ("0.0.0.0:0", False)])
def test_the_page_shows_what_its_address_may_tell(listen: str, shown: bool) -> None:
    """Alerts and remedies are on the page of every address; who is concerned only where not everybody may read."""

    async def test(folder: str) -> list[str]:
        config = load(write(Path(folder), f"{{listen: '{listen}', runtime_dir: {folder}}}"))
        http_servers = HttpServers(config, WebConfig())
        alerts: Any = Alerts()
        await http_servers.open(
            cast("Any", FakeSource()), NOBODY, alerts, NOBODY, cast("Any", FakeRemedies()), NOBODY, NOBODY
        )
        try:
            server = http_servers._servers[-1]
            answers = [await ask(server, path) for path in ("/", "/api/v1/alerts", "/api/v1/remedies")]
            return [answer.body.decode() for answer in answers]
        finally:
            await http_servers.close()

    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:
        page, alerts, remedies = run(test(folder))
    assert "<bdi>Mine</bdi>" in page
    assert 'id="remedies"' in page
    assert [PRIVATE in body for body in (page, alerts)] == [shown, shown]
    assert ('"user"' in remedies) == shown
