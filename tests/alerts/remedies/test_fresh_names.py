"""Names that permit are asked for at the moment of the act: a uid and a container's name go over to others."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.procfs.containers import RunningContainer
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.machine import boot_id, boot_time_seconds
from gpuagent.procfs.reader import BootContext, ProcessReader, ProcessRecord
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.users import UserNames
from gpuagent_alerts.remedies.execution.executor import NodeActionExecutor
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.process_facts import read_facts
from gpuagent_alerts.remedies.target import Target
from tests.alerts.remedies.processes import PLAIN, as_target, reader, running

ID = "a1" * 32


class _NoApps:
    async def release(self, pid: int, *, collect: bool = False) -> Mapping[str, Any]:
        raise KeyError(pid, collect)

    async def reset(self, pid: int) -> Mapping[str, Any]:
        raise KeyError(pid)

    async def notice(self, pid: int, reason: str, seconds: float) -> Mapping[str, Any]:
        raise KeyError(pid, reason, seconds)


async def _warn(target: Target, reason: str, seconds: float) -> None:
    pass


class _InContainer:
    """Reads real processes, as if all were in one container that root has made."""

    def read(self, pid: int) -> ProcessRecord:
        record = reader().read(pid)
        return ProcessRecord(replace(record.info, container_id=ID, proven_names=frozenset({"container"})), record.image)

    def user_now(self, uid: int) -> str:
        return reader().user_now(uid)

    def proven_container(self, _pid: int) -> str:
        return ID


def test_facts_have_the_name_of_this_moment() -> None:
    """The reader remembers the old name for a minute; the facts of a held process have the new one."""
    uid = os.geteuid()
    database = {uid: pwd.struct_passwd(("svc-ml", "x", uid, uid, "", "/", "/bin/sh"))}
    users = UserNames(ManualClock(), lambda asked: database[asked])
    known = ProcessReader(
        RealProc(),
        BootContext(boot_id(), boot_time_seconds(), 0),
        users=users,
        fresh_users=users.fresh,
        redactor=Redactor(()),
    )
    with running(PLAIN) as process:
        assert known.read(process.pid).info.user == "svc-ml"
        database[uid] = pwd.struct_passwd(("bob", "x", uid, uid, "", "/", "/bin/sh"))
        assert known.read(process.pid).info.user == "svc-ml"
        assert read_facts(RealProc(), known, process.pid, 0, CommandDigests()).user == "bob"


def test_a_measured_process_gets_the_new_name_of_its_user() -> None:
    """A process that runs on while its uid goes over to another user does not keep the old name."""
    uid, clock = os.geteuid(), ManualClock()
    database = {uid: pwd.struct_passwd(("svc-ml", "x", uid, uid, "", "/", "/bin/sh"))}
    known = ProcessReader(
        RealProc(), BootContext(boot_id(), boot_time_seconds(), 0),
        users=UserNames(clock, lambda asked: database[asked]), redactor=Redactor(()),
    )  # fmt: skip
    with running(PLAIN) as process:
        record = known.read(process.pid)
        database[uid] = pwd.struct_passwd(("bob", "x", uid, uid, "", "/", "/bin/sh"))
        clock.advance(60.0)
        assert known.renew(record, known.stat(process.pid)).info.user == "bob"


@pytest.mark.parametrize(
    ("measured", "told", "refusal"),
    [
        ("web", "web", ""),
        ("web", "web-old", "has another name now: web-old"),
        ("web", "", "has another name now: (none)"),
        ("", "web", ""),
        ("ml/whisper-0/server", "k8s_server_whisper-0_ml_1_0", ""),
    ],
)
def test_a_container_with_another_name_is_refused(measured: str, told: str, refusal: str) -> None:
    """The runtime's word right before the act decides; the kubelet's names are not the runtime's."""
    with running(PLAIN) as process:
        target = replace(
            as_target(process.pid), container_id=ID, container_runtime="docker", container_name=measured,
            proven_names=frozenset({"container"}),
        )  # fmt: skip
        executor = NodeActionExecutor(
            RealProc(), _InContainer(), apps=_NoApps(), warn=_warn,
            ask_runtime=lambda _: RunningContainer(process.pid, told),
        )  # fmt: skip
        said = asyncio.run(executor.container_refusal(target))
    assert refusal in said
    assert bool(said) == bool(refusal)


@pytest.mark.parametrize(
    ("runtime", "asked", "refused"),
    [
        ("docker", True, True), ("podman", True, True), ("", True, False), ("containerd", False, False),
        ("cri-o", False, False), ("lxc", False, False), ("systemd-nspawn", False, False),
    ],
)  # fmt: skip
def test_a_runtime_is_asked_about_its_own_containers(runtime: str, asked: bool, refused: bool) -> None:
    """P10: that docker does not know a container of LXC or containerd is no reason to leave that one alone."""
    questions: list[str] = []
    with running(PLAIN) as process:
        target = replace(
            as_target(process.pid), container_id=ID, container_runtime=runtime, proven_names=frozenset({"container"})
        )
        executor = NodeActionExecutor(
            RealProc(), _InContainer(), apps=_NoApps(), warn=_warn, ask_runtime=questions.append
        )
        said = asyncio.run(executor.container_refusal(target))
    assert (bool(questions), "knows no running container" in said) == (asked, refused)
