"""Whom the end of a namespace's first process would end as well: real namespaces, entered from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc, parse_stat
from gpuagent.procfs.reader import ProcessRecord
from gpuagent_alerts.remedies.execution.executor import NodeActionExecutor
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses, list_pids
from gpuagent_alerts.remedies.facts.ties import TieFinder, read_ties
from gpuagent_alerts.remedies.facts.user_containers import maker_of_namespaces
from gpuagent_alerts.remedies.manual_requests import read_identified
from gpuagent_alerts.remedies.target import TiedProcess
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import PLAIN, as_target, reader
from tests.alerts.remedies.staging import NoApps, config, no_warning, stage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a pid namespace")
ALICE, BOB = 4001, 4002
UNSHARE = ("unshare", "--fork", "--pid")


def as_user(uid: int) -> tuple[str, ...]:
    """What starts a program as this user."""
    return ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")


@contextmanager
def started(*command: str, depth: int, program: str = PLAIN, words: tuple[str, ...] = ()) -> Iterator[int]:
    """A process that has said that it is ready: below so many others that have started it."""
    first = subprocess.Popen([*command, *(words or (sys.executable, "-c", program))], stdout=subprocess.PIPE, text=True)
    last = os.pidfd_open(first.pid)
    try:
        assert first.stdout is not None
        if first.stdout.readline().strip() != "ready":
            pytest.skip("pid namespaces are not permitted here")
        pid = first.pid
        for _ in range(depth):
            (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(child)
        os.close(last)
        last = os.pidfd_open(pid)
        yield pid
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(last, signal.SIGKILL)
        os.close(last)
        first.communicate()  # those above it end with it


def init(uid: int = ALICE) -> AbstractContextManager[int]:
    """The first process of a pid namespace, as of a container without a name."""
    return started(*UNSHARE, *as_user(uid), depth=1)


def entered(
    namespace_of: int, uid: int, *before: str, depth: int = 1, program: str = PLAIN
) -> AbstractContextManager[int]:
    """A process that root has started into the namespace of another one."""
    enter = ("nsenter", "--target", str(namespace_of), "--pid")
    return started(*enter, *before, *as_user(uid), depth=depth, program=program)


class NoLinks(RealProc):
    """What an agent sees that has no right to trace processes."""

    def link(self, pid: int, name: str) -> str:
        raise PermissionError(f"/proc/{pid}/{name}")


def members(pid: int, files: RealProc | None = None) -> tuple[TiedProcess, ...]:
    """Whom its end would end as well: of this file's users, as other namespaces of the machine may be anybody's."""
    ties = read_ties(files or RealProc(), reader(), [pid])
    assert ties.unseen == ""
    return tuple(each for each in ties.processes if each.user in {str(ALICE), str(BOB)})


def others(pid: int, files: RealProc | None = None) -> list[str]:
    """Those of them that do not belong with it."""
    return words(members(pid, files))


def words(found: tuple[TiedProcess, ...]) -> list[str]:
    """Those who do not belong with it."""
    return [str(each) for each in found if not each.belongs]


def named(pid: int, uid: int, init_pid: int) -> str:
    """A process of this file, in the words of a refusal."""
    return f"pid {pid} ({reader().read(pid).info.name} of {uid}, in the pid namespace of pid {init_pid})"


@pytest.mark.parametrize("files", [RealProc(), NoLinks()])
def test_alone(files: RealProc) -> None:
    """Nobody is there, or others of the same user: its end ends nobody else, with and without the right to trace."""
    with init() as pid:
        assert members(pid, files) == ()
        with entered(pid, ALICE) as alice:
            assert others(pid, files) == []
            (member,) = members(pid, files)
            assert (member.pid, member.belongs) == (alice, True)


@pytest.mark.parametrize("files", [RealProc(), NoLinks()])
def test_of_another_user(files: RealProc) -> None:
    """Whoever was started into it from outside is found; without the right to trace as one who may be there."""
    with init() as pid, entered(pid, BOB) as bob:
        assert others(pid, files) == [f"{'perhaps ' if isinstance(files, NoLinks) else ''}{named(bob, BOB, pid)}"]


@pytest.mark.parametrize("files", [RealProc(), NoLinks()])
def test_below(files: RealProc) -> None:
    """A namespace below it falls with it: whoever is in there and has an ancestor in it is known to be."""
    with init() as pid, entered(pid, BOB, *UNSHARE, depth=2) as bob:
        assert any(named(bob, BOB, pid) in each for each in others(pid, files))


@pytest.mark.parametrize("files", [RealProc(), NoLinks()])
def test_another_namespace_is_none(files: RealProc) -> None:
    """Whoever descends from the first process of another namespace of the same depth is not in this one."""
    with init() as pid, init(BOB):
        assert others(pid, files) == []


def test_in_another_namespace() -> None:
    """Whoever was started into another namespace is told apart by the link."""
    with init() as pid, init(BOB) as another, entered(another, BOB) as bob:
        assert others(pid) == []
        assert others(pid, NoLinks()) == [f"perhaps {named(bob, BOB, pid)}"]


def test_who_cannot_be_seen() -> None:
    """With a /proc that hides processes, or cannot be listed, nothing is known: that is not nobody."""

    class Hides(RealProc):
        def read(self, pid: int, name: str) -> bytes:
            if pid == 1:
                raise PermissionError
            return super().read(pid, name)

    def fails() -> list[int]:
        raise PermissionError

    with init() as pid:
        assert read_ties(Hides(), reader(), [pid]).unseen.startswith("/proc does not show every process")
        for pids in (fails, lambda: [p for p in list_pids() if p != 1], lambda: [pid]):
            with pytest.raises(UnseenProcesses):
                TieFinder(RealProc(), pids=pids).find([pid])


class EndsMeanwhile(RealProc):
    """The files of processes of which one ends while others look at it."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def threads(self, pid: int) -> list[int]:
        found = super().threads(pid)
        if pid == self._pid:
            os.kill(pid, signal.SIGKILL)
            while self.exists(pid):
                pass
        return found


