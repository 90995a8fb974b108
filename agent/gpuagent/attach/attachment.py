"""Attach to a process: choose the interpreter that injects, inject, wait for the safe point, and detach.

`sys.remote_exec` takes an interpreter of the very version of the target, which the agent's own seldom is. So the
target's interpreter is run for it. Root runs nothing that others can write: then the call is made as the target's user.

The script that the process is to run, and the socket on which it reports, lie in a directory that belongs to the
target's user and that only that user and root may enter. It is made below a directory that nobody else can write, never
in /tmp, and both files are removed as soon as the process has connected.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import select
import socket
import struct
import subprocess
import syslog
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from gpuagent.attach import bootstrap
from gpuagent.attach.target import NEXT_START, NotAttachable, Target, is_same, is_visible, read_target
from gpuagent.procfs.files import printable
from gpuagent_alerts.remedies.files.path_walk import walk
from gpuagent_alerts.remedies.files.permissions import directory_tree_faults

SYSTEM_DIRECTORY = "/run/gpuagent-attach"
_MAX_SOCKET_PATH_BYTES = 107
_MAX_LINE_BYTES = 64 * 1024
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid (unix(7), SO_PEERCRED)


def find_base(own_uid: int, environment: dict[str, str]) -> str:
    """Return the directory below which to make ours; it is made where it is missing.

    Raises:
        NotAttachable: others can write it, or it cannot be made.
    """
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if own_uid == 0:
        base, mode = SYSTEM_DIRECTORY, 0o711
    elif runtime.startswith("/"):
        base, mode = f"{runtime.rstrip('/')}/gpuagent-attach", 0o700
    else:
        base, mode = f"{environment.get('HOME', '').rstrip('/')}/.gpuagent-attach", 0o700
    return check_base(base, mode, own_uid)


def check_base(base: str, mode: int, own_uid: int) -> str:
    """Make a directory where it is missing, and return its path.

    Raises:
        NotAttachable: others can write it or a directory above, or it cannot be made.
    """
    try:
        with contextlib.suppress(FileExistsError):
            Path(base).mkdir(mode)
    except OSError as error:
        raise NotAttachable(f"{base} cannot be made: {error.strerror}.") from None
    with walk(base, {0, own_uid}) as walked:
        if walked.faults or not walked.is_directory():
            raise NotAttachable(f"{walked.faults[0] if walked.faults else f'{base} is no directory'}.")
    return base


def script_text(client_directory: str, socket_path: str) -> str:
    """Return what the process is to run: the fixed text of `bootstrap`, and the call."""
    source = Path(bootstrap.__file__).read_text(encoding="utf-8")
    return f"{source}\n\nattach({client_directory!r}, {socket_path!r})\n"


class Rendezvous:
    """Script and socket for one process; use it as a context manager."""

    def __init__(self, base: str, target: Target, client_directory: str) -> None:
        """Make directory, script and socket.

        Raises:
            OSError: that is not possible.
        """
        self._target = target
        self.directory = Path(base, f"{target.pid}-{secrets.token_hex(4)}")
        self.script = self.directory / "attach.py"
        self._path = self.directory / "socket"
        if len(os.fsencode(self._path)) > _MAX_SOCKET_PATH_BYTES:
            raise OSError(f"the path of the socket would be too long: {self._path}")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection: socket.socket | None = None
        self._received = b""
        self.directory.mkdir(0o700)
        try:
            self._fill(script_text(client_directory, str(self._path)))
        except OSError:
            self.close()
            raise

    def _fill(self, text: str) -> None:
        descriptor = os.open(self.script, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        self._listener.bind(str(self._path))
        self._listener.listen(1)
        if os.geteuid() == 0:
            # The directory last: as long as it is root's, nobody can put a link in the way of chown.
            for path in (self.script, self._path, self.directory):
                os.chown(path, self._target.uid, self._target.gid, follow_symlinks=False)

    def accept(self, timeout_seconds: float) -> bool:
        """Wait for the process to connect, then remove both files; return whether it did in time."""
        self._listener.settimeout(timeout_seconds)
        try:
            connection, _ = self._listener.accept()
        except (TimeoutError, BlockingIOError):
            return False
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != self._target.uid:
            connection.close()
            return False
        self._connection = connection
        self.remove()
        return True

    def read(self, timeout_seconds: float) -> dict[str, Any]:
        """Return the next thing that the process says; {} where it has hung up or says nothing in time."""
        connection = self._connection
        if connection is None:
            return {}
        connection.settimeout(timeout_seconds)
        try:
            while b"\n" not in self._received and len(self._received) < _MAX_LINE_BYTES:
                data = connection.recv(4096)
                if not data:
                    return {}
                self._received += data
            line, _, self._received = self._received.partition(b"\n")
            answer = json.loads(line)
        except (OSError, ValueError, RecursionError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def hang_up(self) -> None:
        """Ask the process to remove the client: it does so whenever this connection ends."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)

    def remove(self) -> None:
        """Remove the files and the directory. What the target's user has added to it stays."""
        for path in (self.script, self._path):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def close(self) -> None:
        """Close the sockets, which ends the client, and remove the files."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
        self.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_INJECT_TIMEOUT_SECONDS = 30.0
_START_TIMEOUT_SECONDS = 30.0
_DETACH_TIMEOUT_SECONDS = 30.0
_MAX_WORDS_BYTES = 400
_MAX_NAMES = 20
_HARMLESS_SCRIPT = "/dev/null"
_INJECTION = """\
import sys
if not hasattr(sys, "remote_exec"):
    sys.exit(f"Python {sys.version_info.major}.{sys.version_info.minor} has no sys.remote_exec, which came with 3.14")
