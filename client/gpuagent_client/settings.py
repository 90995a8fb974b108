"""Settings of the client, from the call of `start`, else the environment, else defaults; state shared by its parts.

GPUAGENT_SOCKET    where the agent listens
GPUAGENT_APP       the app's name in metrics and alerts
GPUAGENT_DISABLE   1: no client at all; or commands that are not obeyed, such as `census,lines`
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from gpuagent_client.protocol import MAX_INTERVAL_SECONDS, MIN_INTERVAL_SECONDS, Declared, Level

COMMANDS = frozenset({"census", "limit", "lines", "notice", "rate", "release", "reset"})
SYSTEM_SOCKET = "/run/gpuagent-client/client.sock"
SIMULATED_FOLDER = "gpuagent-simulated-client"
"""Folder of the socket of an agent that was started with `--simulate`, beside that of a real one."""
MAX_PATH_BYTES = 107
"""Longest path of a Unix socket: https://man7.org/linux/man-pages/man7/unix.7.html"""
MAX_NAME_CHARACTERS = 100

_YES = frozenset({"1", "true", "yes", "on", "all"})
_NO = frozenset({"", "0", "false", "no", "off"})


class Notice(NamedTuple):
    """What the agent is about to do to this process, and why: time to save work, or to make it needless."""

    action: str
    reason: str
    seconds: float
    """Seconds from now until it happens."""


class Settings(NamedTuple):
    """Settings of this process and its children."""

    app: str = ""
    socket: str = ""
    """Path of the agent's socket; empty for the usual places."""
    obeyed: frozenset[str] = COMMANDS
    interval_seconds: float | None = None
    """Seconds between two figures; None: as often as the agent asks."""
    on_notice: Callable[[Notice], None] | None = None


def disabled(environment: Mapping[str, str]) -> bool:
    """Return whether there shall be no client."""
    return environment.get("GPUAGENT_DISABLE", "").strip().lower() in _YES


def load_settings(
    environment: Mapping[str, str],
    program: str,
    *,
    app: str | None = None,
    socket: str | None = None,
    allow: Iterable[str] | None = None,
    interval: float | None = None,
    on_notice: Callable[[Notice], None] | None = None,
) -> Settings:
    """Load the settings; `program` is `sys.argv[0]`.

    Raises:
        ValueError: something is not what it must be; the text names everything that is wrong.
    """
    faults: list[str] = []
    name = environment.get("GPUAGENT_APP", "") if app is None else app
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS:
        faults.append(f"app must be a text of at most {MAX_NAME_CHARACTERS} characters")
        name = ""
    path = environment.get("GPUAGENT_SOCKET", "") if socket is None else os.fspath(socket)
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        faults.append(f"socket must be a path of at most {MAX_PATH_BYTES} bytes, which is the kernel's limit")
    obeyed = COMMANDS if allow is None else frozenset(allow)
    if unknown := obeyed - COMMANDS:
        faults.append(f"allow has no {', '.join(sorted(map(repr, unknown)))}; there are {', '.join(sorted(COMMANDS))}")
    forbidden = environment.get("GPUAGENT_DISABLE", "").strip().lower()
    words = frozenset() if forbidden in _NO | _YES else frozenset(word.strip() for word in forbidden.split(","))
    if unknown := words - COMMANDS:
        faults.append(f"GPUAGENT_DISABLE has no {', '.join(sorted(unknown))}; it is 1, or some of {sorted(COMMANDS)}")
    if interval is not None and not MIN_INTERVAL_SECONDS <= interval <= MAX_INTERVAL_SECONDS:
        faults.append(f"interval must be {MIN_INTERVAL_SECONDS} to {MAX_INTERVAL_SECONDS} seconds")
    if on_notice is not None and not callable(on_notice):
        faults.append("on_notice must be callable")
    if faults:
        raise ValueError("; ".join(faults))
    return Settings(name or default_name(program), path, (obeyed & COMMANDS) - words, interval, on_notice)


def default_name(program: str) -> str:
    """Return a name for an app that gives none: its script's, or of the folder for `python -m package`."""
    path = Path(program)
    stem = path.parent.name if path.stem == "__main__" else path.stem
    return "" if stem.startswith("-") else stem[:MAX_NAME_CHARACTERS]


def socket_path(
    settings: Settings, environment: Mapping[str, str], user_id: int, *, system: str = SYSTEM_SOCKET
) -> str:
    """Return where to look for the agent: that of the node, else this user's own, else a simulated one beside it.

    The order is that in which the command `gpuagent` looks for an agent: app and command meet at the same one.
    """
    if settings.socket:
        return settings.socket
    runtime_folder = environment.get("XDG_RUNTIME_DIR", "")
    usual = Path(system)
    if user_id != 0 and runtime_folder and not _is_there(usual):
        usual = Path(runtime_folder, "gpuagent-client", "client.sock")
    simulated = usual.parent.with_name(SIMULATED_FOLDER) / usual.name
    return str(simulated if not _is_there(usual) and _is_there(simulated) else usual)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:  # in a folder that this user may not enter: connecting to it tells so
        return True
    except OSError:
        return False
    return True


MAX_EVENTS = 16


class Event(NamedTuple):
    """Something that happened in the app."""

    name: str
    fields: Mapping[str, Any]


class ClientState:
    """State shared by the client's parts: attributes that are replaced as a whole, so no lock is held at a fork."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.declared = Declared()
        self.limit_ratio: float | None = None
        """Ratio that `limit_memory` asked for; set on each GPU as soon as the app uses it."""
        self.on_reset: list[Callable[[], object]] = []
        self.busy: Callable[[], bool] = _never
        """Whether a request is being served; the serving part puts its own here."""
        self.requests_served: Callable[[], int | None] = _unknown
        """Number of requests served so far; likewise."""
        self.drain: Callable[[str], bool] | None = None
        """Ends this process after the requests that it has begun, for the reason given, and says whether it will; the
        serving part puts its own here where a successor is sure to come. None: the app has not asked for it."""
        self.released_at = float("-inf")
        """Time of `time.monotonic` at which the allocator's cache was last given back."""
        self.level: Level | None = None
        """Level last sent by the agent; None before the first one, and again once the connection is lost."""
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        """Events to be sent; the oldest are dropped where nothing sends them."""


def _never() -> bool:
    return False


def _unknown() -> int | None:
    return None
