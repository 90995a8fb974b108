"""What is remembered of a person's choice: columns, order and tree, in `$XDG_CONFIG_HOME/gpuagent/top.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuagent.top.columns import BY_KEY, USUAL
from gpuagent.top.rows import TREES

_LARGEST_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Preferences:
    """What the screen begins with."""

    columns: tuple[str, ...] = USUAL
    sort: str = "memory"
    descending: bool = True
    tree: str = ""


def preferences_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file, of this user alone."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    folder = Path(base) if base.startswith("/") else Path(environ.get("HOME") or "/", ".config")
    return folder / "gpuagent" / "top.json"


def load_preferences(path: Path) -> Preferences:
    """Return what the file says as far as it can be used; what is damaged or unknown is as it is without a file."""
    usual = Preferences()
    try:
        with path.open("rb") as file:
            found: Any = json.loads(file.read(_LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return usual
    if not isinstance(found, dict):
        return usual
    listed = found.get("columns")
    named = [name for name in listed if isinstance(name, str) and name in BY_KEY] if isinstance(listed, list) else []
    sort, tree, descending = found.get("sort"), found.get("tree"), found.get("descending")
    return Preferences(
        columns=tuple(dict.fromkeys(named)) or usual.columns,
        sort=sort if isinstance(sort, str) and sort in BY_KEY else usual.sort,
        descending=descending if isinstance(descending, bool) else usual.descending,
        tree=tree if isinstance(tree, str) and tree in TREES else usual.tree,
    )


def save_preferences(path: Path, chosen: Preferences) -> None:
    """Write the file whole or not at all; a home that cannot be written costs the memory alone."""
    text = json.dumps(
        {
            "columns": list(chosen.columns),
            "sort": chosen.sort,
            "descending": chosen.descending,
            "tree": chosen.tree,
        },
        indent=1,
    )
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text + "\n")
        new.replace(path)
