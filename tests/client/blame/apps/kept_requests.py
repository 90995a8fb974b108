"""A WSGI app that keeps a tensor of each request, or with `BOUNDED=1` the last few: for gunicorn's gevent workers."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable

import torch

kept: deque[torch.Tensor] | list[torch.Tensor] = deque(maxlen=20) if os.environ.get("BOUNDED") else []


def app(environ: dict[str, object], start: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """Answer any request."""
    kept.append(torch.rand(64, 64))  # leak: kept
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
