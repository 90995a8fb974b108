"""Pods on a GPU that they share: each process has its own pod, namespace and container, and its own memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.metrics.series import series
from gpuagent.procfs.containers import ContainerNames, PodNames
from tests.fakes.rig import rig

GIB = 1 << 30
PODS = {
    "0c5b2d3e-8f14-4f4e-b1a6-6f3a2e1d9c77": ("prod", "llama-0", "server", "a" * 64),
    "1d6c3e4f-9a25-4a5f-82b7-7a4b3f2e0d88": ("prod", "rerank-0", "server", "b" * 64),
    "2e7d4f5a-0b36-4b60-93c8-8b5c4a3f1e99": ("research", "notebook", "jupyter", "c" * 64),
}


def process(uid: str, more: str) -> str:
    """One in a scenario, in the cgroup that a kubelet with systemd makes for it."""
    name, container = PODS[uid][1], PODS[uid][3]
    scope = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice/cri-containerd-{container}.scope"
    cgroup = f"/kubepods.slice/kubepods-burstable.slice/{scope}"
    return f"{{name: {name}, cgroup: {cgroup}, {more}}}"


LLAMA, RERANK, NOTEBOOK = PODS
SHARED = {
    "time-slicing": (
        "{model: h100, processes: ["
        f"{process(LLAMA, 'memory: 4GiB')}, {process(RERANK, 'memory: 2GiB')}, {process(NOTEBOOK, 'memory: 1GiB')}]}}"
    ),
    # One instance for two pods, as with time-slicing of MIG devices, and one compute instance of another for the third.
    "MIG": (
        "{model: h100, mig: ["
        "{gpu_instance: 3, profile: 2g.20gb, memory: 20GiB}, {gpu_instance: 1, profile: 3g.40gb, memory: 40GiB}], "
        f"processes: [{process(LLAMA, 'memory: 4GiB, gpu_instance: 3')}, "
        f"{process(RERANK, 'memory: 2GiB, gpu_instance: 3')}, {process(NOTEBOOK, 'memory: 1GiB, gpu_instance: 1')}]}}"
    ),
    # The server of MPS runs in the pod of the device plugin, or on the host.
    "MPS": (
        "{model: h100, processes: [{name: nvidia-cuda-mps-server, memory: 30MiB, cgroup: /system.slice/mps.service}, "
        f"{process(LLAMA, 'memory: 4GiB, kind: M')}, {process(RERANK, 'memory: 2GiB, kind: M')}, "
        f"{process(NOTEBOOK, 'memory: 1GiB, kind: M')}]}}"
    ),
}


@pytest.mark.parametrize("how", SHARED)
def test_each_process_has_its_own_pod_and_memory(how: str, tmp_path: Path) -> None:
    """PROC-08, PROC-09: a GPU that pods share is split among them by process, whichever way they share it."""
    logs, links = tmp_path / "pods", tmp_path / "containers"
    links.mkdir()
    for uid, (namespace, pod, container, number) in PODS.items():
        (logs / f"{namespace}_{pod}_{uid}").mkdir(parents=True)
        (links / f"{pod}_{namespace}_{container}-{number}.log").touch()

    async def run() -> None:
        clock = ManualClock()
        pods, containers = PodNames(clock, str(logs)), ContainerNames(clock, links=str(links))
        async with rig(
            f"gpus:\n  - {SHARED[how]}\n", events=False, clock=clock, pods=pods, containers=containers
        ) as stage:
            snapshot = await stage.tick()
            found = {
                family.name: [
                    dict(zip(family.labels, sample.labels, strict=True)) | {"": sample.value} for sample in samples
                ]
                for family, samples in series(snapshot, clock.now())
                if family.name in {"gpuagent_process_info", "gpuagent_process_memory_used_bytes"}
            }
            memory = {each["pid"]: each[""] for each in found["gpuagent_process_memory_used_bytes"]}
            told = {
                (each["pod_namespace"], each["pod_name"], each["container_name"]): (
                    memory[each["pid"]], each["gpu_instance_id"],
                )
                for each in found["gpuagent_process_info"]
                if each["pod_name"]
            }  # fmt: skip
            instances = ("3", "3", "1") if how == "MIG" else (None, None, None)
            assert told == {
                ("prod", "llama-0", "prod/llama-0/server"): (4 * GIB, instances[0]),
                ("prod", "rerank-0", "prod/rerank-0/server"): (2 * GIB, instances[1]),
                ("research", "notebook", "research/notebook/jupyter"): (GIB, instances[2]),
            }

    asyncio.run(run())
