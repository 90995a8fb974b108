"""From a snapshot to series."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.process import OTHER
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import GpuState, ProcessReading, ProcessState, Snapshot
from tests.fakes.snapshots import full_snapshot, snapshots

GIB = 2**30
NOW = 100.0


def values(snapshot: Snapshot | None, name: str, top: int | None = None) -> dict[tuple[str | None, ...], float]:
    """The series of one family by their labels."""
    for family, samples in series(snapshot, NOW, top=top):
        if family.name == name:
            return {sample.labels: sample.value for sample in samples}
    return {}


@pytest.mark.slow
@given(snapshot=snapshots(), top=st.none() | st.integers(0, 5), now=st.floats(0, 1e9))
@settings(max_examples=30)
def test_any_snapshot(snapshot: Snapshot, top: int | None, now: float) -> None:
    """EXP-04: no two series are the same, none is not a number, and each has all labels of its family."""
    families = []
    for family, samples in series(snapshot, now, top=top):
        families.append(family)
        labels = [sample.labels for sample in samples]
        assert samples
        assert len(set(labels)) == len(labels)
        assert {len(each) for each in labels} == {len(family.labels)}
        assert all(math.isfinite(sample.value) for sample in samples)
        assert all(label is None or isinstance(label, str) for each in labels for label in each)
    assert len({family.name for family in families}) == len(families)
    assert set(families) <= set(FAMILIES)


@pytest.mark.slow
@given(snapshot=snapshots(), top=st.integers(0, 4))
@settings(max_examples=30)
def test_the_sum_over_processes_does_not_depend_on_the_bound(snapshot: Snapshot, top: int) -> None:
    """EXP-03: what is not shown by itself is in `other`, so that `sum by (gpu)` is complete all the same."""
    name = "gpuagent_process_memory_used_bytes"

    def sums(bound: int | None) -> dict[tuple[str | None, ...], float]:
        totals: dict[tuple[str | None, ...], float] = {}
        for labels, value in values(snapshot, name, bound).items():
            totals[labels[:2]] = totals.get(labels[:2], 0.0) + value
        return {gpu: total for gpu, total in totals.items() if total}

    every, bounded = sums(None), sums(top)
    assert every.keys() == bounded.keys()
    assert all(math.isclose(every[gpu], bounded[gpu], rel_tol=1e-9) for gpu in every)


def test_before_the_first_tick() -> None:
    """EXP-06: something is told all the same."""
    told = {family.name: samples for family, samples in series(None, NOW, simulated="leak")}

    assert told.keys() == {"gpuagent_build_info", "gpuagent_simulated"}
    assert [sample.value for sample in told["gpuagent_simulated"]] == [1.0]


def test_the_largest_processes_are_shown() -> None:
    """EXP-03: by memory; the rest of a GPU is one series without a pid."""
    used = values(full_snapshot(), "gpuagent_process_memory_used_bytes", top=1)

    assert used == {
        ("0", "GPU-0", "10", "python3", "alice", None, None): 37 * GIB,
        ("0", "GPU-0", "", OTHER, "", None, None): 2 * GIB,
    }
    assert len(values(full_snapshot(), "gpuagent_process_info", top=1)) == 1


def test_a_process_of_which_nothing_is_known() -> None:
    """PROC-01: is named by its state; nothing that /proc would tell is made up."""
    dead = ("0", "GPU-0", "12", "[dead]", "", None, None)

    assert dead in values(full_snapshot(), "gpuagent_process_memory_used_bytes")
    assert dead not in values(full_snapshot(), "gpuagent_process_start_time_seconds")
    assert dead not in values(full_snapshot(), "gpuagent_process_sm_utilization_ratio")


def test_process_labels_under_mig() -> None:
    """PROC-09: the ids of GPU and compute instance, which others do not have."""
    labels = set(values(full_snapshot(), "gpuagent_process_memory_used_bytes"))

    assert ("0", "GPU-0", "11", "python3", "alice", "1", "0") in labels


def test_ages_grow_with_the_time_of_looking() -> None:
    """EXP-05: also while no tick comes."""
    snapshot = full_snapshot()
    (age,) = (samples for family, samples in series(snapshot, 130.0) if family.name == "gpuagent_snapshot_age_seconds")

    assert [sample.value for sample in age] == [31.0]
    assert values(snapshot, "gpuagent_gpu_reading_age_seconds") == {("0", "GPU-0"): 1.0}


def with_state(state: GpuState) -> Snapshot:
    """The GPU is in this state, and its list of processes is unknown."""
    snapshot = full_snapshot()
    gpu = dataclasses.replace(snapshot.gpus[0], state=state, processes_known=False, lost_since_seconds=None)
    return dataclasses.replace(snapshot, gpus=(gpu,))


def test_lost_is_known_or_missing() -> None:
    """GPU-01: 1 for lost and gone, 0 for a GPU that answers or sleeps, and nothing where nothing can be said."""
    lost = {state: list(values(with_state(state), "gpuagent_gpu_lost").values()) for state in GpuState}

    assert lost == {
        GpuState.OK: [0], GpuState.ASLEEP: [0], GpuState.LOST: [1], GpuState.GONE: [1],
        GpuState.STARTING: [], GpuState.BLIND: [], GpuState.FAILED: [],
    }  # fmt: skip


def test_lost_stays_until_the_gpu_is_shown_to_be_back() -> None:
    """GPU-01: one that answers again, without the proof of a new session, is still called lost, since when it is."""
    assert values(full_snapshot(), "gpuagent_gpu_lost") == {("0", "GPU-0"): 1}
    assert values(full_snapshot(), "gpuagent_gpu_lost_timestamp_seconds") == {("0", "GPU-0"): 1_700_000_000.0 - 60}


def test_an_unknown_list_is_not_an_empty_one() -> None:
    """EXP-05: no number of processes is told where the list could not be read."""
    assert values(full_snapshot(), "gpuagent_processes") == {("0", "GPU-0"): 3}
    assert values(full_snapshot(), "gpuagent_dead_processes") == {("0", "GPU-0"): 1}
    assert values(with_state(GpuState.OK), "gpuagent_processes") == {}
    assert values(with_state(GpuState.OK), "gpuagent_dead_processes") == {}


def test_gpus_are_counted_by_what_is_known() -> None:
    """GPU-02: what has gone is not enumerated; what is lost still is."""
    assert values(with_state(GpuState.GONE), "gpuagent_gpus") == {(): 0}
    assert values(with_state(GpuState.LOST), "gpuagent_gpus") == {(): 1}
    assert values(with_state(GpuState.LOST), "gpuagent_gpus_readable") == {(): 0}


def test_memory_of_no_process_is_a_float_of_its_own() -> None:
    """NUM-01: a process whose memory the driver does not tell has no memory series, and `other` counts it as none."""
    snapshot = full_snapshot()
    unknown = ProcessReading(0, "GPU-0", 13, ProcessState.DEAD, None, None, "C", None)
    snapshot = dataclasses.replace(snapshot, processes=(*snapshot.processes, unknown))

    assert "13" not in {labels[2] for labels in values(snapshot, "gpuagent_process_memory_used_bytes")}
    assert "13" in {labels[2] for labels in values(snapshot, "gpuagent_process_info")}
    assert values(snapshot, "gpuagent_process_memory_used_bytes", top=3)["0", "GPU-0", "", OTHER, "", None, None] == 0


def test_only_what_is_asked_for_is_made() -> None:
    """Rules read a few metrics of many: the others cost them nothing, and those they read are the same."""
    snapshot = full_snapshot()
    every = {family.name: samples for family, samples in series(snapshot, 1000.0)}
    wanted = frozenset({"gpuagent_gpu_memory_used_bytes", "gpuagent_process_memory_used_bytes", "gpuagent_gpus"})

    some = {family.name: samples for family, samples in series(snapshot, 1000.0, only=wanted)}

    assert some == {name: every[name] for name in wanted}


def test_memory_whose_holder_is_unproven_is_nobodys() -> None:
    """No sum over an owner counts what may be a dead process's: the number keeps its series, and loses its owner."""
    snapshot = full_snapshot()
    proven = [each for each in snapshot.processes if each.info is not None and each.info.user]
    unproven = dataclasses.replace(
        snapshot, processes=tuple(each._replace(holder_unproven=True) for each in snapshot.processes)
    )
    used, owned = "gpuagent_process_memory_used_bytes", slice(7, 17)  # uid, command, ..., slurm_job
    assert len(values(unproven, used)) == len(values(snapshot, used))
    assert any(labels[4] for labels in values(snapshot, used))
    assert not any(labels[4] for labels in values(unproven, used))
    infos = list(values(unproven, "gpuagent_process_info"))
    assert len(infos) == len(values(snapshot, "gpuagent_process_info")) >= len(proven) > 0
    commands = {each.info.command for each in proven if each.info is not None}
    assert all({label for label in labels[owned] if label} <= commands for labels in infos)