def test_who_ends_before_its_open_files_are_listed() -> None:
    """PROC-03: one that ends during the look ends with nobody, and withholds nothing."""
    with init() as pid, entered(pid, BOB) as bob:
        assert members(pid, EndsMeanwhile(bob)) == ()


class Containers:
    """Who is in which container that root has named."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def proven_container(self, pid: int) -> str:
        return self._names.get(pid, "")

    def user_now(self, uid: int) -> str:
        return reader().user_now(uid)

    def read(self, pid: int) -> ProcessRecord:
        found = reader().read(pid)
        if not (name := self._names.get(pid)):
            return found
        return found._replace(info=replace(found.info, container_id=name, proven_names=frozenset({"container"})))


def in_containers(pid: int, names: dict[int, str], files: RealProc) -> list[str]:
    """Who does not belong with it, where the init is in container `a`."""
    found = read_ties(files, Containers(names), [pid]).processes
    return words(tuple(each for each in found if each.user in {str(ALICE), str(BOB)}))


def test_containers() -> None:
    """Who was started into a container as another user is not its own work; nor is who is in another container."""
    with init() as pid, entered(pid, BOB) as bob, entered(pid, ALICE) as alice:
        assert in_containers(pid, {pid: "a", bob: "a", alice: "a"}, RealProc()) == [named(bob, BOB, pid)]
    with init() as pid, entered(pid, BOB) as bob:
        for elsewhere in ({pid: "a", bob: "b"}, {pid: "a"}):
            assert in_containers(pid, elsewhere, RealProc()) == [named(bob, BOB, pid)]
    with init() as pid, entered(pid, ALICE) as neighbor:
        assert in_containers(pid, {pid: "a", neighbor: "b"}, RealProc()) == [named(neighbor, ALICE, pid)]


STARTS_BOB = f"""
import os, signal
os.setsid()
if not os.fork():
    os.setresuid({BOB}, {BOB}, {BOB})
    signal.pause()
