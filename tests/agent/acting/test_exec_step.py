"""What a remedy's program writes goes into the audit log and the alert's text."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from gpuagent.acting.hands import AgentHands
from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.steps import Kind, Step
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.remedies.world import UnitPermission
from tests.agent.acting.processes import as_target, reader


class _NoApps:
    """No app has the client."""

    async def release(self, pid: int, *, collect: bool = False) -> Mapping[str, Any]:
        raise KeyError(pid)

    async def reset(self, pid: int) -> Mapping[str, Any]:
        raise KeyError(pid)

    async def notice(self, pid: int, reason: str, seconds: float) -> Mapping[str, Any]:
        raise KeyError(pid)


async def _warn(target: Target, reason: str, deadline_seconds: float) -> None:
    raise AssertionError("a program that is run warns nobody")


@pytest.mark.parametrize("status", [0, 1])
def test_what_a_program_writes_is_kept_without_secrets(status: int) -> None:
    """ALERT-07: neither a credential nor an argument that is one gets into the audit log."""
    code = f"import sys; print(*sys.argv[1:], 'Bearer abc.def done', file=sys.stderr); sys.exit({status})"
    command = (sys.executable, "-c", code, "--password=pw-1234", "https://user:x@host/y")
    hands = AgentHands(RealProc(), reader(), apps=_NoApps(), warn=_warn)
    done = asyncio.run(hands.execute(Step(Kind.EXEC, 20.0, command=command), as_target(os.getpid()), UnitPermission()))

    assert done.ok is (status == 0)
    assert done.detail.endswith("--password=<hidden> <hidden> Bearer <hidden> done")
