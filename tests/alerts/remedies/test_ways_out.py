"""The way out that a refusal names is one: what it says is done, and the refusal is gone."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent_alerts.remedies.observation import Condition, Observation, RemedyRequest, UnlistedGpu
from gpuagent_alerts.remedies.safeguards import policy as policy_module
from gpuagent_alerts.remedies.safeguards import step_prerequisites
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.refusals import advice_on
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Facts, Identity, Target, TiedProcess, Ties
from tests.alerts.remedies.test_advice import words
from tests.alerts.remedies.world import GIB, KILL, RESTART, target

FILE = "/etc/gpuagent/gpuagent.yaml"
NOW = 1e6
ID = "a1" * 32
LIMIT = RemedyStep(StepKind.LIMIT, 1.0, headroom_bytes=GIB)
RESET = RemedyStep(StepKind.RESET, 1.0)
HAND = RemedyRequest(alertname="", asked_by="root (uid 0)")
TIED = (TiedProcess(7, 70, ("sleep",), "bob", belongs=False),)

IN_UNIT = Ties((*TIED, TiedProcess(8, 80, ("master",), "svc", belongs=False)), units=frozenset({"a.service"}))
UNLISTED = (UnlistedGpu(1, "GPU-1", "GPU 1 has not been readable since the agent started (refused)"),)


@dataclass(frozen=True)
class Case:
    """A request by hand, and what is known of its process."""

    reason: str
    """Part of the refusal."""
    allow: dict[str, Any] = field(default_factory=lambda: {"users": ("svc",)})
    target: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    observation: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    step: RemedyStep = KILL
    proven: frozenset[str] = frozenset({"unit", "container", "job"})
    scope: str = "process"

    def reasons(self) -> list[str]:
        """Why not."""
        of: Target = target(100, **{"proven_names": self.proven, **self.target})
        identity = Identity(of.id, of.uid, of.name, "d", of.cgroup, proven_names=self.proven)
        known: dict[str, Any] = {
            "state": "S", "threads": 1, "user": of.user, "uids": (of.uid,) * 4, "root_user_namespace": True,
            "own_root": False, "namespace_pids": (100,),
            **self.facts,
        }  # fmt: skip
        observation = replace(Observation(NOW, Condition.HOLDS, target=of, target_listed=True), **self.observation)
        request = replace(HAND, **self.request)
        policy = replace(Policy(AllowList(**self.allow)), **self.policy)
        facts = Facts(identity, **known)
        return list(policy.refusals(self.step, request, observation, facts, NOW, frozenset({2}), self.scope))

    def matching(self) -> list[str]:
        """The refusals that this is about."""
        return [each for each in self.reasons() if self.reason in each]

    def allowing(self, **keys: Any) -> Case:
        """With more on the allow list."""
        return replace(self, allow=self.allow | keys)


def forced(case: Case) -> Case:
    """As the command does it: whom it ends too is shown, and --force said."""
    shown = frozenset(each.key for each in case.facts.get("ties", Ties()).processes)
    return replace(case, request=case.request | {"forced": True, "shown": shown})


def listed(key: str) -> Callable[[Case], Case]:
    """The process is added to a list of the allow list."""
    values: dict[str, Any] = {
        "users": ("svc", "alice"), "units": ("b.service", "a.service"), "containers": ("web", ID),
        "gpus": ("1", "GPU-0"),
    }  # fmt: skip
    return lambda case: case.allowing(**{key: values[key]})


def lowered(key: str) -> Callable[[Case], Case]:
    """A bound of the allow list is lowered."""
    return lambda case: case.allowing(**{key: 0})


OPTIONS: tuple[tuple[str, Callable[[re.Match[str]], Callable[[Case], Case]]], ...] = (
    (r"Say --force", lambda _: forced),
    (r"add it to remedies\.allow\.(\w+) in", lambda found: listed(found[1])),
    (r"name its user in remedies\.allow\.(users) in", lambda found: listed(found[1])),
    (r"name its container in remedies\.allow\.(containers) in", lambda found: listed(found[1])),
    (r"lower remedies\.allow\.(\w+) in", lambda found: lowered(found[1])),
    (r"Set remedies\.mps_clients: true", lambda _: lambda case: replace(case, policy={"mps_clients": True})),
    (
        r"set remedies\.restored_processes: true",
        lambda _: lambda case: replace(case, policy={"restored_processes": True}),
    ),
    (r"Add it to remedies\.evidence", lambda _: lambda case: replace(case, policy={"evidence": ("balanced",)})),
    (r"for this process alone, --force", lambda _: forced),
    (
        r"name (\S+) in remedies\.supervisors",
        lambda found: lambda case: replace(case, policy={"supervisors": (found[1],)}),
    ),
    (r"Say --restart-unit", lambda _: lambda case: replace(case, step=RESTART)),
    (r"Leave out --restart-unit", lambda _: lambda case: replace(case, step=KILL)),
    (r"ask for it by its pid", lambda _: lambda case: replace(case, request={})),
)
"""What a person types or writes, by the words of the advice."""

LIFTED = (
    Case("remedies.allow names no users", allow={"gpus": ("0",)}),
    Case("is not in remedies.allow.users", allow={"users": ("bob",)}),
    Case("is not in remedies.allow.units", allow={"units": ("b.service",)}, target={"unit": "a.service"}, step=RESTART),
    Case("is not in remedies.allow.containers", allow={"containers": ("b2" * 32,)}, target={"container_id": ID}),
    Case("remedies.allow.containers names none", target={"container_id": ID}),
    Case("that is not known by name", facts={"own_root": True}),
    Case("cannot be told whether it runs in a container", facts={"own_root": None}),
    Case("is not in remedies.allow.gpus", allow={"users": ("svc",), "gpus": ("1",)}),
    Case("remedies.allow.min_age", allow={"users": ("svc",), "min_age": 2e6}),
    Case("remedies.allow.min_memory", allow={"users": ("svc",), "min_memory": 90 * GIB}),
    Case("the rights of more than one user", facts={"uids": (1000, 0, 0, 0)}),
    Case("have the rights of one user", facts={"uids": ()}),
    Case("put it into a.service", allow={"units": ("a.service",)}, target={"unit": "a.service"},
         proven=frozenset(), step=RemedyStep(StepKind.RELEASE_CACHE, 1.0)),
    Case("is not proven: its cgroup", allow={"containers": (ID,)},
         target={"container_id": ID}, proven=frozenset()),
    Case("not been shown to hold this memory", target={"holder_proven": False}),
    Case("it is a client of MPS", target={"kinds": "CM"}),
    Case("remedies.restored_processes", facts={"restored": "CRIU (pid 7) has restored it from a checkpoint"}),
    Case("where it is too", observation={"everybody": (target(100, key=MemoryKey("GPU-1", 100), kinds="M"),)}),
    Case("ends with it: it is a client of MPS", facts={"ties": Ties((replace(TIED[0], belongs=True),))},
         observation={"everybody": (target(7, kinds="M"),)}),
    Case("ending it also ends", facts={"ties": Ties(TIED)}, allow={}),
    Case("nobody knows whose processes are on it, and restart_unit ends more", observation={"unlisted_gpus": UNLISTED},
         target={"unit": "a.service"}, allow={"units": ("a.service",)}, step=RESTART),
    Case("and scope: container means more", observation={"unlisted_gpus": UNLISTED}, scope="container"),
    Case("and others end with this process", observation={"unlisted_gpus": UNLISTED},
         facts={"ties": Ties((replace(TIED[0], belongs=True),))}),
    Case("the process may be on it too", observation={"unlisted_gpus": UNLISTED},
         allow={"users": ("svc",), "gpus": ("GPU-0",)}),
    Case("systemd supervises it", target={"unit": "a.service"}),
    Case("or stop all of a.service", target={"unit": "a.service", "parent_pid": 7}, facts={"ties": IN_UNIT}),
    Case("no systemd unit runs it", step=RESTART),
    Case("belongs to a user's own manager", target={"unit": "user@1000.service/a.service"}, step=RESTART),
    Case("its name is not known", allow={"containers": ("web",)}, target={"container_id": ID}),
    Case("needs remedies.allow.containers too", allow={"units": ("a.service",)},
         target={"unit": "a.service", "container_id": ID}, step=RESET),
    Case("and not reset", allow={"units": ("a.service",)}, target={"unit": "a.service"}, facts={"own_root": True},
         step=RESET),
    Case("it is no longer idle", request={"victim": "idle"}),
    Case("it has not been idle", request={"victim": "idle"}, target={"idle_seconds": 1.0}),
    Case("the evidence of the leak is", request={"labels": {"evidence": "balanced"}}),
    Case("do not confirm the leak", request={"labels": {"evidence": "allocator"}}, target={"driver_confirms": False}),
)  # fmt: skip
"""Those that an option or a key lifts."""

STANDING = (
    Case("is on the never-list", target={"name": "sshd"}),
    Case("the agent itself or one of its ancestors", target={"id": target(2).id}),
    Case("is a kernel thread", facts={"kernel_thread": True}),
    Case("oom_score_adj", facts={"oom_score_adjust": -1000}),
    Case("no longer on the GPU", observation={"target": None}),
    Case("is a zombie", facts={"state": "Z"}),
    Case("of version 1 (as by docker pause)", facts={"held_by": "/docker/1", "state": "D"}),
    Case("it is ending", facts={"ending": True}),
    Case("not in the host's pid namespace", observation={"host_pid_namespace": False}),
    Case("form than documented", observation={"trusted": False}),
    Case("cannot be told whom", facts={"ties": Ties(unseen="hidden")}),
    Case("ends with it", facts={"ties": Ties((TiedProcess(7, 70, ("sshd",), "svc", belongs=True),))}),
    Case("or hang up, more than", facts={"ties": Ties(TIED * 257)}),
    Case("it is not proven that root, and nobody else, put it into", target={"unit": "a.service"}, proven=frozenset(),
         step=RESTART),
    Case("on the never-list", target={"unit": "docker.service"}, step=RESTART),
    Case("it is on a MIG instance", target={"unit": "a.service", "key": MemoryKey("GPU-0", 100, 3)}, step=LIMIT),
    Case("the GPU shares the machine's memory", target={"unit": "a.service"}, observation={"unified_memory": True},
         step=LIMIT),
    Case("no unit, container or job of root's making", step=LIMIT),
    Case("is run by a user's own manager", target={"unit": "user@1000.service/a.service"}, step=LIMIT),
)  # fmt: skip
"""Those that no option of ours lifts: what is said is another's to do, or nothing."""
ELSEWHERE = (
    "has another name now", "a GPU of this node is missing", "may have made the cgroup of job",
    "and the process has none", "and others than root may have chosen",
    "is protected from the kernel's own killer", "is the agent itself", "its cgroup cannot be read",
    "uninterruptible sleep",
)  # fmt: skip
"""Of moments and of programs of the configuration: what a test of `advice.py` goes through by its words."""