print('ready', flush=True)
signal.pause()
"""


def test_what_a_container_has_started_as_another_user() -> None:
    """An entrypoint of root's that starts its server as another user is one container's own work."""
    with started(*UNSHARE, depth=1, program=STARTS_BOB) as pid:
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        while reader().read(child).info.uid != BOB:
            pass
        assert in_containers(pid, {pid: "a", child: "a"}, RealProc()) == []


LEFT_BEHIND = "import os, signal; os.fork() and os._exit(0)"
QUIET = "print('ready', flush=True); os.close(1); signal.pause()"


@pytest.mark.parametrize("own_session", [True, False])
def test_a_job_that_was_left_behind_in_a_container(*, own_session: bool) -> None:
    """What was started into it as another user is not its own once the first process has adopted it, either."""
    program = f"{LEFT_BEHIND}{'; os.setsid()' if own_session else ''}\n{QUIET}"
    for user, is_own in ((BOB, False), (ALICE, True)):
        with init() as pid, entered(pid, user, depth=0, program=program):
            while not (adopted := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
                pass
            job = int(adopted[0])
            told = [] if is_own else [named(job, user, pid)]
            assert in_containers(pid, {pid: "a", job: "a"}, RealProc()) == told


def test_a_session_at_a_terminal_in_a_container() -> None:
    """Who was started into it at a terminal of their own is a person (`docker exec -it`), as which user ever."""
    at_terminal = (
        "import fcntl, os, pty, termios; _, s = pty.openpty(); os.setsid(); fcntl.ioctl(s, termios.TIOCSCTTY, 0)"
    )
    with init() as pid, entered(pid, ALICE, program=f"{at_terminal}\n{PLAIN}") as alice:
        assert in_containers(pid, {pid: "a", alice: "a"}, RealProc()) == [named(alice, ALICE, pid)]


def test_a_session_in_another_container() -> None:
    """Without the right to trace, who was started into a container with a namespace of its own is taken to be there."""
    with init() as pid, init(BOB) as another, entered(another, BOB) as bob:
        assert in_containers(pid, {pid: "a", another: "b", bob: "b"}, NoLinks()) == []
        assert in_containers(pid, {pid: "a", another: "b", bob: "c"}, NoLinks()) == [f"perhaps {named(bob, BOB, pid)}"]


def refusal(pid: int, bob: int) -> str:
    """Return the words of it."""
    return f"ending it also ends, or hangs up, {named(bob, BOB, pid)}"


@pytest.mark.slow
@pytest.mark.parametrize(("force", "shown"), [(False, True), (True, False), (True, True)])
def test_who_answers_by_hand(tmp_path: Path, *, force: bool, shown: bool) -> None:
    """A person who was shown the others answers for them with --force, and only then; the record names them."""
    with init() as pid, entered(pid, BOB) as bob:

        async def story() -> None:
            settings = config(str(ALICE), dry_run=True, allow={})
            async with stage(settings, Store(tmp_path / "state.db"), {"leaker": pid}) as one:
                steps = list(one.service.settings.ladders[0].steps)
                request = one.shown(pid) | ({} if shown else {"ends_with_it": []})
                wanted = refusal(pid, bob)
                kill = asyncio.create_task(
                    one.service.kill(pid, steps, read_identified(request), uid=0, force=force, dry_run=False)
                )
                await one.until(kill.done)
                result = await kill
                (run,) = (await one.service.document())["remedies"]
                if force and shown:
                    assert result["result"] == "released"
                    assert any(f"pid {bob} (" in each for each in run["steps"][0]["ends_with_it"])
                    return
                assert (result["result"], result["detail"]) == ("refused", wanted)
                (advice,) = result["advice"]
                assert advice.startswith("Ask again: " if force else "Say --force ")

        asyncio.run(story())
        assert has_ended(bob) is (force and shown)


def never_listed(pid: int, uid: int) -> AbstractContextManager[int]:
    """A process in the namespace with a name of the never-list: `sshd` of root's or of anybody's."""
    return entered(pid, uid, program="import ctypes; ctypes.CDLL(None).prctl(15, b'sshd', 0, 0, 0);" + PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("uid", [ALICE, BOB])
@pytest.mark.parametrize("force", [False, True])
def test_the_never_list_stands_for_all_of_them(tmp_path: Path, uid: int, *, force: bool) -> None:
    """A process of the never-list that would end as well withholds the end in every case, whoever's it is."""
    with init() as pid, never_listed(pid, uid) as sshd:

        async def story() -> None:
            settings = config(str(ALICE), dry_run=True, allow={})
            async with stage(settings, Store(tmp_path / "state.db"), {"leaker": pid}) as one:
                steps = list(one.service.settings.ladders[0].steps)
                asked = read_identified(one.shown(pid))
                kill = asyncio.create_task(one.service.kill(pid, steps, asked, uid=0, force=force, dry_run=False))
                await one.until(kill.done)
                result = await kill
                assert result["result"] == "refused"
                assert f"{named(sshd, uid, pid)} ends with it: sshd is on the never-list" in result["detail"]

        asyncio.run(story())
        assert (has_ended(pid), has_ended(sshd)) == (False, False)


def test_what_a_person_is_shown(tmp_path: Path) -> None:
    """Everybody who ends with it is among what is told of it before anything is asked, with their identity."""
    with init() as pid, entered(pid, ALICE) as alice, entered(pid, BOB) as bob:

        async def story() -> None:
            async with stage(config(str(ALICE)), Store(tmp_path / "state.db"), {"leaker": pid}) as one:
                rows = (await one.service.identified())["processes"]
                (told,) = [row["ends_with_it"] for row in rows if row["pid"] == pid]
                ours = {each["pid"]: each for each in told}
                assert {alice, bob} <= ours.keys()
                assert (ours[alice]["belongs"], ours[bob]["belongs"]) == (True, False)
                assert [[each["pid"], each["start_ticks"]] for each in told] == one.shown(pid)["ends_with_it"]

        asyncio.run(story())


