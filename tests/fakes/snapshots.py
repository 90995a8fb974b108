"""Snapshots made by hand, and any snapshot that the monitor could make."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.hardware import (
    Clocks,
    Ecc,
    HostMemory,
    Link,
    Links,
    Memory,
    MemoryKind,
    MemoryOutlook,
    MemoryPressure,
    MigInstance,
    Pcie,
    Power,
    Profile,
    StallRisk,
    Thermal,
    Utilization,
)
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.metrics.alerting import (
    AlertCount,
    AlertingFigures,
    ReceiverCounts,
    RuleFailures,
    Undelivered,
    UndeliveredReason,
)
from gpuagent.core.metrics.clients import ClientFigures, ServerReading, Servers
from gpuagent.core.snapshot import (
    AllocatorReading,
    ClientReading,
    CollectorRun,
    GpuIdentity,
    GpuReading,
    GpuState,
    NodeReading,
    NvmlState,
    Pause,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    ProcessUtilization,
    Reconciliation,
    Snapshot,
    XidCount,
)

GIB = 2**30
_FULL_PROFILE = Profile(**{field.name: 0.25 for field in dataclasses.fields(Profile)})
_LINKS = Links((Link(0, True, 26_562_000_000, (("replay", 1),)),), (("replay", 1),), 5, 6)
_FULL_ECC: dict[str, Any] = {field.name: 1 for field in dataclasses.fields(Ecc)}


class EveryFigure(dict[str, float]):
    """Figures under any name: what a collector without a part of its own would have filled."""

    def get(self, key: str, default: object = None) -> Any:
        return 1.0


def full_snapshot() -> Snapshot:
    """One with a value for everything that can be measured."""
    runs = tuple(CollectorRun(name, ok=True, duration_seconds=0.001) for name in ("memory", "processes"))
    gpu = GpuReading(
        GpuIdentity(
            0,
            "GPU-0",
            "H100",
            "1",
            "00000000:18:00.0",
            "96",
            "NVIDIA",
            "9.0",
            mig_enabled=True,
            memory_kind=MemoryKind.UNIFIED,
        ),
        GpuState.OK,
        measured_seconds=99.0,
        memory=Memory(80 * GIB, 40 * GIB, 39 * GIB, GIB, 8 * GIB, GIB),
        reconciliation=Reconciliation(38 * GIB, GIB, GIB, GIB),
        utilization=Utilization(0.5, 0.4, 0.3, 0.2, 0.1, 0.0),
        profile=_FULL_PROFILE,
        thermal=Thermal(61.0, 70.0, 20.0, 89.0, 92.0, 95.0, 87.0, (0.3, 0.4)),
        power=Power(400.0, 410.0, 700.0, 690.0, 700.0, 200.0, 700.0, 1e6, 1e3, 0),
        clocks=Clocks((("sm", 1.98e9),), (("sm", 2.1e9),), (("gpu_idle", False),), (("sync_boost", 1.5),)),
        pcie=Pcie(5, 5, 16, 16, 0, 10, 20),
        ecc=Ecc(**_FULL_ECC),
        nvlink=_LINKS,
        c2c=_LINKS,
        figures=EveryFigure(),
        mig=(MigInstance("MIG-0", 1, 0, "1g.10gb", Memory(10 * GIB, GIB, 9 * GIB), _FULL_PROFILE),),
        processes_known=True,
        stall_imminent=False,
        runs=runs,
        lost_since_seconds=40.0,
        unrepaired_xids=(XidCount(0, "GPU-0", 79, 2, 1_700_000_000.0),),
    )
    info = ProcessInfo(ProcessId("boot", 10, 1), "python3", 1000, "alice", state="D", resident_bytes=GIB, on_host=True)
    zombie = dataclasses.replace(info, id=ProcessId("boot", 11, 1), state="Z")
    busy = ProcessUtilization(0.5, 0.4, 0.3, 0.2)
    return Snapshot(
        time_seconds=1_700_000_000.0,
        clock_seconds=100.0,
        node=NodeReading(
            NvmlState.READY,
            "",
            "580.95.05",
            "13.580",
            "13.0",
            "boot",
            pci_gpus=1,
            gpus_expected=1,
            host_memory=HostMemory(128 * GIB, 60 * GIB, 40 * GIB, 20 * GIB, GIB, 8 * GIB, 4 * GIB),
            memory_pressure=MemoryPressure(0.2, 0.1),
            memory_outlook=MemoryOutlook(StallRisk.WATCH, 45.0),
            pause=Pause("alice", 400.0),
        ),
        gpus=(gpu,),
        processes=(
            ProcessReading(0, "GPU-0", 10, ProcessState.LIVE, info, 37 * GIB, "C", busy),
            ProcessReading(0, "GPU-0", 11, ProcessState.LIVE, zombie, GIB, "C", busy, 1, 0),
            ProcessReading(0, "GPU-0", 12, ProcessState.DEAD, None, GIB, "C", None, former=info),
        ),
        xids=(XidCount(0, "GPU-0", 79, 2, 1_700_000_000.0),),
        measured_seconds=99.0,
        runs=(CollectorRun("nvml", ok=True, duration_seconds=0.0),),
        ticks=3,
        ticks_late=1,
        processes_seen=7,
        clients={10: full_client()},
        growth=dict.fromkeys((MemoryKey("GPU-0"), MemoryKey("GPU-0", 0, 1), MemoryKey("GPU-0", 10)), full_growth()),
    )


def full_growth() -> Growth:
    """Growth of which everything is known."""
    return Growth(
        Verdict.LEAKING,
        Evidence.STRICT,
        Range(1e6, 0.9e6, 1.1e6),
        since_seconds=1_699_990_000.0,
        exhaustion=Range(7200.0, 3600.0, 10_800.0),
        reasons=(
            "floor of memory rose in 8 of 8 parts of 34 min, did not slow down",
            "+1.9 GiB, with 3.1 GiB left",
        ),
        fast=True,
        fast_exhaustion_seconds=12.0,
        evidence_told=(Evidence.BALANCED, Evidence.STRICT),
    )


def full_client() -> ClientReading:
    """An app that tells everything."""
    return ClientReading(
        ProcessId("boot", 10, 1), "whisper-api", "0.1.0", "2.13.0+cu130", "3.11.7", "native", ("census", "release"),
        measured_seconds=99.5,
        devices={"GPU-0": AllocatorReading(20 * GIB, 30 * GIB, 36 * GIB, 36 * GIB, 21 * GIB, GIB, 42, 1, 2, 0.9)},
        declared_minimum_bytes=4 * GIB,
        declared_typical_bytes=6 * GIB,
        frameworks={"jax": True},
    )  # fmt: skip


def full_clients() -> ClientFigures:
    """The clients' door with a value for everything."""
    return ClientFigures(
        True, 1, 2, 3, 4, 5, refused={"pid": 1}, dropped={"malformed": 1}, commands={("release", "done"): 1}
    )


