"""The serving part on other interpreters: gates, queues and a swap, in threads and in an event loop."""

from __future__ import annotations

import pytest

from tests.client.conftest import Apps
from tests.client.test_old_pythons import interpreter

APP = """
import asyncio, logging
from faketorch import GIB, FakeTorch
torch = FakeTorch().install().start_cuda()
from gpuagent_client import ModelSlot
from gpuagent_client.serving import AsgiMiddleware, Full, Gate, WsgiMiddleware, route_summaries
import gpuagent_client.serving.gunicorn

gate = Gate(1, 1, wait_seconds=30)
statuses = []

async def app(scope, receive, send):
    await receive()
    torch.allocate(GIB)
    await asyncio.sleep(0.01)
    torch.free(GIB)
    await send({"type": "http.response.start", "status": 200, "headers": []})

async def send(message):
    statuses.append(message.get("status"))

async def receive():
    return {"type": "http.request", "body": b"", "more_body": False}

async def main():
    served = AsgiMiddleware(app, gate, header=True, release_every=1)
    scope = {"type": "http", "method": "GET", "path": "/"}
    await asyncio.gather(*[served(dict(scope), receive, send) for _ in range(4)])

asyncio.run(main())
print(sorted(status for status in statuses if status))

def wsgi(environ, start_response):
    yield b"ok"

stream = WsgiMiddleware(wsgi, gate)({"PATH_INFO": "/stream"}, None)
print(list(stream))
stream.close()

class Model:
    pass

logging.disable()
slot, kept = ModelSlot(gate), []
slot.load("one", Model)
with slot.use() as model:
    kept.append(model)
del model
print(slot.load("two", Model).before.held_by)
print(list(route_summaries()), gate.busy)
"""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_it_serves_on_other_pythons(apps: Apps, version: str) -> None:
    """And not a warning."""
    app = apps.code(APP, python=interpreter(version), PYTHONWARNINGS="error")
    output, _ = app.communicate()

    assert output.splitlines() == [
        "[200, 200, 503, 503]",
        "[b'ok']",
        "('__main__.kept[0]',)",
        "['GET /', ' /stream'] False",
    ]
