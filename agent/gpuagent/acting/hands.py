"""The agent's hands, put together: pidfds, apps with a client, systemd, programs, messages."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from gpuagent.acting.facts import Reader
from gpuagent.acting.held import HeldProcess, ancestors
from gpuagent.acting.units import Systemctl
from gpuagent.identity import ProcessId
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.stat import parse_stat
from gpuagent.units import format_bytes
from gpuagent_alerts.receivers.masker import Masker
from gpuagent_alerts.receivers.program import run_program
from gpuagent_alerts.receivers.secret_forms import argument_secrets
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.world import Done, Held, NotPermitted
from gpuagent_exporters.client_routes import CommandFailure

_SAID = 300


class Apps(Protocol):
    """Apps with an embedded client. KeyError: none has this pid; other errors say in words why it did not work."""

    async def release(self, pid: int, *, collect: bool = False) -> Mapping[str, Any]: ...

    async def reset(self, pid: int) -> Mapping[str, Any]: ...

    async def notice(self, pid: int, reason: str, seconds: float) -> Mapping[str, Any]: ...


Warn = Callable[[Target, str, float], Awaitable[None]]
"""Puts a notice into the outbox: who is meant, why, and the seconds that are left."""


class AgentHands:
    """See `gpuagent_alerts.remedies.world.Hands`."""

    def __init__(
        self,
        files: ProcFiles,
        reader: Reader,
        *,
        apps: Apps,
        warn: Warn,
        systemctl: Systemctl | None = None,
        may_touch: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`may_touch` is narrower under a scenario: only processes that the scenario was given."""
        self._files = files
        self._reader = reader
        self._apps = apps
        self._warn = warn
        self._systemctl = systemctl or Systemctl()
        self._may_touch = may_touch

    def hold(self, target: Target) -> Held:
        if not self._may_touch(target.pid):
            raise NotPermitted(f"pid {target.pid} is no process of the scenario that runs: it is never touched")
        return HeldProcess(target, self._files, self._reader)

    def protected(self) -> frozenset[int]:
        return ancestors(self._files, os.getpid(), lambda pid: parse_stat(self._files.read(pid, "stat")).parent_pid)

    def is_alive(self, identity: ProcessId) -> bool:
        try:
            stat = parse_stat(self._files.read(identity.pid, "stat"))
        except (FileNotFoundError, ProcessLookupError):
            return False
        except (OSError, ValueError):
            return True
        return stat.start_ticks == identity.start_ticks and not (stat.state in {"Z", "X"} and stat.threads <= 1)

    async def notify(self, target: Target, reason: str, deadline_seconds: float) -> Done:
        await self._warn(target, reason, deadline_seconds)
        told = await _asked(self._apps.notice(target.pid, reason, deadline_seconds), "the app was told")
        return Done(ok=True, detail=told.detail)

    async def release_cache(
        self, target: Target, deadline_seconds: float, *, collect: bool = False  # noqa: ARG002  the app has its own
    ) -> Done:  # fmt: skip
        return await _asked(self._apps.release(target.pid, collect=collect), "the cache was given back")

    async def reset(self, target: Target, deadline_seconds: float) -> Done:  # noqa: ARG002  the app has its own
        # torch cannot take a CUDA context down inside a process (pytorch#37664): what the context holds stays.
        return await _asked(
            self._apps.reset(target.pid), "the app unloaded what it had registered; its CUDA context stays"
        )

    async def unit_refusal(self, unit: str) -> str:
        return await self._systemctl.refusal(unit)

    async def restart_unit(self, unit: str, deadline_seconds: float) -> Done:
        return await self._systemctl.restart(unit, deadline_seconds)

    async def execute(self, command: tuple[str, ...], target: Target, deadline_seconds: float) -> Done:
        """What the program is told about the target comes on its standard input, as JSON: names are the victim's."""
        document = {
            "pid": target.pid, "name": target.name, "user": target.user, "unit": target.unit,
            "container_id": target.container_id, "container_name": target.container_name,
            "slurm_job": target.slurm_job, "gpu": target.gpu_index,
            "gpu_uuid": target.key.gpu_uuid, "used_bytes": target.used_bytes,
        }  # fmt: skip
        finished = await run_program(_filled(command, target), json.dumps(document).encode(), deadline_seconds)
        if finished.status is None:
            return Done(ok=False, detail=f"the program was ended after {deadline_seconds:g} s")
        said = Masker().hide(finished.said, argument_secrets(command), starts=finished.whole)[-_SAID:]
        return Done(
            ok=finished.status == 0, detail=said if finished.status == 0 else f"status {finished.status} {said}"
        )


def _filled(command: tuple[str, ...], target: Target) -> tuple[str, ...]:
    """`{pid}`, `{container_id}` and `{slurm_job}` are the only places: none of them is chosen by the process."""
    places = {"{pid}": str(target.pid), "{container_id}": target.container_id, "{slurm_job}": target.slurm_job}
    filled = []
    for argument in command:
        for place, value in places.items():
            argument = argument.replace(place, value)  # noqa: PLW2901  one place after the other
        filled.append(argument)
    return tuple(filled)


async def _asked(answer: Awaitable[Mapping[str, Any]], done: str) -> Done:
    try:
        document = await answer
    except KeyError:
        return Done(ok=False, detail="the app has no embedded client", answer={"reason": "absent"})
    except CommandFailure as failure:
        return Done(ok=False, detail=str(failure), answer={"reason": failure.reason})
    except Exception as error:  # noqa: BLE001  whatever the app's side does, the ladder goes on
        return Done(ok=False, detail=str(error) or type(error).__name__)
    freed = document.get("released_bytes")
    return Done(ok=True, detail=f"{done}: {format_bytes(freed)}" if isinstance(freed, int) else done, answer=document)
