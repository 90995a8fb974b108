"""The status document: its shape, its gaps, and that it is JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from gpuagent.core.hardware import Ecc, MemoryKind, Power, Thermal
from gpuagent.core.snapshot import CollectorRun, GpuIdentity, GpuReading, GpuState, ProcessState, Snapshot, XidCount
from gpuagent_exporters.status.document import processes_document, status_document
from tests.fakes.any_snapshot import snapshots
from tests.fakes.readings import NOW, WALL, absent_gpu, gpu, identity, memory, mig_instance, process, snapshot
from tests.fakes.snapshots import full_snapshot

TOP_KEYS = [
    "schema",
    "source",
    "agent",
    "time_seconds",
    "age_seconds",
    "stale",
    "node",
    "problems",
    "gpus",
    "processes",
    "last_known",
    "collectors",
]


def document(
    of: Snapshot | None, now: float = NOW, history: Mapping[str, Sequence[float | None]] | None = None, **changes: Any
) -> dict[str, Any]:
    """The document of a snapshot, as an agent would send it."""
    return status_document(
        of,
        now_seconds=now,
        version="0.1.0",
        pid=77,
        uptime_seconds=3600.0,
        poll_interval_seconds=1.0,
        history=history or {},
        history_interval_seconds=10.0,
        **changes,
    )


def strict_json(value: object) -> Any:
    """Over the wire and back; NaN and infinity are errors."""
    return json.loads(json.dumps(value, allow_nan=False))


def test_the_document_of_a_healthy_node() -> None:
    """The figures of a snapshot arrive under their keys, in base units."""
    here = document(snapshot(), NOW + 0.5, {"GPU-00000000": [1.0, None, 2.0]})
    (card,), (row,) = here["gpus"], here["processes"]

    assert list(here) == TOP_KEYS
    assert here["agent"] == {
        "version": "0.1.0",
        "pid": 77,
        "uptime_seconds": 3600.0,
        "simulated": "",
        "poll_interval_seconds": 1.0,
    }
    assert (here["time_seconds"], here["age_seconds"], here["stale"]) == (WALL, 0.5, False)
    assert (here["node"]["driver_version"], here["node"]["gpus"]) == ("580.82.07", 1)
    assert (card["memory_total_bytes"], card["memory_used_ratio"]) == (24 * 1024**3, 0.8125)
    assert (card["power_watts"], card["power_limit_watts"], card["fan_ratio"]) == (212.4, 300.0, 0.35)
    assert (card["sm_clock_hertz"], card["recovery_action"], card["processes"]) == (1_710e6, "none", 1)
    assert (card["memory_used_history_bytes"], card["history_interval_seconds"]) == ([1.0, None, 2.0], 10.0)
    assert (row["pid"], row["user"], row["age_seconds"], row["gpu_instance_id"]) == (4242, "alice", 8040.0, None)
    assert {run["collector"]: run["gpu"] for run in here["collectors"]} == {"nvml": None, "memory": 0}


def test_before_the_first_measurement() -> None:
    """EXP-06: the same shape, with nulls and empty lists, and one problem that says why."""
    empty, full = document(None, simulated="leak"), document(snapshot())

    assert list(empty) == list(full)
    assert list(empty["node"]) == list(full["node"])
    assert (empty["gpus"], empty["processes"], empty["collectors"]) == ([], [], [])
    assert (empty["age_seconds"], empty["stale"], empty["node"]["gpus"]) == (None, False, None)
    assert empty["agent"]["simulated"] == "leak"
    assert len(empty["problems"]) == 1


def test_what_the_driver_does_not_tell_is_null() -> None:
    """NUM-01: a missing figure is null, never 0 and never the last one."""
    bare = GpuReading(GpuIdentity(0, "GPU-0"), GpuState.OK, time_seconds=NOW)
    (card,) = document(snapshot([bare], [process(used_gib=None, sm_ratio=None)]))["gpus"]
    (row,) = document(snapshot([bare], [process(used_gib=None, sm_ratio=None)]))["processes"]
    told = {key for key, value in card.items() if value is not None and value not in ("", [])}

    assert told == {
        "index",
        "uuid",
        "state",
        "age_seconds",
        "memory_kind",
        "processes_trusted",
        "history_interval_seconds",
    }
    assert (row["memory_used_bytes"], row["sm_utilization_ratio"]) == (None, None)


def test_a_gpu_that_cannot_be_read_has_no_figures() -> None:
    """GPU-01: a lost GPU keeps its name, its reason and its age, and nothing else."""
    (card,) = document(snapshot([absent_gpu(0, GpuState.LOST, "the GPU is lost")], []))["gpus"]

    assert (card["state"], card["reason"], card["age_seconds"]) == ("lost", "the GPU is lost", 120.0)
    figures = {
        key for key in card if key.startswith("memory_") and key not in {"memory_kind", "memory_used_history_bytes"}
    }
    assert all(card[key] is None for key in figures)
    assert card["processes"] is None


def test_memory_that_nobody_tells_is_told_by_its_processes() -> None:
    """NUM-05: how full it is is not known, but what its processes hold is."""
    whole = gpu(identity=identity(memory_kind=MemoryKind.UNIFIED), memory=memory(None), reconciliation=None)
    rows = [process(1, used_gib=12), process(2, used_gib=2, state=ProcessState.DEAD)]
    (card,) = document(snapshot([whole], rows))["gpus"]

    assert card["memory_used_bytes"] is card["memory_unattributed_bytes"] is None
    assert (card["memory_processes_bytes"], card["memory_dead_processes_bytes"]) == (12 * 1024**3, 2 * 1024**3)


def test_processes_are_ordered() -> None:
    """By GPU, then the largest first; unknown memory comes last."""
    here = snapshot(
        [gpu(0), gpu(1)],
        [
            process(1, gpu_index=1, used_gib=9),
            process(2, used_gib=None),
            process(3, used_gib=0.5),
            process(4, used_gib=7),
        ],
    )

    assert [row["pid"] for row in document(here)["processes"]] == [4, 3, 2, 1]


def test_a_process_on_two_gpus_has_two_rows_and_counts_on_both() -> None:
    """NUM-08: one pid on two GPUs is shown on each; two instances of one GPU count it once."""
    rows = [
        process(5, gpu_index=0, instance=1),
        process(5, gpu_index=0, instance=2),
        process(5, gpu_index=1),
    ]
    here = document(snapshot([gpu(0), gpu(1)], rows))

    assert [card["processes"] for card in here["gpus"]] == [1, 1]
    assert len(here["processes"]) == 3


@pytest.mark.parametrize("state", [ProcessState.DEAD, ProcessState.UNRESOLVED])
def test_a_process_that_proc_does_not_know(state: ProcessState) -> None:
    """PROC-01, PROC-04: such a process has its memory and its state, and no name that may be a stranger's."""
    (row,) = document(snapshot([gpu()], [process(9, state=state)]))["processes"]

    assert (row["state"], row["process"], row["user"], row["uid"], row["age_seconds"]) == (state, "", "", None, None)
    assert row["memory_used_bytes"]


