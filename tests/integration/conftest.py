"""Folders for processes that listen on unix sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path: a unix socket's may have 107 bytes, and tmp_path's may be longer."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        yield Path(name)
