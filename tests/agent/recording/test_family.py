"""Which processes are recorded, on real ones."""

from __future__ import annotations

import os
import sys

from gpuagent.procfs.files import RealProc
from gpuagent.recording.recorder import Family
from tests.agent.procfs.children import answer, child, end_without_reaping, python, running, say
from tests.fakes.proc import FakeProc, stat_text

GRANDCHILD = """
import subprocess, sys
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as grandchild:
    print(grandchild.pid, flush=True)
    input()
"""
ORPHAN = """
import os, sys
from gpuagent.procfs.files import RealProc
from gpuagent.recording.recorder import Family, adopt_orphans

adopt_orphans()
read, write = os.pipe()
child = os.fork()
if not child:
    if not os.fork():
        os.close(write)
        os.read(read, 1)  # lives until its grandparent ends
        os._exit(0)
    os._exit(0)
os.close(read)
os.waitpid(child, 0)
with open(f"/proc/self/task/{os.getpid()}/children") as children:
    orphan = int(children.read())
family = Family(RealProc(), {child, os.getpid()})
print(family.has(orphan), family.has(os.getppid()), flush=True)
os.close(write)
"""


def test_children_and_their_children_belong_to_it() -> None:
    """A launcher's workers are what holds the memory; the process's own parent and neighbors are somebody else's."""
    with child(*python(GRANDCHILD)) as parent, running("cat") as neighbor:
        grandchild = int(answer(parent))
        family = Family(RealProc(), {parent.pid})

        assert family.has(parent.pid)
        assert family.has(grandchild)
        assert not family.has(neighbor.pid)
        assert not family.has(os.getpid())
        say(parent, b"\n")


def test_who_was_seen_stays_when_its_parent_ends() -> None:
    """A worker outlives its launcher, and its memory is still of this recording."""
    program = "import os, subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    with child(*python(program)) as parent:
        worker = int(answer(parent))
        family = Family(RealProc(), {parent.pid})
        assert family.has(worker)

        say(parent, b"\n")
        parent.wait()

        assert family.has(worker)
        os.kill(worker, 9)


def test_an_orphan_is_found_at_its_adoptive_parent() -> None:
    """A server that makes itself a daemon before it takes memory: it becomes a child of whoever records."""
    with child(sys.executable, "-c", ORPHAN) as recorder:
        assert answer(recorder) == b"True False\n"


def test_a_root_lives_until_it_has_ended() -> None:
    """A zombie has ended; one that /proc has never known is nobody's to judge."""
    with running("cat") as process:
        family = Family(RealProc(), {process.pid, 2**31 - 1})

        assert family.lives(process.pid) is True
        end_without_reaping(process)
        assert family.lives(process.pid) is False
        assert family.lives(2**31 - 1) is None


def test_a_pid_that_is_used_again_is_somebody_else() -> None:
    """LEAK-03: the same number with another start time does not belong to it, nor do its children."""
    proc = FakeProc()
    proc.put(100, stat_text(100, start_ticks=5))
    proc.put(101, stat_text(101, parent_pid=100, start_ticks=6))
    family = Family(proc, {100})
    assert (family.has(100), family.has(101), family.lives(100)) == (True, True, True)

    proc.put(100, stat_text(100, start_ticks=900))
    proc.put(102, stat_text(102, parent_pid=100, start_ticks=901))
    proc.put(103, stat_text(103, parent_pid=101, start_ticks=902))

    assert (family.has(100), family.has(102), family.lives(100)) == (False, False, False)
    assert (family.has(101), family.has(103)) == (True, True)


def test_a_simulated_process_is_known_by_its_number() -> None:
    """Its pid is none that a kernel gives out, so /proc has no word in it."""
    assert Family(RealProc(), {4_194_400}).has(4_194_400)
