"""What Prometheus itself takes for the same expressions over the same series."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.integration.prometheus import running_prometheus

from gpuagent.core.metrics.family import Family, Sample
from gpuagent_exporters.exposition import TextWriter

_ROUNDS = 10


def prometheus_milliseconds(
    series: Sequence[tuple[Family[Any], list[Sample]]], expressions: Sequence[str], folder: Path
) -> float:
    """Wall time of evaluating each expression once, one after the other, as its query engine tells it; the median.

    It looks a series up in its database, which a rule there has to do too, and does not write the result down.
    """
    with _serving(TextWriter().write(series)) as port, running_prometheus(folder, {"bench": port}) as server:
        number = sum(len(samples) for _, samples in series)
        server.wait_until(f'count({{job="bench", __name__=~"gpuagent_.+"}}) == {number}')
        rounds: list[float] = []
        for _ in range(_ROUNDS):
            answers = [server._get("/api/v1/query", query=expression, stats="all") for expression in expressions]
            assert {answer["status"] for answer in answers} == {"success"}
            rounds.append(sum(answer["data"]["stats"]["timings"]["evalTotalTime"] for answer in answers))
    return statistics.median(rounds) * 1000


@contextmanager
def _serving(body: bytes) -> Iterator[int]:
    """The port of a server that answers everything with this exposition."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
