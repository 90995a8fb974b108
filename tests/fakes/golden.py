"""Files that hold what was right: compared, or written anew when that is asked for."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def assert_golden(name: str, text: str) -> None:
    """`text` is what the file holds; GPUAGENT_UPDATE_GOLDEN=1 writes it there instead."""
    path = FOLDER / name
    if os.environ.get("GPUAGENT_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        "if that is meant: GPUAGENT_UPDATE_GOLDEN=1, then read the difference"
    )
