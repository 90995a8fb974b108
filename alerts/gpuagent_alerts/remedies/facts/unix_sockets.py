"""The unix sockets of a network namespace that somebody listens on: what each is called, and whose it is.

What a socket is called is up to who binds it, line breaks included, and /proc/net/unix does not escape them: a name may
look like further lines of that table. So the kernel is asked over netlink (sock_diag(7)), where a name is an attribute
with a length. That tells of the agent's own network namespace. The table is read for another one, and where netlink is
not to be had; then what looks like a socket may be a part of a name, and a line that is none costs itself alone.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuagent_alerts.remedies.facts.open_terminals import copy_descriptor

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST, _NLM_F_DUMP = 0x1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_TCP_LISTEN = 10
"""State of a socket that listens, of any family: include/net/tcp_states.h."""
_SHOW_NAME, _SHOW_UID = 0x1, 0x40
_NAME, _UID = 0, 7
"""Attributes: include/uapi/linux/unix_diag.h. The user is told since Linux 5.3."""
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
"""`struct unix_diag_req`."""
_MESSAGE = struct.Struct("=BBBBIII")
"""`struct unix_diag_msg`."""
_ATTRIBUTE = struct.Struct("=HH")
_RECEIVED_BYTES = 65536
_SECONDS = 5.0
_LINE = re.compile(rb"[^ ]+: [0-9A-F]{8} [0-9A-F]{8} 0001[0-9A-F]{4} [0-9A-F]{4} 01 +([0-9]{1,20}) (.+)", re.DOTALL)
"""One that listens (__SO_ACCEPTCON, state SS_UNCONNECTED) and has a name: `unix_seq_show`, net/unix/af_unix.c."""


class ListeningSocket(NamedTuple):
    """A unix socket that somebody listens on."""

    inode: int
    """N of the link `socket:[N]` of a descriptor for it."""
    name: bytes
    """Its path; an abstract one begins with a zero byte, or `@` where a table tells it."""
    uid: int | None = None
    """User who has made it; None where the kernel does not tell."""


def read_own_namespace() -> Iterator[ListeningSocket]:
    """Yield those of the agent's own network namespace that have a name. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asked:
        asked.settimeout(_SECONDS)
        request = _REQUEST.pack(socket.AF_UNIX, 0, 0, 1 << _TCP_LISTEN, 0, _SHOW_NAME | _SHOW_UID, 0, 0)
        flags = _NLM_F_REQUEST | _NLM_F_DUMP
        asked.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, flags, 1, 0) + request)
        while True:
            for kind, body in _messages(asked.recv(_RECEIVED_BYTES)):
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    number = -int.from_bytes(body[:4], "little", signed=True)
                    raise OSError(number, os.strerror(number))
                if kind == _SOCK_DIAG_BY_FAMILY and (found := _socket(body)):
                    yield found


def parse_table(lines: Iterable[bytes]) -> Iterator[ListeningSocket]:
    """Yield those that a `net/unix` of /proc tells of; a name may have others in it that there are not."""
    for line in lines:
        if found := _LINE.fullmatch(line.removesuffix(b"\n")):
            yield ListeningSocket(int(found[1]), found[2])


def name_of_copy(pid: int, descriptor: int) -> bytes | None:
    """Return what the socket of a descriptor of another process is called; None where nobody listens on it.

    Raises OSError, PermissionError where the agent may not have a copy of the descriptor.
    """
    own = copy_descriptor(pid, descriptor)
    try:
        copy = socket.socket(fileno=own)
    except OSError:  # it is something else by now
        os.close(own)
        raise
    with copy:
        if copy.family != socket.AF_UNIX or not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        return os.fsencode(copy.getsockname())


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each netlink message: its type, and what stands behind its header."""
    start = 0
    while start + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, start)
        if length < _HEADER.size:
            return
        yield kind, data[start + _HEADER.size : start + length]
        start += (length + 3) & ~3


def _socket(body: bytes) -> ListeningSocket | None:
    """Return a socket; None for one without a name."""
    if len(body) < _MESSAGE.size:
        return None
    inode = _MESSAGE.unpack_from(body)[4]
    attributes = dict(_attributes(body[_MESSAGE.size :]))
    if not (name := attributes.get(_NAME)):
        return None
    uid = attributes.get(_UID)
    # A path has the zero byte behind it, which is no part of it.
    return ListeningSocket(inode, name.rstrip(b"\0"), struct.unpack("=I", uid)[0] if uid else None)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3
