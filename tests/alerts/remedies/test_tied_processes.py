"""Who ends, is hung up, or is stopped for good when a process ends: with real ones, and shown by ending it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc, parse_stat
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses, list_pids
from gpuagent_alerts.remedies.facts.terminals import OpenFiles, pty_number
from gpuagent_alerts.remedies.facts.ties import TieFinder, read_ties
from gpuagent_alerts.remedies.target import Ties
from tests.alerts.remedies.processes import reader
from tests.alerts.remedies.tied import (
    ALICE,
    BEGINS_WORK,
    BOB,
    BY_A_THREAD,
    BY_DEVPTS,
    BY_ITSELF,
    LENDS_A_THREAD,
    SERVES_A_TERMINAL,
    STOPS_A_JOB,
    TRACES,
    ends,
    running,
    told,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
STAGED = "pty.openpty"
STOPPED_BY_NOW = """
def states():
    return [open('/proc/%d/task/%s/stat' % (job, each)).read().rpartition(') ')[2][0]
            for each in os.listdir('/proc/%d/task' % job)]
while 'T' not in states():
    os.sched_yield()
"""
JOB_OF_ONE_THREAD_LEFT = """
job = os.fork()
if not job:
    work()
os.read(told, 1)
while b'State:\\tZ' not in open('/proc/%d/status' % job, 'rb').read():
    os.sched_yield()
"""


@pytest.mark.parametrize("opened", [STAGED, BY_DEVPTS])
@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_a_session_on_a_terminal_that_it_serves(uid: int, opened: str) -> None:
    """KILL-03: whoever works on a terminal whose other side it has open is hung up, and is nobody's own work."""
    with running(SERVES_A_TERMINAL.format(open=opened, uid=uid)) as server:
        ((pid, belongs, why),) = told(server.pid)
        assert (pid, belongs) == (server.others[0], False)
        assert f"whose other side pid {server.pid} has open" in why
        assert told(server.others[0]) == []
        os.kill(server.pid, signal.SIGKILL)
        assert ends(server.others[0])


def test_a_terminal_that_somebody_else_serves_too() -> None:
    """While an unrelated process has the other side open too, nobody is hung up; one that it has forked is no such."""
    code = """
master, slave = open_pty()
ours = started(at_terminal(master, slave, ALICE))
os.close(slave)
os.set_inheritable(master, True)
def keep():
    os.setsid()
told, tell = os.pipe()
if not os.fork():  # its parent ends: it descends from the test no more
    keeper = started(keep)
    os.write(tell, b'%d' % keeper)
    os._exit(0)
os.wait()
keeper = int(os.read(told, 20))
child = started(lambda: become(ALICE))
become(ALICE)
ready(ours, keeper, child)
"""
    with running(code) as server:
        ours, keeper, _ = server.others
        assert told(server.pid) == []
        assert [pid for pid, _, _ in told(server.pid, keeper)] == [ours]
        os.kill(keeper, signal.SIGKILL)
        assert ends(keeper)
        assert [pid for pid, _, _ in told(server.pid)] == [ours]


def test_another_terminal_with_its_number() -> None:
    """Each devpts counts its own terminals: the same number in a container is another terminal."""
    mounts = 'mount -t devpts -o newinstance,ptmxmode=0666 none /dev/pts && exec "$@"'
    with (
        running(
            SERVES_A_TERMINAL.format(open=BY_DEVPTS, uid=BOB), "unshare", "--mount", "sh", "-c", mounts, "sh"
        ) as one,
        running(SERVES_A_TERMINAL.format(open=BY_DEVPTS, uid=BOB)) as other,
    ):
        numbers = [pty_number(_terminal(each.others[0])) for each in (one, other)]
        assert numbers[0] == 0
        if numbers[1] != 0:
            pytest.skip("terminal 0 of this machine is taken")
        assert [[pid for pid, _, _ in told(each.pid)] for each in (one, other)] == [
            [one.others[0]], [other.others[0]],
        ]  # fmt: skip


def test_who_works_on_a_terminal_without_leading_a_session() -> None:
    """KILL-03: whoever has the terminal open gets the end of a file, be it nobody's controlling terminal."""
    code = """
master, slave = open_pty()
def works():
    os.close(master)
    os.setsid()
    os.dup2(slave, 0)
    become(BOB)
other = started(works)
os.close(slave)
become(ALICE)
ready(other)
"""
    with running(code) as server:
        ((pid, belongs, why),) = told(server.pid)
        assert (pid, belongs) == (server.others[0], False)
        assert f"whose other side pid {server.pid} has open" in why
        os.kill(server.pid, signal.SIGKILL)
        assert ends(server.others[0])


