"""Where the agent keeps things that no file places, and how the content of a configuration file is had.

Light: the agent imports it, and pydantic is not needed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gpuagent.core.identity import SIMULATED_NAME
from gpuagent.core.regular_files import MAX_FILE_BYTES, read_regular_file

DEFAULT_PATH = Path("/etc/gpuagent/gpuagent.yaml")
"""The configuration file where none is named; there need not be one."""


def default_directories(
    environ: Mapping[str, str], *, is_root: bool, uid: int, simulated: bool = False
) -> dict[str, Path]:
    """`state_dir`, `runtime_dir` and `client_dir` for this environment.

    systemd names a unit's directories in STATE_DIRECTORY and RUNTIME_DIRECTORY (systemd.exec(5)); an ordinary user has
    those of the XDG base directory specification. A simulated node that no unit runs has its own, beside the real
    one's: what is made up must not be found there later.
    """
    state = _of_unit(environ, "STATE_DIRECTORY")
    runtime = _of_unit(environ, "RUNTIME_DIRECTORY")
    name = SIMULATED_NAME if simulated else "gpuagent"
    if is_root:
        state = state or Path("/var/lib", name)
        runtime = runtime or Path("/run", name)
    home = _absolute(environ, "HOME")
    user_state = _absolute(environ, "XDG_STATE_HOME") or (home and home / ".local/state")
    user_runtime = _absolute(environ, "XDG_RUNTIME_DIR")
    # Without either there is still a place of one's own: a user's shell under cron or su.
    fallback = Path(f"/tmp/{name}-{uid}")  # noqa: S108 (its owner is checked: runtime.directories)
    state = state or (user_state / name if user_state else fallback / "state")
    runtime = runtime or (user_runtime / name if user_runtime else fallback / "run")
    return {
        "state_dir": state,
        "runtime_dir": runtime,
        # Beside the other, never inside it: containers may mount it.
        "client_dir": runtime.with_name(f"{runtime.name}-client"),
    }


def _of_unit(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first directory of a unit: systemd gives them all, with colons between."""
    first = environ.get(name, "").partition(":")[0]
    return Path(first) if first.startswith("/") else None


def _absolute(environ: Mapping[str, str], name: str) -> Path | None:
    """Return a directory; a relative one is invalid and ignored, says the XDG specification."""
    value = environ.get(name, "")
    return Path(value) if value.startswith("/") else None


Read = Callable[[Path], bytes]
"""Returns a file's content, of a larger one the first `MAX_FILE_BYTES` + 1 bytes; raises OSError."""


def read_file(path: Path) -> bytes:
    """Read a regular file, without waiting for anything. See `Read`."""
    return read_regular_file(path, MAX_FILE_BYTES)


def content_of(read: bytes | OSError) -> bytes:
    """Return what was read. Raises the OSError with which it could not be."""
    if isinstance(read, OSError):
        raise read
    return read
