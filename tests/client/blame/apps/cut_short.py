"""An app whose child ends before it has read the graphs, in the look that is named: `cut_short.py first|second`."""
# mypy: disable-error-code="import-not-found, misc, no-untyped-call, no-any-return"

from __future__ import annotations

import json
import os
import sys

import torch
from driver import Traffic
from noise import fresh

from gpuagent_client import blame
from gpuagent_client.blame.look import Look

model = torch.nn.Linear(64, 64)
losses: list[torch.Tensor] = []
kept: list[torch.Tensor] = []


def serve(number: int) -> None:
    """Keep a tensor that a name leads to, and others that only a graph holds."""
    kept.append(fresh())  # leak: cut_short
    losses.append(model(fresh()).sum())


class Cut(Traffic):
    """Traffic that knows which look comes next."""

    looks = 0

    def wait(self, seconds: float) -> bool:
        self.looks += 1
        return super().wait(seconds)


def end(_: Look) -> None:
    """End, as at the end of its time, in the child that is to be cut short."""
    if traffic.looks == {"first": 1, "second": 2}[sys.argv[1]]:
        os._exit(1)


if __name__ == "__main__":
    traffic = Cut(serve)
    traffic.wait(1.5)
    Look.read_graphs = end  # type: ignore[method-assign, assignment]
    sys.stdout.write(json.dumps(blame.run("census", {"window_seconds": 4}, 60.0, traffic)))