def test_a_terminal_in_the_place_of_a_pipe() -> None:
    """What it has started with a terminal of its own for its output is its own work."""
    code = """
master, slave = open_pty()
def works():
    os.close(master)
    become(ALICE)
own = started(works)
become(ALICE)
ready(own)
"""
    with running(code) as server:
        ((pid, belongs, _),) = told(server.pid)
        assert (pid, belongs) == (server.others[0], True)


def test_a_terminal_whose_other_side_one_thread_has_open() -> None:
    """KILL-03: a thread may have open files of its own: those end with its process as well."""
    code = """
import time
holds = threading.Event()
def serve():
    assert LIBC.unshare(0x400) == 0  # CLONE_FILES
    master, slave = open_pty()
    global session
    session = started(at_terminal(master, slave, BOB))
    os.close(slave)
    holds.set()
    time.sleep(1000)
threading.Thread(target=serve, daemon=True).start()
assert holds.wait(30)
ready(session)
"""
    with running(code) as server:
        assert [pid for pid, _, _ in told(server.pid)] == [server.others[0]]
        os.kill(server.pid, signal.SIGKILL)
        assert ends(server.others[0])


def _terminal(pid: int) -> int:
    return int(RealProc().read(pid, "stat").rpartition(b") ")[2].split()[4])


class NoOpenFiles(OpenFiles):
    """What an agent sees that has no right to trace processes."""

    def list(self, pid: int, folder: str) -> list[int]:
        raise PermissionError(13, "Permission denied")


def test_without_the_right_to_see_open_files() -> None:
    """Then a terminal of a session that it has started may be its own: the session withholds; others' do not."""
    finder = TieFinder(RealProc(), open_files=NoOpenFiles())
    with (
        running(SERVES_A_TERMINAL.format(open=STAGED, uid=ALICE)) as server,
        running(BEGINS_WORK.format(uid=ALICE)) as alone,
    ):
        ties = read_ties(RealProc(), reader(), [server.pid], finder=finder)
        (found,) = ties.processes
        assert (found.pid, found.belongs, found.certain) == (server.others[0], False, False)
        assert "takes CAP_SYS_PTRACE" in found.why
        assert read_ties(RealProc(), reader(), [alone.pid], finder=finder) == Ties()


def test_a_terminal_under_another_name() -> None:
    """A terminal of another devpts that is mounted on another name, as a container's console, has its own number."""
    code = """
master, slave = open_pty()
number = int(os.ttyname(slave).rpartition('/')[2])
def works():
    os.close(master); os.close(slave)
    assert LIBC.unshare(0x00020000) == 0  # CLONE_NEWNS
    assert os.system('mount --make-rprivate / && mount --bind /dev/pts/%d /dev/full' % number) == 0
    os.setsid()
    console = os.open('/dev/full', os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(console, termios.TIOCSCTTY, 0)
    become(BOB)
other = started(works)
os.close(slave)
become(ALICE)
ready(other)
"""
    inside = 'mount -t devpts -o newinstance,ptmxmode=0666 none /dev/pts && exec "$@"'
    with (
        running(code, "unshare", "--mount", "sh", "-c", inside, "sh") as one,
        running(SERVES_A_TERMINAL.format(open=BY_DEVPTS, uid=BOB)) as other,
    ):
        assert [pid for pid, _, _ in told(one.pid)] == [one.others[0]]
        assert one.others[0] not in [pid for pid, _, _ in told(other.pid)]


ADOPTED = """
LIBC.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as a user's manager has it
master, slave = open_pty()
told, tell = os.pipe()
def serve():
    if os.fork() == 0:
        if os.fork() == 0:
            at_terminal(master, slave, ALICE)()
            os.write(tell, b'%d' % os.getpid())
            live()
        os._exit(0)
    os.wait()
    become(ALICE)
holder = started(serve)
ready(holder, int(os.read(told, 20)))
"""


def test_an_orphan_that_a_manager_has_adopted() -> None:
    """Without the right to see open files, who began later below the same manager may be served by the holder."""
    finder = TieFinder(RealProc(), open_files=NoOpenFiles())
    with running(ADOPTED) as manager:
        holder, shell = manager.others
        assert [each.pid for each in read_ties(RealProc(), reader(), [holder], finder=finder).processes] == [shell]


BEGUN_BY_INIT = """
LIBC.prctl(15, {name!r}.encode(), 0, 0, 0)  # PR_SET_NAME
master, slave = open_pty()
told, tell = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        at_terminal(master, slave, {uid})()
        os.write(tell, b'%d' % os.getpid())
        live()
    os._exit(0)
os.wait()
become(ALICE)
ready(int(os.read(told, 20)))
"""


