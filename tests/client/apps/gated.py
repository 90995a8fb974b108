"""A FastAPI app behind a gate, on a made-up GPU: each request needs 300 MiB and leaves 1 MiB cached or leaked."""
# mypy: disable-error-code="import-not-found, untyped-decorator"
# FastAPI is not where the checks run.

import asyncio
import os
from pathlib import Path

from faketorch import FakeTorch
from fastapi import FastAPI

import gpuagent_client
from gpuagent_client.serving import AsgiMiddleware, Gate, Recycling, route_summaries

MIB = 1024**2

torch = FakeTorch().install().start_cuda()
torch.allocate(1000 * MIB)
gpuagent_client.start(app="gated")

app = FastAPI()
gate = Gate(int(os.environ.get("INSIDE", "1")), int(os.environ.get("WAITING", "1")))
after_requests = int(os.environ.get("RECYCLE_AFTER", "0"))
recycling = Recycling(after_requests=after_requests, on_notice=True) if after_requests else None
app.add_middleware(AsgiMiddleware, gate=gate, paths=["/predict"], header=True, recycling=recycling)


@app.get("/predict/{item}")
async def predict(item: int, after: str = "") -> dict[str, int]:
    """Waits for a file, if it is given one."""
    torch.allocate(300 * MIB)
    while after and not Path(after).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.01)
    torch.free(299 * MIB)
    return {"pid": os.getpid(), "item": item}


@app.get("/healthz")
async def healthz() -> dict[str, int]:
    """Not behind the gate."""
    return {"pid": os.getpid()}


@app.get("/routes")
async def routes() -> dict[str, object]:
    """What they needed."""
    return {name: summary.added._asdict() for name, summary in route_summaries().items() if summary.added}
