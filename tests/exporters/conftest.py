"""What several tests of the HTTP side need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """An empty folder with a short path: a unix socket's may have 107 bytes, tmp_path's has more."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:
        yield Path(folder)