if not sys.is_remote_debug_enabled():
    sys.exit("this Python was built without remote debugging")
try:
    sys.remote_exec(int(sys.argv[1]), sys.argv[2])
except BaseException as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


class Leftovers(NamedTuple):
    """What the process says is left of the client after it was removed."""

    threads: list[str]
    modules: list[str]
    own: bool
    """Whether the app had the client by itself, which then stays."""


class Attachment:
    """A process that has the client, until the context ends; `left` is known afterwards."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.own = False
        """Whether the app had the client by itself: then nothing was brought in."""
        self.left: Leftovers | None = None
        """None until the process has said what is left, or where it did not say."""


@contextlib.contextmanager
def attached(
    pid: int,
    *,
    client_directory: str,
    safe_point_seconds: float,
    base: str | None = None,
    inject: Callable[[Target, str], None] | None = None,
) -> Iterator[Attachment]:
    """Bring the client into a process, and remove it when the context ends.

    `base` is the directory below which script and socket are put, else the usual one; `inject` has the process run a
    script.

    Raises:
        NotAttachable: it is not possible, or the main thread reached no safe point in time.
    """
    uid = os.geteuid()
    run = inject or run_injection
    target = read_target(pid, own_uid=uid)
    check_client(client_directory, {0, uid, target.uid})
    attachment = Attachment(target)
    try:
        meeting = Rendezvous(base or find_base(uid, dict(os.environ)), target, client_directory)
    except OSError as error:
        raise NotAttachable(f"Cannot make the directory for process {pid}: {error}.") from None
    with meeting, _watch(target) as ended:
        for path in (str(meeting.script), client_directory):
            if not is_visible(pid, path):
                raise NotAttachable(
                    f"Process {pid} does not see {path}: it runs in a container, or its unit hides it. Run"
                    " `gpuagent attach` where the process runs."
                )
        _record(f"attach: user id {uid} brings the client into process {pid} of user id {target.uid}")
        run(target, str(meeting.script))
        if not meeting.accept(safe_point_seconds):
            if not ended():
                with contextlib.suppress(NotAttachable):
                    run(target, _HARMLESS_SCRIPT)  # what waits to be run is replaced, so that nothing runs later
            raise NotAttachable(_missed(pid, safe_point_seconds, ended=ended()))
        try:
            attachment.own = _started(meeting.read(_START_TIMEOUT_SECONDS), pid)
            yield attachment
        finally:
            meeting.hang_up()
            attachment.left = _left(meeting.read(_DETACH_TIMEOUT_SECONDS), own=attachment.own)
            _record(f"attach: process {pid}: {describe(attachment.left)}")


def find_client() -> str:
    """Return the directory that has the client of the agent's own installation.

    Raises:
        NotAttachable: there is none.
    """
    spec = importlib.util.find_spec("gpuagent_client")
    if spec is None or spec.origin is None:
        raise NotAttachable(
            "gpuagent-client is not installed beside gpuagent: install it there, or name its directory with --client."
        )
    return str(Path(spec.origin).resolve().parent.parent)


def check_client(directory: str, owners: set[int]) -> None:
    """Check that nobody but the `owners` can change the code that is brought in.

    Raises:
        NotAttachable: others can, or there is no client.
    """
    package = f"{directory.rstrip('/')}/gpuagent_client"
    with walk(package, owners) as walked:
        if not walked.is_directory():
            raise NotAttachable(f"There is no gpuagent_client in {directory}.")
        faults = [*map(str, walked.faults), *directory_tree_faults(walked, owners)]
    if faults:
        raise NotAttachable(f"Others can change the client that would be brought in: {faults[0]}.")


def run_injection(target: Target, script: str) -> None:
    """Have the target's interpreter call `sys.remote_exec`, with the least rights that do.

    Raises:
        NotAttachable: with what the interpreter said.
    """
    if not is_visible(target.pid, target.executable):
        raise NotAttachable(
            f"{target.executable} is not the interpreter of process {target.pid} here: it runs in a container, or the"
            " file was replaced. Run `gpuagent attach` where the process runs."
        )
    if not is_same(target):
        raise NotAttachable(f"Process {target.pid} has ended.")
    command = [target.executable, "-I", "-S", "-c", _INJECTION, str(target.pid), script]
    try:
        done = subprocess.run(  # noqa: S603  with the rights of its owner, or a file of root's
            command,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_INJECT_TIMEOUT_SECONDS,
            cwd="/",
            env={"LANG": "C.UTF-8"},
            **_rights(target),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotAttachable(f"{target.executable} cannot be run: {error}.") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise NotAttachable(explain(target.pid, printable(said, _MAX_WORDS_BYTES)))


def _rights(target: Target) -> dict[str, Any]:
    """Return whose rights the interpreter gets: root's own only where root alone can write the interpreter."""
    if os.geteuid() != 0 or target.uid == 0:
        return {}
    with walk(target.executable, {0}) as walked:
        if not walked.faults:
            return {}
    return {"user": target.uid, "group": target.gid, "extra_groups": []}


