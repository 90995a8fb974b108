"""A small inference server as it should be, and five leaks to switch on: `uvicorn app:app` in this folder.

The model is loaded once, inference runs in inference mode, the queue is bounded, the cache is bounded. What embeds
gpuagent is the import, one call of start(), and the middleware with its gate.
"""
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI, HTTPException
from leaks import LEAKS
from model import Loaded
from starlette.concurrency import run_in_threadpool

import gpuagent_client
from gpuagent_client.serving import AsgiMiddleware, Gate

CACHE_ENTRIES = 100
# How many requests use the GPU at a time, and how many more may wait for it. The others are told to come back: an
# unbounded queue would say so by running out of memory.
INSIDE, WAITING = 2, 32

# The agent's socket is GPUAGENT_SOCKET, or where the agent's package puts it. Without an agent this is silent.
gpuagent_client.start(app=os.environ.get("GPUAGENT_APP", "served-example"))

loaded = Loaded()
leaking: set[str] = set()
# Always busy and always full: memory that comes and goes is no leak.
recent: OrderedDict[str, torch.Tensor] = OrderedDict()


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Load before the first request, not in it."""
    with gpuagent_client.measure("load model"):
        await run_in_threadpool(loaded.module)
    yield


app = FastAPI(title="served example", lifespan=lifespan)
# Around the route that uses the GPU. It also measures what each request needs, and closes the gate while the agent says
# that the GPU is nearly full.
app.add_middleware(AsgiMiddleware, gate=Gate(INSIDE, WAITING), paths=["/predict"], header=True)


def infer(text: str) -> list[float]:
    """Serve one request in a thread of Starlette's pool."""
    words = loaded.words(text)
    with torch.inference_mode():
        scores = loaded.module()(words).softmax(1)
        recent[text] = loaded.module().embedding(words)
        recent.move_to_end(text)
        while len(recent) > CACHE_ENTRIES:
            recent.popitem(last=False)
    for name in sorted(leaking):
        LEAKS[name](loaded, words)
    return [round(float(score), 4) for score in scores[0]]


@app.get("/predict")
async def predict(text: str) -> dict[str, list[float]]:
    """Classify a text; the middleware answers 503 when the queue is full."""
    return {"scores": await run_in_threadpool(infer, text)}


@app.get("/healthz")
async def healthz() -> dict[str, object]:
    """Whether it serves, on what, and what it leaks."""
    return {"status": "ok", "device": str(loaded.device), "leaking": sorted(leaking)}


@app.put("/leak/{cause}")
async def leak(cause: str) -> dict[str, object]:
    """From now on, each request leaks in this way."""
    if cause not in LEAKS:
        raise HTTPException(404, f"no such leak; there are {', '.join(LEAKS)}")
    leaking.add(cause)
    return {"leaking": sorted(leaking)}


@app.delete("/leak/{cause}")
async def stop_leaking(cause: str) -> dict[str, object]:
    """No more of it; what has leaked stays, as it would."""
    leaking.discard(cause)
    return {"leaking": sorted(leaking)}
