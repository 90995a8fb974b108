"""What a snapshot tells of who belongs together."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.core.growth import Evidence
from gpuagent.core.snapshot import GpuState, ProcessState
from gpuagent_alerts.messages.snapshot_inputs import SnapshotFacts, program_of_pod
from tests.agent.service.alerting.stage import grown, leaking
from tests.fakes.readings import absent_gpu, gpu, process, snapshot

UUID = "GPU-00000000"


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("api-7d9f8c6b5d-x2kqz", "api"),
        ("api-server-x2kqz", "api-server"),
        ("trainer-0", "trainer-0"),
        ("by-hand", "by-hand"),
        ("x2kqz", "x2kqz"),
    ],
)
def test_a_pod_is_of_a_program(name: str, program: str) -> None:
    """What Kubernetes appends is cut off, and nothing else."""
    assert program_of_pod(name) == program


def groups(**info: Any) -> tuple[str, ...]:
    """Return what a process shares with others."""
    found = SnapshotFacts(snapshot([gpu(0)], [process(7, **info)])).program(UUID, 7)
    assert found is not None
    return found.groups


def test_a_pod_that_only_root_can_have_named_survives_its_container() -> None:
    """A new container id of the same pod's program is the same; a name that anybody could choose is not believed."""
    pod = {"namespace": "prod", "pod": "api-7d9f8c6b5d-x2kqz"}
    first = groups(container_id="c1", proven_names=frozenset({"pod"}), **pod)
    second = groups(container_id="c2", proven_names=frozenset({"pod"}), **pod)
    unproven = groups(container_id="c2", **pod)

    assert set(first) & set(second) == {"pod:prod/api:1000"}
    assert not set(first) & set(unproven)


def test_containers_of_one_pod_belong_together() -> None:
    """The kernel's word for the pod is enough: no name has to be proven, and another user's are none of them."""
    first = groups(container_id="c1", pod_uid="0123abcd")
    assert set(first) & set(groups(container_id="c2", pod_uid="0123abcd")) == {"pod-uid:0123abcd:1000"}
    assert not set(first) & set(groups(container_id="c2", pod_uid="0123abcd", uid=7))
    assert not set(first) & set(groups(container_id="c2", pod_uid="4567ef01"))


def test_instances_of_a_template_belong_together() -> None:
    """They run one program for one user; units of different templates, programs or users have nothing in common."""

    def of(unit: str, **changes: object) -> set[str]:
        return set(groups(unit=unit, process_group=0, **changes))

    first = of("whisper@0.service")
    assert first & of("whisper@1.service") == {"template:whisper@.service:1000:python3"}
    for other in (
        of("other@1.service"),
        of("whisper.service"),
        of("whisper@1.service", uid=7),
        of("whisper@1.service", name="sh"),
    ):
        assert not first & other
    assert not of("user@1000.service") & of("user@1001.service")


def test_a_session_is_no_program() -> None:
    """Two notebooks of one user in a login session have nothing in common; six ranks of one launcher do."""
    session = {"unit": "session-3.scope", "process_group": 0}
    assert not set(groups(**session, parent_pid=10)) & set(groups(**session, parent_pid=20))
    assert groups(**session, parent_pid=10) == groups(**session, parent_pid=10) != ()


def test_who_grows_most_who_is_dead_and_who_is_lost() -> None:
    """The figures are those of the snapshot."""
    seen = snapshot(
        [gpu(0), absent_gpu(1, GpuState.LOST, "lost")], [process(7), process(8), process(9, state=ProcessState.DEAD)]
    )
    facts = SnapshotFacts(grown(seen, 8, leaking(Evidence.BALANCED)))
    grower = facts.grower(UUID, leaking=True)
    assert grower is not None
    assert grower.pid == 8
    assert SnapshotFacts(seen).grower(UUID, leaking=False) is None
    assert ([one.pid for one in facts.dead_processes(UUID)], facts.lost_gpus(), facts.is_blind()) == (
        [9],
        [{"gpu": "1", "uuid": "GPU-00000001"}],
        False,
    )
