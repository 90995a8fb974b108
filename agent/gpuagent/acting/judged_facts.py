"""What is read of a process only where somebody judges it: all of its threads, and its script."""

from __future__ import annotations

from dataclasses import replace

from gpuagent.acting.never_entries import NeverLook
from gpuagent.procfs.credentials import read_uids, thread_elsewhere
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.programs import read_program
from gpuagent_alerts.remedies.target import Facts


def with_judged(facts: Facts, files: ProcFiles, pid: int, never: NeverLook) -> Facts:
    """Return the facts with users and places of all threads, the program's names, and which entry of `never` means it.

    Raises FileNotFoundError or ProcessLookupError (gone).
    """
    names: tuple[str, ...] | None
    never_listed = ""
    try:
        program = read_program(files, pid)
        names, never_listed = program.names, never.reason(files, pid, program)
    except (FileNotFoundError, ProcessLookupError):
        raise
    except (OSError, ValueError):
        names = None
    return replace(
        facts,
        uids=read_uids(files, pid, facts.uids) if facts.uids else (),
        thread_elsewhere=thread_elsewhere(files, pid, facts.identity.cgroups) if facts.identity.cgroups else "",
        program_names=names,
        never_listed=never_listed,
    )