def explain(pid: int, said: str, yama: Path = _YAMA) -> str:
    """Return what the interpreter said, and what to do where the kernel did not allow it."""
    if said.startswith("PermissionError"):
        scope = ""
        with contextlib.suppress(OSError):
            scope = yama.read_text().strip()
        advice = f" kernel.yama.ptrace_scope is {scope}:" if scope not in {"", "0"} else ""
        return f"The kernel does not let process {pid} be attached to.{advice} Run it as root. {NEXT_START}"
    return f"Process {pid} cannot be attached to: {said}. {NEXT_START}"


@contextlib.contextmanager
def _watch(target: Target) -> Iterator[Callable[[], bool]]:
    """Keep a pidfd, and yield a function that returns whether the process has ended."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except OSError as error:
        raise NotAttachable(f"Process {target.pid} cannot be held: {error.strerror}.") from None
    try:
        if not is_same(target):
            raise NotAttachable(f"Process {target.pid} has ended.")
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        yield lambda: bool(poll.poll(0))
    finally:
        os.close(descriptor)


def _missed(pid: int, seconds: float, *, ended: bool) -> str:
    if ended:
        return f"Process {pid} has ended."
    return (
        f"The main thread of process {pid} did not run Python code within {seconds:g} s: it may wait in a call into C"
        " (a lock, a read, a CUDA synchronization). Nothing was started. Try again with a longer --wait."
    )


def _started(answer: dict[str, Any], pid: int) -> bool:
    """Return whether the app had the client by itself."""
    if answer.get("state") == "started":
        return bool(answer.get("own"))
    why = printable(str(answer.get("why") or "it did not say why"), _MAX_WORDS_BYTES)
    raise NotAttachable(f"The client did not start in process {pid}: {why}.")


def _left(answer: dict[str, Any], *, own: bool) -> Leftovers | None:
    if answer.get("state") != "detached":
        return None
    threads, modules = answer.get("threads"), answer.get("modules")
    if not isinstance(threads, list) or not isinstance(modules, list):
        return None
    return Leftovers(_names(threads), _names(modules), own)


def _names(said: list[Any]) -> list[str]:
    return [printable(str(name), _MAX_WORDS_BYTES) for name in said[:_MAX_NAMES]]


def describe(left: Leftovers | None) -> str:
    """Return in words what is left of the client in the process."""
    if left is None:
        return "the process did not say that the client was removed; it is removed when its thread runs again"
    if left.own:
        return "the app has the client by itself, and keeps it"
    if left.threads or left.modules:
        return f"not all of the client was removed: {', '.join([*left.threads, *left.modules])}"
    return "the client was removed"


def _record(text: str) -> None:
    """Write to the log of security events: who reached into which process."""
    syslog.openlog("gpuagent", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
    syslog.syslog(syslog.LOG_NOTICE, text)
    syslog.closelog()
