"""What people ask of the remedies, over the control socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent_alerts.remedies.audit import NotRecorded
from gpuagent_alerts.remedies.manual_requests import SHOWN_MEMBERS, AnotherProcess, NoSuchProcess, read_identified
from gpuagent_alerts.remedies.service import RemedyService
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_exporters.api.process_routes import NotDone

Document = dict[str, Any]

_ASK = frozenset({"force", "dry_run", "gpu", SHOWN_MEMBERS, *SHOWN_FIELDS})
_KILL = _ASK | {"steps"}
_RELEASE = _ASK | {"collect"}
_STEPS = {
    "release_cache": RemedyStep(StepKind.RELEASE_CACHE, 30.0),
    "reset": RemedyStep(StepKind.RESET, 60.0),
    "terminate": RemedyStep(StepKind.TERMINATE, 30.0),
    "kill": RemedyStep(StepKind.KILL, 60.0),
    "restart_unit": RemedyStep(StepKind.RESTART_UNIT, 60.0),
}


class RemedyCommands:
    """See `gpuagent_exporters.api.process_routes.RemedySource`."""

    def __init__(self, service: RemedyService) -> None:
        self._service = service

    async def remedies(self) -> Document:
        try:
            return await self._service.document()
        except StoreFailure as error:
            raise NotDone(503, f"the record cannot be read: {error}") from None

    async def identified(self) -> Document:
        return await self._service.identified()

    async def kill(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        _only(request, _KILL)
        names = request.get("steps", ["terminate", "kill"])
        if not isinstance(names, list) or not names or not all(name in tuple(_STEPS) for name in names):
            raise ValueError(f"steps must be a list out of {', '.join(_STEPS)}")
        return await self._act(pid, [_STEPS[name] for name in names], request, uid)

    async def release(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        _only(request, _RELEASE)
        step = replace(_STEPS["release_cache"], collect=_flag(request, "collect"))
        return await self._act(pid, [step], request, uid)

    async def unload(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        _only(request, _ASK)
        return await self._act(pid, [_STEPS["reset"]], request, uid)

    async def stop(self, uid: int) -> str:
        return await self._service.stop(uid)

    async def reset(self, uid: int) -> None:
        try:
            await self._service.reset(uid)
        except NotRecorded as error:
            raise NotDone(503, f"it could not be recorded: {error}") from None

    async def _act(self, pid: int, steps: Sequence[RemedyStep], request: Mapping[str, Any], uid: int) -> Document:
        gpu = request.get("gpu", "")
        if not isinstance(gpu, str):
            raise ValueError("gpu must be a text: an index or a UUID")
        force, dry_run = _flag(request, "force"), _flag(request, "dry_run")
        shown = read_identified(request)
        try:
            return await self._service.kill(pid, steps, shown, uid=uid, force=force, dry_run=dry_run, gpu=gpu)
        except NoSuchProcess as error:
            raise NotDone(404, str(error)) from None
        except AnotherProcess as error:
            again = "look again with `gpuagent ps`, and ask again if it is still meant"
            raise NotDone(409, f"{error}; nothing was done: {again}") from None


def _only(request: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(set(request) - known):
        raise ValueError(f"unknown: {', '.join(unknown)}; allowed: {', '.join(sorted(known))}")


def _flag(request: Mapping[str, Any], name: str) -> bool:
    value = request.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value
