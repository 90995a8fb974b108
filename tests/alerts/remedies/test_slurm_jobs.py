"""By which id a program may end a Slurm job: that of one task, as Slurm itself tells it, or none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.execution.slurm_jobs import JobName, SlurmJobs, read_answer
from gpuagent_alerts.remedies.safeguards.refusals import advice_on
from tests.alerts.remedies.trees import ALICE, give, make_file, needs_root, tree
from tests.fakes.cgroups import unit_target

__all__ = ["tree"]

ANN = 7701
JOB = replace(unit_target(), slurm_job="17", proven_names=frozenset({"job"}), uid=ANN)
ARRAY = "17|17_4|7701|RUNNING\n18|17_1|7701|RUNNING\n"


@pytest.mark.parametrize(
    ("output", "job", "expected"),
    [
        ("17|17|7701|RUNNING\n", "17", "17"),
        # Slurm 22.05: the task that is started last keeps the number of the array.
        (ARRAY, "17", "17_4"),
        (ARRAY, "18", "17_1"),
        ("17|17_4|7701|RUNNING\n19|17_[5-10]|7701|PENDING\n", "17", "17_4"),
        ("17|17_[5-10]|7701|PENDING\n", "17", "does not run: it is PENDING"),
        ("17|17_[5-10]|7701|RUNNING\n", "17", "squeue calls it '17_[5-10]'"),
        ("17|17+0|7701|RUNNING\n18|17+1|7701|RUNNING\n", "17", "a heterogeneous job (17+0)"),
        ("18|17+1|7701|RUNNING\n", "18", "a heterogeneous job (17+1)"),
        ("17|17|7702|RUNNING\n", "17", "one of uid 7702, and not of uid 7701"),
        ("17|17|7701|COMPLETING\n", "17", "does not run: it is COMPLETING"),
        ("", "17", "squeue knows 0 of them"),
        ("18|17_1|7701|RUNNING\n", "17", "squeue knows 0 of them"),
        ("17|17_1|7701|RUNNING\n17|17_2|7701|RUNNING\n", "17", "squeue knows 2 of them"),
        ("17|99|7701|RUNNING\n", "17", "squeue calls it '99'"),
        ("17|17|7701|RUNNING|x\n", "17", "does not tell"),
    ],
)
def test_the_id_of_one_task(output: str, job: str, expected: str) -> None:
    """KILL-03: `scancel` gets an id by which this job ends and no other; where there is none, the way out is told."""
    name = read_answer(output, job, ANN)
    assert expected in (name.id or name.refusal)
    assert (name.id == expected) is not bool(name.refusal)
    if name.refusal:
        assert "scope: job" in " ".join(advice_on([name.refusal], JOB, "/etc/gpuagent.yaml"))


def ask(folder: Path, *, path: str = "/nonexistent", seconds: float = 20.0) -> JobName:
    """Ask about the job, for a step whose program lies in this folder."""
    return asyncio.run(SlurmJobs(search_path=path, seconds=seconds).name(JOB, (f"{folder}/scancel", "{slurm_job}")))


@needs_root
def test_which_squeue_is_asked(tree: Path) -> None:
    """KILL-03: squeue lies beside the program of the step, else in PATH, and nobody else's is run or believed."""
    program = make_file(tree / "squeue", "#!/bin/sh\nprintf '17|17_4|7701|RUNNING\\n'\n", 0o755)
    assert ask(tree) == JobName("17_4")
    assert ask(tree / "none", path=str(tree)) == JobName("17_4")
    assert "there is no squeue in" in ask(tree / "none").refusal
    program.write_text("#!/bin/sh\necho Unable to contact slurm controller >&2\nexit 1\n")
    assert "status 1: Unable to contact slurm controller" in ask(tree).refusal
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    assert "did not answer within 0.2 s" in ask(tree, seconds=0.2).refusal
    give(program, ALICE)
    assert f"squeue is not run: {program} belongs to uid {ALICE}" in ask(tree).refusal