@pytest.mark.parametrize(
    ("name", "uid", "tied"),
    [("run0", BOB, True), ("machinectl", 0, True), ("python", BOB, False), ("python", ALICE, True)],
)
def test_a_session_that_the_first_process_has_begun(name: str, uid: int, tied: bool) -> None:
    """Without the right to see open files: `run0` may serve a session of any user, other programs their own user's."""
    finder = TieFinder(RealProc(), open_files=NoOpenFiles())
    with running(BEGUN_BY_INIT.format(name=name, uid=uid)) as holder:
        (shell,) = holder.others
        if parse_stat(RealProc().read(shell, "stat")).parent_pid != 1:
            pytest.skip("orphans come to another process than the first one here")
        found = read_ties(RealProc(), reader(), [holder.pid], finder=finder).processes
        assert [each.pid for each in found] == [shell] * tied


@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_a_stopped_job(uid: int) -> None:
    """A stopped job that it alone could continue is hung up; while another one can, it is not."""
    with running(STOPS_A_JOB.format(uid=uid)) as shell:
        (job,) = shell.others
        assert told(shell.pid) == [(job, uid == ALICE, "a stopped job that nobody else could continue")]
        os.kill(shell.pid, signal.SIGKILL)
        assert ends(job)


def test_a_stopped_job_whose_first_thread_has_ended() -> None:
    """KILL-03: a job is stopped while a thread of it is that lives, whatever its first thread is said to be."""
    code = STOPS_A_JOB.format(uid=BOB).replace(
        f"    become({BOB})\n",
        f"    become({BOB})\n    threading.Thread(target=live).start()\n"
        "    os.write(tell, b'.')\n    LIBC.syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)  # exit\n",
    )
    code = "told, tell = os.pipe()\n" + code.replace("job = started(work)", JOB_OF_ONE_THREAD_LEFT)
    code = code.replace("os.waitpid(job, os.WUNTRACED)", STOPPED_BY_NOW)
    with running(code) as shell:
        (job,) = shell.others
        assert told(shell.pid) == [(job, False, "a stopped job that nobody else could continue")]
        os.kill(shell.pid, signal.SIGKILL)
        assert ends(job)


def test_a_stopped_job_that_another_can_continue() -> None:
    """Its group is kept by a member whose parent is another one of the session: nothing happens to it."""
    code = """
told, tell = os.pipe()
def between():
    os.setpgid(0, 0)
    job = started(lambda: (os.setpgid(0, 0), become(ALICE)))
    os.kill(job, signal.SIGSTOP)
    os.waitpid(job, os.WUNTRACED)
    os.write(tell, b'%d' % job)
parent = started(between)
job = int(os.read(told, 20))
ready(parent, job, started(lambda: (os.setpgid(0, job), become(ALICE))))
"""
    with running(code) as shell:
        between, job, kept = shell.others
        assert told(between) == [(job, False, f"started by pid {between}, and of another user")]
        assert told(between, kept) == [(job, True, "a stopped job that nobody else could continue")]


@pytest.mark.parametrize("how", [BY_ITSELF, BY_A_THREAD], ids=["by itself", "by a thread"])
@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_a_process_that_it_traces(uid: int, how: str) -> None:
    """Whom it traces ends with it (PTRACE_O_EXITKILL), or may stay stopped; whichever thread traces."""
    with running(TRACES.format(uid=uid, how=how)) as tracer:
        assert told(tracer.pid) == [(tracer.others[0], uid == ALICE, f"traced by pid {tracer.pid}")]
        os.kill(tracer.pid, signal.SIGKILL)
        assert ends(tracer.others[0])


@pytest.mark.parametrize("exit_signal", [signal.SIGTERM, signal.SIGKILL, signal.SIGCHLD, 0])
def test_a_parent_that_gets_a_signal_of_its_own(exit_signal: int) -> None:
    """KILL-03: a child may be made so that the kernel sends its parent SIGKILL at its end, in whoever's place."""
    code = f"""
import ctypes, platform
told, tell = os.pipe()
number = 56 if platform.machine() == "x86_64" else 220  # clone(2)
child = ctypes.PyDLL(None).syscall(number, {int(exit_signal)}, 0, 0, 0, 0)
if not child:
    become(ALICE)
    os.write(tell, b'.')
    live()
os.read(told, 1)
ready(child)
"""
    with running(code) as parent:
        (child,) = parent.others
        why = f"to which the kernel sends signal {int(exit_signal)} when pid {child} ends, as it was started with that"
        hit = exit_signal not in {0, signal.SIGCHLD}
        assert told(child) == ([(parent.pid, False, why)] if hit else [])
        os.kill(child, signal.SIGKILL)
        if hit:
            assert ends(parent.pid)


@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_work_that_it_has_begun(uid: int) -> None:
    """A child of another user may end with it (PR_SET_PDEATHSIG); one of its own is its own work, and lives on."""
    with running(BEGINS_WORK.format(uid=uid)) as parent:
        wanted = (
            [] if uid == ALICE else [(parent.others[0], False, f"started by pid {parent.pid}, and of another user")]
        )
        assert told(parent.pid) == wanted