def full_alerting() -> AlertingFigures:
    """The alerting half with a value for everything."""
    return AlertingFigures(
        rules=30,
        evaluation_seconds=0.002,
        alerts=(AlertCount("GpuLost", "firing", "critical", 1),),
        failures=(RuleFailures("gpuagent", "GpuLost", 1),),
        receivers=(ReceiverCounts("ops", 1, 2, 3.0, 4, 5, 6),),
        rows_set_aside=(("told", 1),),
        undelivered=(Undelivered("ops", UndeliveredReason.DEAD, "", None, 2),),
    )


def full_servers() -> Servers:
    """A model server that tells everything."""
    return (ServerReading("llm", "sglang", True, "", 0.5, 1, 2, {"weights": GIB}, {"m": GIB}),)


# ---- any snapshot -----------------------------------------------------------------------------------------------

texts = st.text(max_size=12) | st.sampled_from(["", 'a"b', "a\\b", "a\nb", "ünï", "\\n", "{}", ","])
_amounts = st.none() | st.integers(0, 2**63)
_ratios = st.none() | st.floats(0, 1)
_numbers = st.none() | st.floats(-1e6, 1e12)
_flags = st.none() | st.booleans()


def _pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[tuple[str, Any], ...]]:
    return st.dictionaries(texts, values, max_size=3).map(lambda pairs: tuple(pairs.items()))


