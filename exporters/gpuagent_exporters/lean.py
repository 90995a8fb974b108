"""uvicorn without its own command line, which it would import too: click and the supervisors of workers, 1 MiB.

What uvicorn re-exports from there (`Server`, `run`) is used by nobody here; see `server`.
"""

from __future__ import annotations

import sys
from types import ModuleType

_absent = ModuleType("uvicorn.main", "Not loaded: see gpuagent_exporters.lean.")
for _name in ("Server", "main", "run"):
    setattr(_absent, _name, None)
sys.modules.setdefault("uvicorn.main", _absent)

from uvicorn.config import Config  # noqa: E402  after the lines above
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: E402
from uvicorn.server import ServerState  # noqa: E402

__all__ = ["Config", "H11Protocol", "ServerState"]