def test_a_child_that_works_for_another_user() -> None:
    """The users of a child are those of all its threads."""
    with running(LENDS_A_THREAD) as parent:
        why = f"started by pid {parent.pid}, and a thread of it is of another user"
        assert told(parent.pid) == [(parent.others[0], False, why)]


def test_it_takes_along_what_depends_on_what_ends_with_it() -> None:
    """Who ends with it takes further ones along: a terminal that is served in its pid namespace."""
    inside = SERVES_A_TERMINAL.format(open=STAGED, uid=BOB).replace("ready(ours)", "os.write(tell, b'.'); live()")
    nested = (
        "told, tell = os.pipe()\nif not os.fork():\n"
        + "".join(f"    {line}\n" for line in inside.strip().splitlines())
        + "os.read(told, 1)\nbecome(ALICE)\nready()\n"
    )
    with running(nested, "unshare", "--pid", "--fork", "--kill-child") as above:
        (init,) = Path(f"/proc/{above.pid}/task/{above.pid}/children").read_text().split()
        whys = [why for _, _, why in told(int(init))]
        assert len(whys) == 2
        assert all(f"in the pid namespace of pid {init}" in why for why in whys)


class Counting(RealProc):
    """Counts what is asked of it."""

    asked = 0

    def read(self, pid: int, name: str) -> bytes:
        self.asked += 1
        return super().read(pid, name)


def test_many_processes_cost_little() -> None:
    """A look reads two files of each process, and more only of those that matter."""
    files = Counting()
    finder = TieFinder(files)
    with (
        running("for _ in range(200): started(lambda: None)\nready()\n"),
        running(BEGINS_WORK.format(uid=ALICE)) as one,
    ):
        scan = finder.scan()
        assert len(scan.rows) > 200
        assert files.asked <= 2 * (len(scan.rows) + 50)  # others of this machine come and go
        files.asked = 0
        assert finder.find([one.pid], scan) == {}
        assert files.asked <= 30


class Odd(RealProc):
    """With a file that cannot be read."""

    def __init__(self, pid: int, name: str, error: OSError) -> None:
        super().__init__()
        self._odd, self._error = (pid, name), error

    def read(self, pid: int, name: str) -> bytes:
        if (pid, name) == self._odd:
            raise self._error
        return super().read(pid, name)


def test_a_process_of_many_groups() -> None:
    """KILL-03: one with thousands of supplementary groups, as subordinate ones, is seen as any other."""
    code = (
        "os.setgroups(range(100000, 104000))\nother = started(lambda: os.setuid(BOB))\nos.setuid(ALICE)\nready(other)\n"
    )
    with running(code) as parent:
        assert [pid for pid, _, _ in told(parent.pid)] == [parent.others[0]]


@pytest.mark.parametrize("name", ["stat", "status"])
def test_what_cannot_be_read(name: str) -> None:
    """A process that hides withholds, with the reason; one that has gone is tied to nobody."""
    with running(BEGINS_WORK.format(uid=BOB)) as parent:
        hidden = read_ties(Odd(parent.others[0], name, PermissionError(1, "hidden")), reader(), [parent.pid])
        assert "hidden" in hidden.unseen
        gone = read_ties(Odd(parent.others[0], name, ProcessLookupError(3, "gone")), reader(), [parent.pid])
        assert gone == Ties()


def test_a_machine_that_hides_processes() -> None:
    """Without the first process of the machine in sight (hidepid) nothing is known: that is not nobody."""

    def hidden() -> list[int]:
        return [pid for pid in list_pids() if pid != 1]

    with pytest.raises(UnseenProcesses):
        TieFinder(RealProc(), pids=hidden).find([os.getpid()])


GUILTY = {
    "from a shell": ("sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh"),
    "with nohup": ("nohup",),
    "with setsid": ("setsid", "--wait"),
    "on a terminal": (sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"),
    "in a pid namespace": ("unshare", "--pid", "--fork", "--kill-child"),
}


@pytest.mark.parametrize("before", GUILTY.values(), ids=GUILTY)
def test_an_ordinary_server(before: tuple[str, ...]) -> None:
    """Nobody but its own workers depends on a server, however it was started: it can still be ended."""
    code = "workers = [started(lambda: None) for _ in range(3)]\nready(os.getpid())\n"
    with running(code, *before) as above:
        pid = above.others[0]
        if "unshare" in before:
            (child,) = Path(f"/proc/{above.pid}/task/{above.pid}/children").read_text().split()
            pid = int(child)
        assert [why for _, belongs, why in told(pid) if not belongs] == []
