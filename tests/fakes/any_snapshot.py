"""Hypothesis strategies for snapshots: any state beside any figure, hostile names, gaps everywhere."""

from __future__ import annotations

from hypothesis import strategies as st

from gpuagent.core.hardware import Clocks, Ecc, Memory, MemoryKind, MigInstance, Power, Thermal, Utilization
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.snapshot import (
    CollectorRun,
    GpuIdentity,
    GpuReading,
    GpuState,
    NodeReading,
    NvmlState,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    ProcessUtilization,
    Reconciliation,
    Snapshot,
    XidCount,
)

HOSTILE = (
    "\x1b[2J\x1b[31mred",
    "line\nbreak\ttab\rreturn",
    "\u202egnp.exe",
    "训练模型训练模型训练模型",
    "\u2028\u0085\x9b0m",
    "👩‍👩‍👧 e\u0301\u0300",
    "a|b'c\"d",
    "",
)
"""Names that a process, a user or a container may have chosen."""

texts = st.sampled_from(HOSTILE) | st.text(max_size=40)
sizes = st.none() | st.integers(0, 2**48)
ratios = st.none() | st.floats(0, 1)
numbers = st.none() | st.floats(0, 1e6) | st.sampled_from([float("nan"), float("inf"), -40.0])
flags = st.none() | st.booleans()
instances = st.sampled_from([NO_INSTANCE, 0, 13])

memories = st.builds(Memory, total_bytes=sizes, used_bytes=sizes, free_bytes=sizes, reserved_bytes=sizes)
runs = st.builds(CollectorRun, st.sampled_from(["memory", "clocks"]), st.booleans(), st.floats(0, 1), texts)
reasons = st.sampled_from(["gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "sync_boost"])


def gpus(index: int) -> st.SearchStrategy[GpuReading]:
    """Any reading of the GPU at this index."""
    whole = st.integers(0, 2**48)
    return st.builds(
        GpuReading,
        identity=st.builds(
            GpuIdentity,
            index=st.just(index),
            uuid=st.just(f"GPU-{index}") | st.just(""),
            name=texts,
            mig_enabled=flags,
            memory_kind=st.sampled_from(MemoryKind),
        ),
        state=st.sampled_from(GpuState),
        reason=texts,
        time_seconds=st.floats(0, 2000),
        since_seconds=st.none() | st.floats(0, 2000),
        measured_seconds=st.none() | st.floats(0, 2000),
        memory=st.none() | memories,
        reconciliation=st.none() | st.builds(Reconciliation, whole, whole, whole),
        utilization=st.none() | st.builds(Utilization, gpu_ratio=ratios, memory_ratio=ratios),
        thermal=st.none() | st.builds(Thermal, gpu_celsius=numbers, memory_celsius=numbers),
        power=st.none() | st.builds(Power, watts=numbers, enforced_limit_watts=numbers, default_limit_watts=numbers),
        clocks=st.none()
        | st.builds(Clocks, event_reasons=st.lists(st.tuples(reasons, st.booleans()), max_size=5).map(tuple)),
        ecc=st.none()
        | st.builds(Ecc, volatile_uncorrected=sizes, remap_failed=flags, recovery_action=st.none() | st.integers(0, 9)),
        mig=st.lists(
            st.builds(
                MigInstance,
                uuid=texts,
                gpu_instance_id=st.integers(0, 14),
                compute_instance_id=instances,
                profile=texts,
                memory=memories,
            ),
            max_size=3,
        ).map(tuple),
        processes_known=st.booleans(),
        processes_trusted=st.booleans(),
        runs=st.lists(runs, max_size=2).map(tuple),
    )


infos = st.builds(
    ProcessInfo,
    id=st.just(ProcessId("boot", 1, 1)),
    name=texts,
    uid=st.integers(0, 2**32 - 1),
    user=texts,
    command=texts,
    state=st.sampled_from("RSDZT?"),
    start_time_seconds=st.floats(0, 2e9),
    unit=texts,
    container_id=texts,
    container_runtime=texts,
    container_name=texts,
    pod=texts,
    namespace=texts,
    slurm_job=texts,
)
processes = st.builds(
    ProcessReading,
    gpu_index=st.integers(0, 2),
    gpu_uuid=st.sampled_from(["GPU-0", "GPU-1", "GPU-2", ""]),
    pid=st.integers(1, 2**22 + 100_000),
    state=st.sampled_from(ProcessState),
    info=st.none() | infos,
    used_bytes=sizes,
    kinds=st.sampled_from(["", "C", "CG", "CGM"]),
    utilization=st.none() | st.builds(ProcessUtilization, *[st.floats(0, 1)] * 4),
    gpu_instance_id=instances,
    compute_instance_id=instances,
)
nodes = st.builds(
    NodeReading,
    nvml_state=st.sampled_from(NvmlState),
    nvml_reason=texts,
    driver_version=texts,
    host_pid_namespace=st.booleans(),
    gpus_expected=st.integers(0, 16),
    pci_gpus=st.none() | st.integers(0, 16),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, at boot clock 1000."""
    return Snapshot(
        time_seconds=draw(st.floats(0, 2e9)),
        clock_seconds=1000.0,
        node=draw(nodes),
        gpus=tuple(draw(gpus(index)) for index in range(draw(st.integers(0, 3)))),
        processes=tuple(draw(st.lists(processes, max_size=6))),
        xids=tuple(
            draw(
                st.lists(
                    st.builds(
                        XidCount,
                        st.integers(0, 2),
                        st.just("GPU-0"),
                        st.sampled_from([13, 79, 999]),
                        st.integers(1, 10),
                        st.floats(0, 2e9),
                    ),
                    max_size=3,
                )
            )
        ),
        measured_seconds=draw(st.none() | st.floats(0, 1000)),
        runs=tuple(draw(st.lists(runs, max_size=2))),
        simulated=draw(st.sampled_from(["", "leak"])),
    )