def _all(kind: type, values: st.SearchStrategy[Any], **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Of a dataclass whose fields are all of one sort, but for some."""
    return st.builds(kind, **{field.name: others.get(field.name, values) for field in dataclasses.fields(kind)})


_profiles = st.none() | _all(Profile, _ratios)
_memories = _all(Memory, _amounts)
_runs = st.lists(
    st.builds(CollectorRun, texts, st.booleans(), st.floats(0, 10), texts),
    max_size=3,
    unique_by=lambda run: run.collector,
).map(tuple)
_errors = st.dictionaries(st.sampled_from(["replay", "crc"]), st.integers(0, 9)).map(lambda found: tuple(found.items()))
_joules = st.none() | st.floats(0, 1e12)
_links = st.builds(
    Links,
    st.lists(
        st.builds(Link, st.integers(0, 3), st.booleans(), _amounts, _errors),
        max_size=3,
        unique_by=lambda link: link.number,
    ).map(tuple),
    _errors, _amounts, _amounts,
)  # fmt: skip
_mig_profiles = st.sampled_from(["1g.10gb", "3g.40gb", "1c.3g.40gb", "2c.3g.40gb", ""])
_instances = st.lists(
    st.builds(MigInstance, texts, st.integers(0, 2), st.integers(0, 2), _mig_profiles, _memories, _profiles),
    max_size=4,
    unique_by=lambda mig: mig.uuid,
).map(tuple)
_infos = st.none() | st.builds(
    ProcessInfo, st.just(ProcessId("boot", 1, 1)), texts, st.integers(0, 2**32), texts, texts, st.sampled_from("RSDZ"),
    resident_bytes=_amounts, unit=texts, pod=texts,
)  # fmt: skip

_ranges = st.none() | st.builds(Range, *[st.floats(0, 1e12)] * 3)
_growths = st.builds(
    Growth, st.sampled_from(Verdict), st.none() | st.sampled_from(Evidence), _ranges, st.none() | st.floats(0, 2e9),
    _ranges, st.lists(texts, max_size=2).map(tuple), st.booleans(), st.none() | st.floats(0, 1e9),
    st.lists(st.sampled_from(Evidence), max_size=4, unique=True).map(tuple),
)  # fmt: skip


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Anything that can be measured, in any combination: each GPU, process, link and instance is there once."""
    identities = st.builds(GpuIdentity, st.integers(0, 3), texts, texts, texts, mig_enabled=_flags)
    unique = draw(st.lists(identities, max_size=3, unique_by=lambda gpu: (gpu.index, gpu.uuid)))
    gpus = tuple(
        draw(
            st.builds(
                GpuReading,
                st.just(identity),
                st.sampled_from(GpuState),
                measured_seconds=_numbers,
                memory=st.none() | _memories,
                reconciliation=st.none() | _all(Reconciliation, st.integers(0, 2**50)),
                utilization=st.none() | _all(Utilization, _ratios),
                profile=_profiles,
                thermal=st.none()
                | _all(Thermal, _numbers, fan_ratios=st.lists(st.floats(0, 1), max_size=2).map(tuple)),
                power=st.none() | _all(Power, _numbers, energy_joules=_joules, integrated_energy_joules=_joules),
                clocks=st.none() | _all(Clocks, _pairs(st.floats(0, 1e10)), event_reasons=_pairs(st.booleans())),
                pcie=st.none() | _all(Pcie, _amounts),
                ecc=st.none() | _all(Ecc, _amounts),
                nvlink=_links,
                mig=_instances,
                processes_known=st.booleans(),
                runs=_runs,
            )
        )
        for identity in unique
    )
    processes = tuple(process for identity in unique for process in draw(_processes(identity)))
    keys = [*(process.key for process in processes), *(MemoryKey(identity.uuid) for identity in unique)]
    growth = st.dictionaries(st.sampled_from(keys), _growths, max_size=4) if keys else st.just({})
    xids = st.builds(XidCount, st.integers(0, 3), texts, st.integers(0, 200), st.integers(0, 9), st.floats(0, 2e9))
    return draw(
        st.builds(
            Snapshot,
            st.floats(0, 2e9),
            st.floats(0, 1e9),
            st.builds(
                NodeReading,
                st.sampled_from(NvmlState),
                texts,
                texts,
                texts,
                texts,
                pci_gpus=st.none() | st.integers(0, 9),
            ),
            st.just(gpus),
            st.just(processes),
            st.lists(xids, max_size=3, unique_by=lambda x: (x.gpu_index, x.gpu_uuid, x.xid)).map(tuple),
            _numbers,
            _runs,
            growth=growth,
        )
    )


def _processes(gpu: GpuIdentity) -> st.SearchStrategy[list[ProcessReading]]:
    """Of one GPU: once for each pid and GPU instance, as the collector merges them."""
    instances = st.sampled_from([NO_INSTANCE, 0, 1])
    utilizations = st.none() | st.builds(ProcessUtilization, *[st.floats(0, 1)] * 4)
    return st.lists(
        st.builds(
            ProcessReading,
            st.just(gpu.index),
            st.just(gpu.uuid),
            st.integers(1, 5),
            st.sampled_from(ProcessState),
            _infos,
            _amounts,
            st.sampled_from(["C", "CG", "M"]),
            utilizations,
            instances,
            instances,
        ),
        max_size=5,
        unique_by=lambda process: (process.pid, process.gpu_instance_id),
    )
