"""Opening sockets to listen on, with a plain sentence where that fails.

A `ListenError` is read by whoever has just started the agent, so it says what is in the way and
what to do.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import grp
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

BACKLOG = 128
_PROBE_SECONDS = 1.0
_MAX_PATH_BYTES = 107  # sockaddr_un.sun_path is 108 bytes with its NUL: unix(7)


class ListenError(Exception):
    """An address cannot be listened on; the text says why, and what to do."""


class ListenAddress(NamedTuple):
    """`HOST:PORT`; an empty host is every address of the machine, port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Return the address in `127.0.0.1:9837`, `[::1]:9837`, `localhost:9837` or `:9837`.

    Raises ListenError.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or (":" in host and not bracketed):
        raise ListenError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9837, [::1]:9837 or :9837")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ListenError(f"{text!r} has no port from 0 to 65535 after its last colon")
    return ListenAddress(host, int(port))


def is_loopback(text: str) -> bool:
    """Return whether only this machine can reach a listen address. Raises ListenError if it is none."""
    host = parse_listen(text).host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def open_tcp(text: str) -> list[socket.socket]:
    """Open listening sockets for an address: one, or one for each address that a name stands for.

    Raises ListenError.
    """
    address = parse_listen(text)
    if not address.host:
        return [_bind_everywhere(address)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: no such host name ({error.strerror})") from error
    opened: list[socket.socket] = []
    try:
        for family, _, _, _, target in dict.fromkeys(found):
            port = opened[0].getsockname()[1] if opened else target[1]  # port 0: the same for all
            opened.append(_bind(family, (target[0], port, *target[2:]), address))
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


def _bind_everywhere(address: ListenAddress) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # a kernel with IPv6 switched off has the family and no addresses
            return socket.create_server(
                ("", address.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
            )
    return _bind(socket.AF_INET, ("", address.port), address)


def _bind(family: int, target: tuple[object, ...], address: ListenAddress) -> socket.socket:
    try:
        return socket.create_server(target, family=family, backlog=BACKLOG)
    except OSError as error:
        raise ListenError(_tcp_reason(error, address)) from error


def _tcp_reason(error: OSError, address: ListenAddress) -> str:
    reasons = {
        errno.EADDRINUSE: (
            f"port {address.port} is in use, perhaps by another gpuagent "
            f"(`ss -ltnp 'sport = :{address.port}'` tells by whom)"
        ),
        errno.EACCES: "ports below 1024 need root or CAP_NET_BIND_SERVICE",
        errno.EPERM: "the system does not permit it",
        errno.EADDRNOTAVAIL: "this machine does not have that address",
        errno.EAFNOSUPPORT: "this machine does not have that kind of address",
    }
    return f"cannot listen on {address}: {reasons.get(error.errno or 0, error.strerror)}"


class UnixListener(NamedTuple):
    """A listening unix socket and the inode of its file, to tell it from one that replaced it."""

    socket: socket.socket
    path: Path
    inode: tuple[int, int]

    def close(self) -> None:
        """Stop listening, and remove the file if it is still this one."""
        self.socket.close()
        with suppress(OSError):
            if _inode(self.path) == self.inode:
                self.path.unlink()


_SO_PASSRIGHTS = 83
"""include/uapi/asm-generic/socket.h, Linux 6.16; Python has no name for it."""


def descriptors_refused(sock: socket.socket) -> bool:
    """Return whether the kernel refuses whoever would send descriptors to this socket (SCM_RIGHTS)."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS) == 0
    except OSError:  # ENOPROTOOPT: before Linux 6.16
        return False


def open_unix(
    path: Path, *, mode: int, group: str | None, pass_credentials: bool = False, refuse_descriptors: bool = True
) -> UnixListener:
    """Listen on a unix socket whose file is at no moment more open than `mode`.

    With `pass_credentials` the kernel attaches its sender to each message, from the first one on; with
    `refuse_descriptors`, since Linux 6.16, who sends descriptors gets EPERM: accepted sockets inherit both options.
    What an agent that was killed left behind is replaced. Raises ListenError.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise ListenError(f"cannot listen on {path}: longer than {_MAX_PATH_BYTES} bytes, the kernel's limit")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone_in(path.parent):
            _clear(path)
            # Linux gives the file the mode of its socket, so it is closed from the first moment.
            # umask(2) would do that too, and to the files of every other thread.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(str(path))
            inode = _inode(path)
            # A service whose own group it is may not be allowed the call (SystemCallFilter=~@chown).
            if group is not None and path.lstat().st_gid != (group_id := _group_id(group)):
                os.chown(path, -1, group_id)
            path.chmod(mode)
            if pass_credentials:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            if refuse_descriptors:
                with suppress(OSError):
                    listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {path}: {_unix_reason(error, path)}") from error
    except BaseException:
        listener.close()
        raise
    return UnixListener(listener, path, inode)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep a second agent from taking a socket for stale that a first one is only just binding."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ListenError(f"another gpuagent is just starting in {folder}") from error
        yield
    finally:
        os.close(lock)


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on. Raises ListenError for anything else."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ListenError(f"cannot listen on {path}: something that is not a socket is there; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        refused = probe.connect_ex(str(path)) == errno.ECONNREFUSED
    if not refused:
        raise ListenError(f"another gpuagent is running: it answers on {path}")
    path.unlink()


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise ListenError(f"there is no group {name!r}; create it with `groupadd --system {name}`") from error


def _unix_reason(error: OSError, path: Path) -> str:
    reasons = {
        errno.ENOENT: f"the folder {path.parent} does not exist",
        errno.EACCES: f"no permission to write to {path.parent}",
        errno.EROFS: f"{path.parent} is read-only",
        errno.EPERM: "no permission to give the socket to its group",
    }
    return reasons.get(error.errno or 0, error.strerror or str(error))


def _inode(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
