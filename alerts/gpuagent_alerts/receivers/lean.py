"""httpx without its own command line, which it would import too: rich, pygments and click, 3 MiB.

That is an optional part of httpx, which goes on without it when it cannot be imported.
"""

from __future__ import annotations

import sys

# None in there makes the import fail: https://docs.python.org/3/reference/import.html#the-module-cache
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402  after the line above

__all__ = ["httpx"]
