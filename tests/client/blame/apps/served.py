"""The example app under a real uvicorn and real requests: `served.py CAUSE...` prints what the census says about it."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
from pathlib import Path

import uvicorn
from driver import Traffic

from gpuagent_client import blame

sys.path.insert(0, str(Path(__file__).parents[4] / "client" / "examples" / "served"))


class Client:
    """Speaks HTTP to the app, from a thread that is none of its own."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, method: str, path: str) -> object:
        self._connection.request(method, path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body!r}")
        return json.loads(body)

    def predict(self, number: int) -> None:
        """A text of its own for each request, of a few words: shapes vary, caches churn."""
        self.ask("GET", f"/predict?text=request+{number}{'+more' * (number % 5)}")


def main() -> None:
    """Serve, leak, ask, print."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does that for its own sockets only
    server = uvicorn.Server(uvicorn.Config("app:app", log_level="error"))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    serving.start()
    client = Client(listening.getsockname()[1])  # waits in the backlog until the app has started
    for cause in sys.argv[1:]:
        client.ask("PUT", f"/leak/{cause}")
    traffic = Traffic(client.predict)
    traffic.wait(1.5)
    sys.stdout.write(json.dumps(blame.run("census", {"window_seconds": 4}, 60.0, traffic)))
    server.should_exit = True
    serving.join()


if __name__ == "__main__":
    main()
