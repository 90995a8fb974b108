"""Pictures of leaks for messages, drawn in a process of their own: Pillow would cost the agent 10 MiB for good."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuagent.core.growth import Verdict
from gpuagent.core.plot.png import can_write_png
from gpuagent_alerts.alert import Incident
from gpuagent_alerts.programs.run import CONFINED, ENVIRONMENT, WORKING_DIRECTORY

log = logging.getLogger(__name__)

_PROGRAM: Final = (sys.executable, "-I", "-m", "gpuagent.core.plot")
_TIMEOUT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 2**20
_GROWS: Final = frozenset({Verdict.GROWING, Verdict.LEAKING})


class LeakPictures:
    """Draws the memory of a process that grows, as it is when its message is sent."""

    def __init__(self, explain: Callable[[int, str], Mapping[str, Any]]) -> None:
        self._explain = explain
        self._drawing = asyncio.Lock()

    async def picture_of(self, incident: Incident) -> bytes:
        """Return a PNG of the incident's process; nothing where it does not grow, or there is no Pillow."""
        pid, uuid = incident.labels.get("pid", ""), incident.labels.get("uuid", "")
        if incident.is_over or not (pid.isascii() and pid.isdigit()) or not can_write_png():
            return b""
        try:
            evidence = self._explain(int(pid), uuid)
        except (KeyError, ValueError):  # it has ended, or is on several GPUs
            return b""
        if evidence["verdict"] not in _GROWS or len(evidence["points"]) < 2:
            return b""
        async with self._drawing:  # several receivers are told at once, and a picture takes 50 MiB for a moment
            return await _draw(json.dumps(evidence).encode())


async def _draw(evidence: bytes) -> bytes:
    """Run the program that draws; nothing where it fails, as a message without a picture is still a message."""
    try:
        process = await asyncio.create_subprocess_exec(
            *CONFINED, *_PROGRAM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, cwd=WORKING_DIRECTORY, env=ENVIRONMENT,
        )  # fmt: skip
    except OSError as error:
        log.warning("no picture for a message: %s", error.strerror or error)
        return b""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            picture, _ = await process.communicate(evidence)
    except TimeoutError:
        picture = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0 or len(picture) > _MOST_BYTES:
        log.warning("no picture for a message: the program that draws it ended with status %s", process.returncode)
        return b""
    return picture