def test_by_a_rule(tmp_path: Path) -> None:
    """A rule is refused for the neighbor as well, and both live."""
    with init() as pid, entered(pid, BOB) as bob:

        async def story() -> None:
            async with stage(config(str(ALICE)), Store(tmp_path / "state.db"), {"leaker": pid}) as one:
                one.fires(pid)
                await one.until(lambda: one.ended() == ["refused"])
                (run,) = (await one.service.document())["remedies"]
                assert refusal(pid, bob) in run["end"]["detail"]

        asyncio.run(story())
        assert (has_ended(pid), has_ended(bob)) == (False, False)


def test_a_rule_and_the_never_list(tmp_path: Path) -> None:
    """A rule that may end the first process is refused for one of the never-list in the namespace, its own too."""
    with init() as pid, never_listed(pid, ALICE) as sshd:

        async def story() -> None:
            async with stage(config(str(ALICE)), Store(tmp_path / "state.db"), {"leaker": pid}) as one:
                one.fires(pid)
                await one.until(lambda: one.ended() == ["refused"])
                (run,) = (await one.service.document())["remedies"]
                assert (
                    f"pid {sshd} (sshd of {ALICE}, in the pid namespace of pid {pid}) ends with it: sshd is"
                    in run["end"]["detail"]
                )

        asyncio.run(story())
        assert (has_ended(pid), has_ended(sshd)) == (False, False)


def has_ended(pid: int) -> bool:
    """Whether only its parent is left to notice."""
    try:
        return parse_stat(RealProc().read(pid, "stat")).state in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


NEVER_REAPS = """
import ctypes, os, signal, sys
namespace = os.open(sys.argv[1], os.O_RDONLY)
assert ctypes.CDLL(None).setns(namespace, 0) == 0
child = os.fork()
if not child:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


@pytest.mark.slow
def test_an_init_that_is_not_let_go() -> None:
    """A parent outside that does not reap keeps a killed init for ever: it has no files any more, and blocks no GPU."""
    with init() as pid:
        outside = subprocess.Popen(
            [sys.executable, "-c", NEVER_REAPS, f"/proc/{pid}/ns/pid"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert outside.stdout is not None
            assert int(outside.stdout.readline())
            identity = as_target(pid).id
            executor = NodeActionExecutor(RealProc(), reader(), apps=NoApps(), warn=no_warning)
            assert executor.is_alive(identity)
            os.kill(pid, signal.SIGKILL)
            while Path(f"/proc/{pid}/wchan").read_text() != "zap_pid_ns_processes":
                assert not has_ended(pid)
            assert "FDSize:\t0\n" in Path(f"/proc/{pid}/status").read_text()
            assert not executor.is_alive(identity)
            assert NodeActionExecutor(NoWaitChannel(), reader(), apps=NoApps(), warn=no_warning).is_alive(identity)
        finally:
            outside.kill()
            outside.communicate()


class NoWaitChannel(RealProc):
    """What an agent sees that has no right to trace processes."""

    def read(self, pid: int, name: str) -> bytes:
        return b"0" if name == "wchan" else super().read(pid, name)


@pytest.mark.parametrize(
    ("command", "maker"),
    [
        ((*as_user(ALICE), "unshare", "-Urmpf"), ALICE),
        (("unshare", "-Urmpf"), 0),
        ((*as_user(ALICE), "unshare", "-Urpf"), None),
        ((*UNSHARE, *as_user(ALICE)), None),
        ((*UNSHARE, *as_user(ALICE), "unshare", "-Urm"), None),
        ((*UNSHARE, "--mount", *as_user(ALICE), "unshare", "-Ur"), None),
        ((*as_user(ALICE), "unshare", "-Ur", "unshare", "-Urmpf"), None),
    ],
    ids=["the user's", "root's", "mounts of the host", "pids of root's", "in those", "mounts of root's", "in another"],
)
def test_who_made_the_namespaces(command: tuple[str, ...], maker: int | None) -> None:
    """A user's own are a user namespace in the host's, and others that belong to it; in any other case nobody's."""
    with started(*command, depth=1, words=("sh", "-c", "echo ready; exec sleep 1000")) as pid:
        assert maker_of_namespaces(pid) == maker


def test_nobody_made_the_namespaces_of_the_host() -> None:
    """Who is in no container, and who has ended, is in nobody's."""
    assert maker_of_namespaces(os.getpid()) is None
    assert maker_of_namespaces(2**22 + 1) is None