def options_in(advice: str) -> list[Callable[[Case], Case]]:
    """Everything that the advice says to type or to write."""
    return [make(found) for pattern, make in OPTIONS if (found := re.search(pattern, advice))]


@pytest.mark.parametrize("case", LIFTED, ids=lambda case: case.reason)
def test_the_way_out_lifts_the_refusal(case: Case) -> None:
    """Each option and each key that is named, taken alone."""
    (reason,) = case.matching()
    (advice,) = advice_on([reason], target(unit=case.target.get("unit", "")), FILE)
    options = options_in(advice)
    assert options, advice
    for option in options:
        assert option(case).matching() == [], advice


def test_who_answers_for_a_unit() -> None:
    """KILL-03: --force lifts a bare signal where all in the unit were shown, none is spared, and it is not its main."""
    of = Case("", target={"unit": "a.service", "parent_pid": 7}, facts={"ties": IN_UNIT})
    assert forced(of).reasons() == []
    unseen = replace(forced(of), request={"forced": True, "shown": frozenset({(7, 70)})})
    assert ["ending it also ends" in each for each in unseen.reasons()] == [True]
    sshd = Ties((TiedProcess(8, 80, ("sshd",), "root", belongs=False),), units=IN_UNIT.units)
    assert any("never-list" in each for each in forced(replace(of, facts={"ties": sshd})).reasons())
    main = forced(replace(of, facts={"ties": Ties()})).reasons()
    assert [each.endswith("use restart_unit") for each in main] == [True]
    listed_unit = replace(forced(of), policy={"never": ("a",)})
    assert any("a.service is on the never-list" in each for each in listed_unit.reasons())
    rule = replace(forced(of), request={**forced(of).request, "alert": "a1", "alertname": "GpuMemoryHigh"})
    assert any("remedies.supervisors" in each for each in rule.reasons())


