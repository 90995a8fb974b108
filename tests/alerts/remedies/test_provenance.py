"""What the process or its user can write may withhold an act, and never cause one: over whole policies."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_alerts.remedies.observation import Condition, Observation, RemedyRequest
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.refusals import NotAllowListed
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Facts, Identity, Target, TiedProcess, Ties
from tests.alerts.remedies.provenance import FACTS, FactWriter, written_by
from tests.alerts.remedies.world import GIB, target

NOW = 1e6
ID, OTHER = "a1" * 32, "b2" * 32
OF_ROOT = {
    "unit": ("Target.unit", "a.service"),
    "container": ("Target.container_id", ID),
    "job": ("Target.slurm_job", "7"),
}
"""Names that only root can have chosen, where they are proven."""
NAMES = tuple(OF_ROOT)
BLANK: dict[str, Any] = {
    "Target.name": "program", "Target.command": "", "Target.cgroup": "/", "Target.unit": "", "Target.container_id": "",
    "Target.container_runtime": "", "Target.slurm_job": "", "Facts.oom_score_adjust": 0, "Facts.ignored_signals": 0,
    "Facts.caught_signals": 0, "Identity.name": "program", "Identity.command_digest": "d", "Identity.cgroup": "/",
    "Identity.executable": None, "Identity.cgroups": b"", "Identity.executable_file": (), "Facts.program_names": (),
    "Target.job_signs": (), "Facts.checkpointing": "",
}  # fmt: skip
"""What is left where the process and its user have written nothing."""


def test_every_fact_has_its_writer() -> None:
    """A field that a decision could rest on stands in the table, once, with who can write it."""
    there = {
        f"{of.__name__}.{field.name}"
        for of in (Target, Facts, Identity, Observation, RemedyRequest)
        for field in fields(of)
    }
    named = [fact.field for fact in FACTS]
    assert set(named) == there
    assert len(named) == len(set(named))
    assert BLANK.keys() == written_by(FactWriter.TARGET)


def mostly(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """The usual value, now and then another: a world in which everything is odd permits nothing anyway."""
    return st.sampled_from([usual] * (9 * len(others)) + list(others))


def text(*words: str) -> st.SearchStrategy[str]:
    """One of these, or something else."""
    return st.sampled_from(words) | st.text(max_size=6)


ALLOWS = st.builds(
    AllowList,
    users=st.sampled_from([("alice",), ("alice", "bob"), (), ("bob",)]),
    units=st.sampled_from([(), (), ("a.service",), ("user@1000.service/a.service",), ("a.service", "")]),
    containers=st.sampled_from([(), (), (ID,), (ID[:12],), ("web",), (OTHER,)]),
    unnamed_containers=st.booleans(),
    gpus=mostly((), ("0",), ("1",)),
    min_age=mostly(0.0, 60.0, 2e6),
    min_memory=mostly(0, GIB, 90 * GIB),
)
POLICIES = st.builds(
    Policy,
    allow=ALLOWS,
    never=mostly((), ("py*",), ("program",)),
    evidence=st.sampled_from([("allocator", "strict"), ("strict",), ("balanced", "sensitive")]),
    mps_clients=st.booleans(),
    restored_processes=st.booleans(),
    supervisors=st.sampled_from([(), ("a.service",), ("sshd.service",), ("user@1000.service/a.service",)]),
)
STEPS = st.sampled_from(
    [
        RemedyStep(StepKind.NOTIFY, 1.0),
        RemedyStep(StepKind.RELEASE_CACHE, 1.0),
        RemedyStep(StepKind.KILL, 1.0),
        RemedyStep(StepKind.RESTART_UNIT, 1.0),
        RemedyStep(StepKind.EXEC, 1.0, command=("/bin/x", "{container_id}")),
        RemedyStep(StepKind.EXEC, 1.0, command=("/bin/x", "{slurm_job}")),
        RemedyStep(StepKind.EXEC, 1.0, command=("/bin/x",)),
    ]
)
ORDERS = st.builds(
    RemedyRequest,
    alert=st.sampled_from(["a1", ""]),
    alertname=mostly("GpuMemoryHigh", "GpuProcessMemoryLeak"),
    labels=mostly({}, {"evidence": "strict"}, {"evidence": "balanced"}),
    forced=mostly(False, True),
    victim=mostly("", "largest", "leaking"),
)
SCOPES = st.sampled_from(["process", "container", "job"])
OF_THE_KERNEL = st.fixed_dictionaries({
    "user": mostly("alice", "bob", "1000"),
    "uids": mostly((1000,) * 4, (1000, 0, 0, 0), (0,) * 4, ()),
    "root_user_namespace": mostly(True, False, None),
    "own_root": mostly(False, True, None),
    "namespace_pids": mostly((100,), (100, 7), (100, 1), ()),
    "users_container": st.booleans(),
    "ties": mostly(
        Ties(), Ties(unseen="hidden"), Ties((TiedProcess(7, 70, ("sleep",), "bob", belongs=False),)),
        Ties(units=frozenset({"a.service"})),
    ),
    "parent_pid": mostly(1, 7),
    "state": mostly("S", "D", "Z"),
    "kernel_thread": mostly(False, True),
    "restored": mostly("", "CRIU (pid 7) has restored it from a checkpoint"),
    "proven": st.frozensets(st.sampled_from((*NAMES, "place"))),
    "kinds": mostly("C", "CM"),
    "evidence": mostly("strict", "", "balanced"),
    "driver_confirms": st.booleans(),
    "container_name": st.sampled_from(["", "web"]),
    "trusted": mostly(True, False),
    "host": mostly(True, False),
})  # fmt: skip
WRITTEN = st.fixed_dictionaries({
    "Target.name": mostly("program", "python3", "sshd", "gpuagent"),
    "Target.command": text("python serve.py", ""),
    "Target.cgroup": text("/a", ""),
    "Target.unit": st.sampled_from(["a.service", "", "", "sshd.service", "user@1000.service/a.service"]),
    "Target.container_id": st.sampled_from([ID, "", "", OTHER, f"unproven/{ID}"]),
    "Target.container_runtime": text("docker", ""),
    "Target.slurm_job": st.sampled_from(["7", "", "unproven/7"]),
    "Facts.program_names": mostly((), None, ("python3", "/opt/sshd"), ("serve.py",)),
    "Facts.checkpointing": mostly("", "criu (pid 7) checkpoints or restores it at this moment"),
    "Facts.oom_score_adjust": mostly(0, None, 1000, -1000),
    "Facts.ignored_signals": st.integers(0, 2**20),
    "Facts.caught_signals": st.integers(0, 2**20),
    "Identity.name": mostly("program", "python3", "sshd"),
    "Identity.command_digest": text("d", ""),
    "Identity.cgroup": text("/a", ""),
    "Identity.executable": mostly(None, "/usr/bin/python3", "/usr/sbin/sshd"),
    "Identity.cgroups": st.binary(max_size=3), "Identity.executable_file": mostly((), (1, 2)),
})  # fmt: skip


def world(kernel: dict[str, Any], written: dict[str, Any]) -> tuple[Observation, Facts]:
    """A process with facts of the kernel, and with what it has written about itself.

    A name that is proven is root's: only where it is not can the process have chosen it.
    """
    proven = kernel["proven"]
    mine = {**BLANK, **written}
    mine |= {field: of_root for name, (field, of_root) in OF_ROOT.items() if name in proven}
    of = {name: {k.split(".")[1]: v for k, v in mine.items() if k.startswith(name)} for name in ("Target", "Facts")}
    identity = {k.split(".")[1]: v for k, v in mine.items() if k.startswith("Identity")}
    made = replace(
        target(100, user=kernel["user"]),
        kinds=kernel["kinds"], evidence=kernel["evidence"], driver_confirms=kernel["driver_confirms"],
        container_name=kernel["container_name"] if "container" in proven else "", proven_names=proven,
        parent_pid=kernel.get("parent_pid", 1), **of["Target"],
    )  # fmt: skip
    facts = Facts(
        identity=Identity(made.id, made.uid, proven_names=proven, **identity),
        state=kernel["state"], threads=1, restored=kernel.get("restored", ""), uids=kernel["uids"],
        kernel_thread=kernel["kernel_thread"],
        root_user_namespace=kernel["root_user_namespace"], own_root=kernel["own_root"], user=made.user,
        namespace_pids=kernel["namespace_pids"], users_container=kernel.get("users_container", False),
        ties=kernel["ties"], **of["Facts"],
    )  # fmt: skip
    observation = Observation(
        NOW,
        Condition.HOLDS,
        target=made,
        target_listed=True,
        trusted=kernel["trusted"],
        host_pid_namespace=kernel["host"],
    )
    return observation, facts


def reasons(
    policy: Policy, step: RemedyStep, order: RemedyRequest, scope: str, seen: tuple[Observation, Facts]
) -> list[str]:
    """Why not."""
    return list(policy.refusals(step, order, *seen, NOW, frozenset({1, 2}), scope))


@pytest.mark.slow
@given(POLICIES, STEPS, ORDERS, SCOPES, OF_THE_KERNEL, WRITTEN)
@settings(max_examples=500)
def test_what_the_process_writes_causes_no_act(
    policy: Policy, step: RemedyStep, order: RemedyRequest, scope: str, kernel: dict[str, Any], written: dict[str, Any]
) -> None:
    """Whatever it writes about itself: an act would have come of the others' facts alone as well."""
    if not reasons(policy, step, order, scope, world(kernel, written)):
        assert not reasons(policy, step, order, scope, world(kernel, {}))


