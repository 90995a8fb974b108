"""Refusals for the sake of GPUs whose processes the agent has never seen: who ends along may be on one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuagent_alerts.remedies.observation import Observation, RemedyRequest
from gpuagent_alerts.remedies.safeguards.refusals import TemporaryRefusal
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind, groups_of
from gpuagent_alerts.remedies.target import Facts


def on_unlisted_gpus(
    step: RemedyStep,
    scope: str,
    request: RemedyRequest,
    observation: Observation,
    facts: Facts,
    allowed_gpus: Sequence[str],
) -> Iterator[str]:
    """Yield why a step that may end processes has to wait until such a GPU can be read.

    What reaches beyond the one process is withheld: the others may be clients of MPS there, or work. The one process
    alone was judged by what was measured of it where it is listed: a client of MPS is one on each of its GPUs, and
    nobody counts as idle while a GPU is not read. It may be on a GPU that `allowed_gpus` (indices or UUIDs, empty for
    all) does not name, so that it is withheld where they are given. A person lifts this with --force.
    """
    if request.by_hand and request.forced:
        return
    reach = _reach(step, scope, facts)
    for gpu in observation.unlisted_gpus:
        named = gpu.gpu_uuid in allowed_gpus or (observation.gpu_index_certain and str(gpu.gpu_index) in allowed_gpus)
        if reach:
            yield TemporaryRefusal(
                f"{gpu.text}: nobody knows whose processes are on it, and {reach}; this waits until it can be read,"
                " or a person says gpuagent kill --force"
            )
        elif allowed_gpus and not named:
            yield TemporaryRefusal(
                f"{gpu.text}: the process may be on it too, and remedies.allow.gpus does not name it: add it there if"
                " it may, or have it repaired"
            )


def _reach(step: RemedyStep, scope: str, facts: Facts) -> str:
    """Return what ends others than the one process, in words; "" where nothing does."""
    if step.kind is StepKind.RESTART_UNIT or groups_of(step):
        return f"{step} ends more than the one process"
    if scope != "process":
        return f"scope: {scope} means more than the one process"
    return "others end with this process" if facts.ties.processes else ""