@pytest.mark.parametrize("gpus", [(), ("GPU-0", "GPU-1"), ("0", "1")])
def test_one_process_is_ended_beside_a_gpu_that_was_never_listed(gpus: tuple[str, ...]) -> None:
    """KILL-03: nothing else ends, and the list of GPUs leaves out none: what was measured of it is enough."""
    case = Case("", allow={"users": ("svc",), "gpus": gpus}, observation={"unlisted_gpus": UNLISTED})
    assert case.reasons() == []


@pytest.mark.parametrize("case", STANDING, ids=lambda case: case.reason)
def test_no_option_is_named_that_does_not_help(case: Case) -> None:
    """Where --force and the allow list lift nothing, nobody is sent to try them."""
    (reason,) = case.matching()
    assert forced(case).matching() == [reason]
    (advice,) = advice_on([reason], target(unit=case.target.get("unit", "")), FILE)
    assert options_in(advice) == [], advice


def test_every_refusal_of_the_policy_is_gone_through() -> None:
    """A new one has to be put among those that are lifted, or those that stand."""
    known = [each.reason for each in (*LIFTED, *STANDING)] + list(ELSEWHERE)
    found = [reason for case in (*LIFTED, *STANDING) for reason in case.reasons()]
    sources = [inspect.getsource(each) for each in (policy_module, step_prerequisites)]
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.Yield) and node.value is not None and (text := words(node.value)):
            pattern = re.escape(text).replace("x", ".+")
            assert any(part in text for part in known) or any(re.search(pattern, each) for each in found), text