def test_mig_instances() -> None:
    """PROC-09: instances are listed under their GPU, and its processes name theirs."""
    here = document(snapshot([gpu(mig=(mig_instance(3, 4.0),))], [process(instance=3)]))

    (instance,) = here["gpus"][0]["mig"]
    assert (instance["gpu_instance_id"], instance["profile"]) == (3, "1g.10gb")
    assert (here["processes"][0]["gpu_instance_id"], here["processes"][0]["compute_instance_id"]) == (3, 0)


def test_only_real_slowdowns_are_throttle_reasons() -> None:
    """An idle GPU is not slowed down."""
    reasons = (("gpu_idle", True), ("sw_power_cap", True), ("hw_thermal_slowdown", False))
    clocks = gpu().clocks
    assert clocks is not None
    here = snapshot([gpu(clocks=dataclasses.replace(clocks, event_reasons=reasons))])

    assert document(here)["gpus"][0]["throttle_reasons"] == ["sw_power_cap"]


@pytest.mark.parametrize(("action", "name"), [(None, None), (0, "none"), (2, "node_reboot"), (99, "unknown_99")])
def test_the_recovery_action_is_a_word(action: int | None, name: str | None) -> None:
    """A number that only nvml.h explains is no help; one that nvml.h lacks is not hidden."""
    assert document(snapshot([gpu(ecc=Ecc(recovery_action=action))]))["gpus"][0]["recovery_action"] == name


