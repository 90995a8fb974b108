"""Restarting a systemd unit, and refusing to where that could take it down for good.

Through `systemctl`, which asks polkit: the agent's own user may restart exactly the units that a polkit rule names.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence

from gpuagent_alerts.remedies.world import Done

_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}\.service")
_ASK_SECONDS = 5.0
_OUTPUT = 4096
_OWN_KEPT = 100
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"([\d.]+)(us|ms|min|s|h|d|w)\b")
_PROPERTIES = (
    "LoadState", "RefuseManualStart", "RefuseManualStop", "StartLimitBurst", "StartLimitIntervalUSec", "NRestarts",
    "ActiveEnterTimestampMonotonic",
)  # fmt: skip


class Systemctl:
    """Runs `systemctl` without a shell; a name from a cgroup is checked before it becomes an argument."""

    def __init__(
        self, program: Sequence[str] = ("systemctl",), *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`monotonic` is CLOCK_MONOTONIC, by which systemd tells when a unit was started."""
        self._program = tuple(program)
        self._monotonic = monotonic
        self._restarted: dict[str, list[float]] = {}

    async def refusal(self, unit: str) -> str:
        """Why the unit must not be restarted now; "" if it may."""
        if not _UNIT.fullmatch(unit):
            return f"{unit!r} is not the name of a service"
        code, output = await self._run("show", "--property", ",".join(_PROPERTIES), "--", unit, seconds=_ASK_SECONDS)
        if code != 0:
            return f"systemd cannot be asked about {unit}: {output}"
        known = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        return _against(unit, known, self._monotonic(), self._restarted.get(unit, ()))

    async def restart(self, unit: str, deadline_seconds: float) -> Done:
        """Restart it, and wait for that."""
        if not _UNIT.fullmatch(unit):
            return Done(ok=False, detail=f"{unit!r} is not the name of a service")
        self._restarted[unit] = [*self._restarted.get(unit, ()), self._monotonic()][-_OWN_KEPT:]
        code, output = await self._run("--no-ask-password", "restart", "--", unit, seconds=deadline_seconds)
        if code is None:
            return Done(ok=False, detail=f"systemctl restart {unit} took longer than {deadline_seconds:.0f} s")
        denied = "denied" in output or "authentication" in output
        return Done(ok=code == 0, detail=output if code else "", errno=1 if code and denied else 0)

    async def _run(self, *arguments: str, seconds: float) -> tuple[int | None, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._program, *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            return 127, f"{self._program[0]}: {error.strerror}"
        try:
            async with asyncio.timeout(seconds):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return None, "no answer"
        return process.returncode, output[:_OUTPUT].decode("utf-8", "replace").strip()


def _against(unit: str, known: Mapping[str, str], monotonic_seconds: float, own: Sequence[float]) -> str:
    if known.get("LoadState") != "loaded":
        return f"systemd has no unit {unit}"
    if known.get("RefuseManualStart") == "yes" or known.get("RefuseManualStop") == "yes":
        return f"{unit} refuses to be restarted by hand"
    return _against_start_limit(unit, known, monotonic_seconds, own)


def _against_start_limit(unit: str, known: Mapping[str, str], monotonic_seconds: float, own: Sequence[float]) -> str:
    """One start too many within the interval leaves the unit `failed`, and nobody starts it again (measured, v252).

    systemd does not tell when its automatic restarts were, so all of them count while the last start is recent. It does
    not count those by hand (NRestarts), which use up the limit as well: of these the agent knows its own.
    """
    interval = _seconds(known.get("StartLimitIntervalUSec", "infinity"))
    burst = _count(known.get("StartLimitBurst", "0"))
    started = _count(known.get("ActiveEnterTimestampMonotonic", "0")) / 1e6
    if burst == 0 or monotonic_seconds - started > interval:
        return ""
    starts = 1 + _count(known.get("NRestarts", "0")) + sum(monotonic_seconds - each <= interval for each in own)
    if starts + 1 < burst:
        return ""
    return f"{unit} was started up to {starts} times within its start limit of {burst}: one more could leave it down"


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _seconds(text: str) -> float:
    """As systemd writes durations: `1min 30s`; `infinity`."""
    parts = _DURATION.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float("inf")
