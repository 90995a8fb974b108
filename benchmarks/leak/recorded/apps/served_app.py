"""The example app under uvicorn, with a client that tells of glibc's heap: `served_app.py CACHE_ENTRIES`.

Runs in the interpreter that has torch. Prints its port once it serves.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import torch
import uvicorn
from heap import Heap

from gpuagent_client.allocator import Allocator, Torch
from gpuagent_client.commands import Limits
from gpuagent_client.lifecycle import Client
from gpuagent_client.settings import ClientState, load_settings

EXAMPLE = Path(__file__).parents[4] / "client" / "examples" / "served"
WIDTH = 1024
"""Four times the example's: tensors of 4 KiB and more."""


def start_client() -> Client:
    """What gpuagent_client.start() does, over the heap."""
    state = ClientState()
    state.settings = load_settings(os.environ, sys.argv[0], app="served-example")
    door = Torch(Heap().modules(str(torch.__version__)))
    allocator = Allocator(door)
    client = Client(state, door, allocator, Limits(state, door, allocator))
    client.start()
    return client


def main() -> None:
    """Serve until killed."""
    os.environ["GPUAGENT_DISABLE"] = "1"  # the app's own client would tell that there is no GPU
    sys.path.insert(0, str(EXAMPLE))
    torch.set_num_threads(1)
    import model

    model.WIDTH = WIDTH
    import app

    app.CACHE_ENTRIES = int(sys.argv[1])
    client = start_client()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio does that for its own sockets only
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    try:
        uvicorn.Server(uvicorn.Config(app.app, log_level="error")).run(sockets=[listening])
    finally:
        client.stop()


if __name__ == "__main__":
    main()