def test_xids_belong_to_their_gpu() -> None:
    """ALERT-01: each GPU lists its own codes with count and time."""
    xids = (XidCount(1, "GPU-00000001", 79, 2, WALL - 9),)
    here = document(snapshot([gpu(0), gpu(1)], xids=xids))

    assert [card["xids"] for card in here["gpus"]] == [
        [],
        [{"xid": 79, "count": 2, "last_time_seconds": WALL - 9, "unrepaired": False}],
    ]


def test_problems_are_complete() -> None:
    """A problem in the document has its GPU in the sentence, and what to do about it."""
    (problem,) = document(snapshot([absent_gpu(1, GpuState.LOST)], [], node={"gpus_expected": 1}))["problems"]

    assert problem["severity"] == "critical"
    assert (problem["kind"], problem["gpu"], problem["pid"]) == ("gpu_lost", 1, None)
    assert problem["text"].startswith("GPU 1: lost")
    assert problem["advice"]


def test_old_data_is_marked() -> None:
    """EXP-05: whoever shows the document need not know what old is."""
    assert document(snapshot(), NOW + 60)["stale"] is True


def test_the_processes_alone() -> None:
    """The smaller document has the same rows, and tells whether they are simulated and how old."""
    here = snapshot(simulated="leak")
    small = processes_document(here, now_seconds=NOW + 60)

    assert small["processes"] == document(here)["processes"]
    assert (small["schema"], small["agent"], small["stale"]) == (1, {"simulated": "leak"}, True)
    assert processes_document(None, now_seconds=NOW)["processes"] == []


def test_identities_are_told_only_where_they_are_asked_for() -> None:
    """What names a process for a request is in the document for who commands, and in none that others read."""
    keys = {"start_ticks", "boot_id", "pid_namespace", "parent_pid"}
    here = full_snapshot()
    identified = processes_document(here, now_seconds=NOW, identified=True)["processes"]
    others = processes_document(here, now_seconds=NOW)["processes"]
    assert isinstance(identified, list)
    assert isinstance(others, list)
    assert all(keys <= set(row) for row in identified)
    assert any(row["start_ticks"] for row in identified)
    assert [{key: row[key] for key in row if key not in keys} for row in identified] == others
    assert [keys & set(row) for row in (*others, *document(here)["processes"])] == [set()] * 2 * len(others)


def test_what_json_cannot_say_is_null() -> None:
    """NUM-02: NaN and infinity do not leave the agent."""
    wild = gpu(thermal=Thermal(gpu_celsius=math.nan), power=Power(watts=math.inf))
    here = snapshot([wild], runs=(CollectorRun("nvml", ok=True, duration_seconds=math.inf),))
    back = strict_json(document(here, history={"GPU-00000000": [math.nan]}))

    assert (back["gpus"][0]["temperature_celsius"], back["gpus"][0]["power_watts"]) == (None, None)
    assert back["gpus"][0]["memory_used_history_bytes"] == [None]


@settings(max_examples=50)
@given(here=snapshots())
def test_any_snapshot_becomes_json(here: Snapshot) -> None:
    """NUM-02: whatever was measured, both documents are strict JSON with all their keys."""
    there = strict_json(document(here, 1000.0))

    assert list(there) == TOP_KEYS
    assert there == document(here, 1000.0)
    assert strict_json(processes_document(here, now_seconds=1000.0))["processes"] == there["processes"]