@pytest.mark.slow
@given(POLICIES, STEPS, ORDERS, SCOPES, OF_THE_KERNEL, WRITTEN)
@settings(max_examples=500)
def test_what_the_process_writes_passes_no_act_on(
    policy: Policy, step: RemedyStep, order: RemedyRequest, scope: str, kernel: dict[str, Any], written: dict[str, Any]
) -> None:
    """A process that hides is not the cause of an act on its neighbor: the choice passes on by root's words alone."""

    def passes_on(found: list[str]) -> bool:
        return bool(found) and all(isinstance(reason, NotAllowListed) for reason in found)

    if passes_on(reasons(policy, step, order, scope, world(kernel, written))):
        assert passes_on(reasons(policy, step, order, scope, world(kernel, {})))


@pytest.mark.slow
@given(POLICIES, ORDERS, SCOPES, OF_THE_KERNEL, WRITTEN)
@settings(max_examples=300)
def test_an_app_alone_accuses_nobody(
    policy: Policy, order: RemedyRequest, scope: str, kernel: dict[str, Any], written: dict[str, Any]
) -> None:
    """LEAK: the allocator's evidence is the app's own word: without the driver's figures beside it nothing is done."""
    order = replace(order, labels={"evidence": "allocator"}, victim="")
    kernel = {**kernel, "driver_confirms": False}
    assert reasons(policy, RemedyStep(StepKind.KILL, 1.0), order, scope, world(kernel, written))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_lost_ends_the_act(name: str) -> None:
    """A fact that is missing is missing: an id that is not proven any more permits nothing."""
    allow = (
        AllowList(units=("a.service",))
        if name == "unit"
        else AllowList(containers=(ID,))
        if name == "container"
        else AllowList()
    )
    step = (
        RemedyStep(StepKind.EXEC, 1.0, command=("/bin/x", "{slurm_job}"))
        if name == "job"
        else RemedyStep(StepKind.RELEASE_CACHE, 1.0)
    )
    order = RemedyRequest(alert="a1", alertname="GpuMemoryHigh", forced=name == "job")
    kernel: dict[str, Any] = {
        "user": "alice", "uids": (1000,) * 4, "root_user_namespace": True, "own_root": False,
        "namespace_pids": (100,), "ties": Ties(),
        "state": "S", "kernel_thread": False, "proven": frozenset({name}), "kinds": "C", "evidence": "",
        "driver_confirms": False, "container_name": "", "trusted": True, "host": True,
    }  # fmt: skip
    scope = "job" if name == "job" else "process"
    assert not reasons(Policy(allow), step, order, scope, world(kernel, {}))
    claims = {"Target.unit": "a.service", "Target.container_id": ID, "Target.slurm_job": "7"}
    kernel["proven"] = frozenset()
    assert reasons(Policy(allow), step, order, scope, world(kernel, claims))


@pytest.mark.parametrize("now", ["bob", "1000", ""])
def test_a_user_who_has_another_name_now_is_refused(now: str) -> None:
    """The name that permits is the one of this moment: a uid that went over to another user permits nothing."""
    kernel: dict[str, Any] = {
        "user": "alice", "uids": (1000,) * 4, "root_user_namespace": True, "own_root": False,
        "namespace_pids": (100,), "ties": Ties(), "state": "S",
        "kernel_thread": False, "proven": frozenset(), "kinds": "C", "evidence": "", "driver_confirms": False,
        "container_name": "", "trusted": True, "host": True,
    }  # fmt: skip
    policy, order = Policy(AllowList(users=("alice", "bob"))), RemedyRequest(alert="a1", alertname="GpuMemoryHigh")
    observation, facts = world(kernel, {})
    assert not reasons(policy, RemedyStep(StepKind.KILL, 1.0), order, "process", (observation, facts))
    refused = reasons(policy, RemedyStep(StepKind.KILL, 1.0), order, "process", (observation, replace(facts, user=now)))
    assert len(refused) == 1
    assert "another name now" in refused[0]
