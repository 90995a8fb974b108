"""What people ask of the remedies, over the control socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuagent.acting.agent import Acting, NoSuchProcess
from gpuagent_alerts.remedies.audit import NotRecorded
from gpuagent_alerts.remedies.steps import Kind, Step
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_exporters.remedy_routes import NotDone

Document = dict[str, Any]

_KNOWN = frozenset({"force", "dry_run", "gpu", "steps"})
_STEPS = {
    "release_cache": Step(Kind.RELEASE_CACHE, 30.0),
    "terminate": Step(Kind.TERMINATE, 30.0),
    "kill": Step(Kind.KILL, 60.0),
    "restart_unit": Step(Kind.RESTART_UNIT, 60.0),
}


class RemedyCommands:
    """See `gpuagent_exporters.remedy_routes.RemedySource`."""

    def __init__(self, acting: Acting) -> None:
        self._acting = acting

    async def remedies(self) -> Document:
        try:
            return await self._acting.document()
        except StoreFailure as error:
            raise NotDone(503, f"the record cannot be read: {error}") from None

    async def kill(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        unknown = sorted(set(request) - _KNOWN)
        if unknown:
            raise ValueError(f"unknown: {', '.join(unknown)}; allowed: {', '.join(sorted(_KNOWN))}")
        names = request.get("steps", ["terminate", "kill"])
        if not isinstance(names, list) or not names or not all(name in _STEPS for name in names):
            raise ValueError(f"steps must be a list out of {', '.join(_STEPS)}")
        gpu = request.get("gpu", "")
        if not isinstance(gpu, str):
            raise ValueError("gpu must be a text: an index or a UUID")
        try:
            return await self._acting.kill(
                pid,
                [_STEPS[name] for name in names],
                uid=uid,
                force=_flag(request, "force"),
                dry_run=_flag(request, "dry_run"),
                gpu=gpu,
            )
        except NoSuchProcess as error:
            raise NotDone(404, str(error)) from None

    async def reset(self, uid: int) -> None:
        try:
            await self._acting.reset(uid)
        except NotRecorded as error:
            raise NotDone(503, f"it could not be recorded: {error}") from None


def _flag(request: Mapping[str, Any], name: str) -> bool:
    value = request.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value
