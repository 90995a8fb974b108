"""The same as `gated`, in plain WSGI."""
# mypy: disable-error-code="import-not-found"

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from faketorch import FakeTorch

import gpuagent_client
from gpuagent_client.serving import Gate, WsgiMiddleware

MIB = 1024**2

torch = FakeTorch().install().start_cuda()
torch.allocate(1000 * MIB)
gpuagent_client.start(app="gated")


def serve(environ: Any, start_response: Any) -> Iterable[bytes]:
    """Waits for a file, if it is given one."""
    torch.allocate(300 * MIB)
    after = parse_qs(environ.get("QUERY_STRING", "")).get("after", [""])[0]
    while after and not Path(after).exists():
        time.sleep(0.01)
    torch.free(299 * MIB)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"pid": os.getpid()}).encode()]


gate = Gate(int(os.environ.get("INSIDE", "1")), int(os.environ.get("WAITING", "1")))
app = WsgiMiddleware(serve, gate, paths=["/predict"], header=True)
