"""The servers that the configuration asks for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

from gpuagent.service.http_servers import HttpServers
from gpuagent_exporters.http.web_config import WebConfig
from tests.agent.config.loading import load, write
from tests.exporters.test_openapi import NOBODY
from tests.exporters.wire import ask, run
from tests.fakes.source import FakeSource


def test_names_of_the_configuration_are_served() -> None:
    """`http.allowed_hosts` reaches the TCP address: its names are answered, and others still are not."""

    async def test(folder: str) -> list[int]:
        http = 'http: {allowed_hosts: [gpu7.corp.example.com, "*.pool.example.com"]}'
        config = load(write(Path(folder), f"{{listen: '127.0.0.1:0', runtime_dir: {folder}, {http}}}"))
        http_servers = HttpServers(config, WebConfig())
        await http_servers.open(cast("Any", FakeSource()), NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
        try:
            hosts = ("gpu7.corp.example.com:9837", "a.pool.example.com", "localhost", "evil.com", "corp.example.com")
            return [(await ask(http_servers._servers[-1], "/metrics", host=host)).status for host in hosts]
        finally:
            await http_servers.close()

    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:  # the path of a socket must be short
        assert run(test(folder)) == [200, 200, 200, 421, 421]
