"""The child: it answers or is ended, leaves nothing behind, and costs the app nothing but the fork."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace

import pytest

from gpuagent_client.blame import fork
from gpuagent_client.errors import Refused


def children() -> list[int]:
    """Processes that this one has to wait for."""
    path = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return [int(pid) for pid in path.read_text().split()]


def test_the_answer_comes_back_whole() -> None:
    """Also one that is larger than a pipe holds, and no child is left."""
    before = children()

    answer = fork.run_in_child(lambda frames: b"x" * 5_000_000, 20.0)

    assert len(answer.data) == 5_000_000
    assert answer.stall_seconds > 0
    assert children() == before


def test_a_failure_is_a_refusal_without_data_of_the_app() -> None:
    """The text of an exception may hold anything; its type and our line may be told."""

    def fail(frames: list[fork.ThreadFrame]) -> bytes:
        raise ValueError("secret prompt")

    with pytest.raises(Refused, match=r"ValueError at test_fork.py:\d+") as refusal:
        fork.run_in_child(fail, 20.0)

    assert "secret" not in str(refusal.value)


def test_a_child_that_hangs_is_ended() -> None:
    """A lock that another thread held at the fork is never released in the child."""
    lock = threading.Lock()
    lock.acquire()
    before = children()

    with pytest.raises(Refused, match="no answer"):
        fork.run_in_child(lambda frames: bytes(lock.acquire()), 0.2)

    assert children() == before


def test_a_child_that_is_killed_is_a_refusal() -> None:
    """The out-of-memory killer may take it."""

    def die(frames: list[fork.ThreadFrame]) -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    with pytest.raises(Refused, match="without an answer"):
        fork.run_in_child(die, 20.0)


def children_of_all() -> set[int]:
    """Children that any thread of this process has forked."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


@contextlib.contextmanager
def a_census_that_hangs() -> Iterator[int]:
    """A child that waits for ever, until it is killed here."""
    lock = threading.Lock()
    lock.acquire()
    refusals: list[Refused] = []

    def run() -> None:
        try:
            fork.run_in_child(lambda frames: bytes(lock.acquire()), 60.0)
        except Refused as refusal:
            refusals.append(refusal)

    before = children_of_all()
    thread = threading.Thread(target=run)
    thread.start()
    while not (born := children_of_all() - before):
        assert thread.is_alive()
    try:
        yield born.pop()
    finally:
        for child in children_of_all() - before:
            os.kill(child, signal.SIGKILL)
        thread.join()
    assert len(refusals) == 1


def test_the_child_holds_no_connection_of_the_app() -> None:
    """A peer sees the end of a connection when the app closes it, not when the child ends."""
    ours, peers = socket.socketpair()
    peers.settimeout(30)
    with peers, a_census_that_hangs() as child:
        ours.close()

        assert peers.recv(1) == b""
        assert child in children_of_all()


def test_one_at_a_time() -> None:
    """A second census while one runs is refused."""
    with a_census_that_hangs(), pytest.raises(Refused, match="under way"):
        fork.run_in_child(lambda frames: b"", 20.0)


def test_hooks_are_told_that_it_is_a_census() -> None:
    """The client's own hook starts no second client in a child that lives for a moment."""
    in_the_child = fork.run_in_child(lambda frames: str(fork.is_census_fork()).encode(), 20.0)

    assert in_the_child.data == b"True"
    assert not fork.is_census_fork()


def test_signals_are_ignored_before_the_child_does_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal to the process group runs the app's handlers once, in the app."""
    handlers: list[object] = []
    send = fork._send

    def note_and_send(writing: int, verdict: bytes, data: bytes) -> None:
        handlers.append(signal.getsignal(signal.SIGUSR1))
        send(writing, verdict, data)

    monkeypatch.setattr(fork, "_send", note_and_send)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        answer = fork.run_in_child(lambda frames: repr(handlers == [signal.SIG_DFL]).encode(), 20.0)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert answer.data == b"True"


def test_python_says_nothing_of_the_threads() -> None:
    """From 3.12 on it warns of a fork in a process with threads: the app has not forked, and cannot do anything."""
    end = threading.Event()
    worker = threading.Thread(target=end.wait)
    worker.start()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fork.run_in_child(lambda frames: b"", 20.0)
    finally:
        end.set()
        worker.join()

    assert [str(one.message) for one in said] == []


def test_frames_of_other_threads_arrive() -> None:
    """The child has only the thread that forked, but knows what the others were at."""
    ready, end = threading.Event(), threading.Event()

    def at_work() -> None:
        ready.set()
        end.wait()

    worker = threading.Thread(target=at_work)
    worker.start()
    ready.wait()
    try:
        answer = fork.run_in_child(lambda frames: " ".join(one.frame.f_code.co_name for one in frames).encode(), 20.0)
    finally:
        end.set()
        worker.join()

    assert b"at_work" in answer.data.split()
    assert b"run_in_child" not in answer.data.split()


