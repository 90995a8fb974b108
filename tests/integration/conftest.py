"""Folders for processes that listen on unix sockets, and an interpreter for real servers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import apps_python as apps_python  # noqa: PLC0414  for pytest, which looks for it here


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path: a unix socket's may have 107 bytes, and tmp_path's may be longer."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        yield Path(name)
