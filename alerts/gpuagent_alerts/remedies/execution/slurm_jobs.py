"""Ask Slurm by which id `scancel` means the job of a process, and nothing beside it.

The cgroup of a process has the raw id of its job. A task of a job array has one too, and it is no id for `scancel`: the
task that Slurm starts last keeps the number of the array, by which all tasks end, on other nodes as well; those of the
others are unknown to some versions (22.05). A task is meant by `ARRAY_TASK`. The leader of a heterogeneous job has the
number by which all of its components end.

Only Slurm can tell that. `squeue` is asked for numbers alone, as names and comments are the user's. The environment of
a process (SLURM_ARRAY_JOB_ID) is the user's own word.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuagent.core.background import in_daemon_thread
from gpuagent_alerts.programs.run import CONFINED, ENVIRONMENT, SEARCH_PATH, WORKING_DIRECTORY, end_program
from gpuagent_alerts.remedies.files.programs import ProgramCheck
from gpuagent_alerts.remedies.target import Target

_ASK_SECONDS = 5.0
_FIND_SECONDS = 10.0
_OUTPUT = 256 * 1024
_SHOWN = 200
_SQUEUE = "squeue"
_FORMAT = "%A|%i|%U|%T"
"""Raw id, id for people and `scancel`, uid and state: squeue(1)."""
_ONE_JOB = re.compile(r"\d+(?:_\d+)?")
_HETEROGENEOUS = re.compile(r"\d+\+\d+")
_RUNS = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
"""States in which a job has processes that are not ended by Slurm already."""


class JobName(NamedTuple):
    """Id of one job for `scancel`, or why there is none."""

    id: str = ""
    refusal: str = ""


class SlurmJobs:
    """Runs `squeue` without a shell and without any of the agent's rights."""

    def __init__(
        self,
        *,
        search_path: str = SEARCH_PATH,
        program_check: Callable[[Sequence[str]], str] | None = None,
        seconds: float = _ASK_SECONDS,
    ) -> None:
        """`squeue` is taken from beside the program of the step, else from `search_path`.

        `program_check` returns why it must not be run, "" if it may be: only root and the agent's user may change it.
        """
        self._search_path = search_path
        self._program_check = program_check or ProgramCheck()
        self._seconds = seconds

    async def name(self, target: Target, command: Sequence[str]) -> JobName:
        """Return by which id a program like `scancel` means the target's job alone. `command` is that of the step."""
        job = target.proven_slurm_job
        if not job.isdecimal():
            return JobName(refusal=f"job {target.slurm_job} is not proven: it has no number")
        try:
            async with asyncio.timeout(_FIND_SECONDS):
                program, fault = await in_daemon_thread(lambda: self._find(command), _SQUEUE)
        except TimeoutError:
            program, fault = "", f"the file system of squeue does not answer within {_FIND_SECONDS:g} s"
        output, fault = ("", fault) if fault else await self._ask(program, job)
        if fault:
            return JobName(
                refusal=f"it cannot be told whether job {job} is a task of a job array, of which scancel {job} may end"
                f" every task: {fault}"
            )
        return read_answer(output, job, target.uid)

    def _find(self, command: Sequence[str]) -> tuple[str, str]:
        """Return the path of squeue, and why it is not run."""
        beside = os.path.dirname(command[0]) if command else ""  # noqa: PTH120
        path = f"{beside}:{self._search_path}" if beside.startswith("/") else self._search_path
        found = shutil.which(_SQUEUE, path=path)
        if found is None:
            return "", f"there is no squeue in {path}"
        refusal = self._program_check((found,))
        return found, f"squeue is not run: {refusal}" if refusal else ""

    async def _ask(self, program: str, job: str) -> tuple[str, str]:
        """Return what squeue printed of a job, and why that is of no use."""
        question = ("--noheader", "--states=all", "--array", f"--jobs={job}", f"--format={_FORMAT}")
        try:
            process = await asyncio.create_subprocess_exec(
                *CONFINED, program, *question, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env=ENVIRONMENT, cwd=WORKING_DIRECTORY,
            )  # fmt: skip
        except OSError as error:
            return "", f"{program}: {error.strerror}"
        try:
            async with asyncio.timeout(self._seconds):
                output, said = await process.communicate()
        except TimeoutError:
            await end_program(process)
            return "", f"squeue did not answer within {self._seconds:g} s"
        if process.returncode:
            text = " ".join(said.decode("utf-8", "replace").split())[:_SHOWN]
            return "", f"squeue failed with status {process.returncode}{f': {text}' if text else ''}"
        if len(output) > _OUTPUT:
            return "", "the answer of squeue is too long"
        return output.decode("utf-8", "replace"), ""


def read_answer(output: str, job: str, uid: int) -> JobName:
    """Return the id of the job with this raw id, where Slurm says that it runs and is of this user."""
    rows = [line.strip().split("|") for line in output.splitlines() if line.strip()]
    mine = [row for row in rows if row[0] == job]
    if len(mine) != 1 or len(mine[0]) != len(_FORMAT.split("|")):
        return JobName(refusal=f"Slurm does not tell which job has the id {job}: squeue knows {len(mine)} of them")
    _, name, owner, state = mine[0]
    if owner != str(uid):
        return JobName(refusal=f"by Slurm's word job {job} is one of uid {owner}, and not of uid {uid}")
    if state not in _RUNS:
        return JobName(refusal=f"by Slurm's word job {job} does not run: it is {state}")
    if _HETEROGENEOUS.fullmatch(name):
        return JobName(
            refusal=f"job {job} is a component of a heterogeneous job ({name}), of which other components may end with"
            " it"
        )
    if not _ONE_JOB.fullmatch(name) or ("_" not in name and name != job):
        return JobName(refusal=f"Slurm does not tell which job has the id {job}: squeue calls it {name!r}")
    return JobName(name)