def frame_of(filename: str, *functions: str) -> list[FrameType]:
    """Running frames of functions with these names in a file of this name."""
    source = "import sys\n" + "".join(
        f"def {name}(rest):\n return [sys._getframe(), *(rest[0](rest[1:]) if rest else [])]\n" for name in functions
    )
    code: CodeType = compile(source, filename, "exec")
    namespace: dict[str, object] = {}
    exec(code, namespace)
    first, *rest = (namespace[name] for name in functions)
    frames: list[FrameType] = first(rest)  # type: ignore[operator]
    return frames


def test_gunicorns_master_is_left_alone() -> None:
    """It waits for any child, and would take ours for a worker that died; its workers have that loop above them too."""
    master = frame_of("/site-packages/gunicorn/arbiter.py", "run")
    worker = frame_of("/site-packages/gunicorn/arbiter.py", "run", "spawn_worker")

    with pytest.raises(Refused, match="gunicorn's master"):
        fork.refuse_in_gunicorn_master(master)
    fork.refuse_in_gunicorn_master(worker)
    fork.refuse_in_gunicorn_master([sys._getframe()])


def memory(root: Path, available_kib: int, limit: str, current: int, inactive_file: int = 0) -> int:
    """What is available on a host like this."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(f"MemTotal: 999 kB\nMemAvailable: {available_kib} kB\n")
    (root / "proc" / "self" / "cgroup").write_text("0::/app.slice/app\n")
    inner = root / "cgroup" / "app.slice" / "app"
    inner.mkdir(parents=True)
    (inner.parent / "memory.max").write_text(f"{limit}\n")
    (inner.parent / "memory.current").write_text(f"{current}\n")
    (inner.parent / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("1\n")
    return fork.available_bytes(root / "proc", root / "cgroup")


@pytest.mark.parametrize(
    ("limit", "current", "cached", "expected"),
    [("max", 5, 0, 1024 << 10), ("900000", 400000, 0, 500000), ("900000", 400000, 100000, 600000)],
    ids=["host", "cgroup", "page cache can be taken back"],
)
def test_free_memory_is_that_of_the_tightest_limit(
    limit: str, current: int, cached: int, expected: int, tmp_path: Path
) -> None:
    """A cgroup above the app's may be the one that is full."""
    assert memory(tmp_path, 1024, limit, current, cached) == expected


def test_a_census_without_memory_is_refused() -> None:
    """It must not be what brings the out-of-memory killer."""
    size = fork.Size(objects=1_000_000, tensors=10_000)

    with pytest.raises(Refused, match="MiB of host memory are free"):
        fork.refuse_without_memory(size, fork.estimate_bytes(size))
    fork.refuse_without_memory(size, 2 * fork.estimate_bytes(size))


def test_pinned_memory_is_a_reason() -> None:
    """The kernel copies pinned pages at the fork; where torch does not tell, they are no reason."""
    with pytest.raises(Refused, match="8192 MiB of host memory are pinned"):
        fork.refuse_pinned_memory(8 << 30)
    fork.refuse_pinned_memory(1 << 30)
    fork.refuse_pinned_memory(None)


def test_the_best_answer_of_a_child_that_was_ended_is_kept() -> None:
    """Under heavy load a part is better than nothing."""
    lock = threading.Lock()
    lock.acquire()

    def work(frames: list[fork.ThreadFrame]) -> Iterator[bytes]:
        yield b"names"
        lock.acquire()
        yield b"names and graphs"

    answer = fork.run_in_child(work, 1.0)

    assert (answer.data, answer.complete) == (b"names", False)


def test_a_supervisor_is_left_alone() -> None:
    """An app that waits for any of its children would be told of the end of one that it does not know."""
    namespace: dict[str, object] = {}
    exec("def supervise():\n    os.wait()\n", namespace)
    ready, end = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        end.wait()

    namespace["os"] = SimpleNamespace(wait=wait)
    worker = threading.Thread(target=namespace["supervise"])  # type: ignore[arg-type]
    worker.start()
    ready.wait()
    try:
        with pytest.raises(Refused, match="waits for any of its children"):
            fork.run_in_child(lambda frames: b"", 20.0)
    finally:
        end.set()
        worker.join()


def test_a_host_that_tells_nothing_is_no_reason() -> None:
    """No /proc to read is not: no memory."""
    assert fork.available_bytes(Path("/nonexistent"), Path("/nonexistent")) == fork.NO_LIMIT_BYTES
