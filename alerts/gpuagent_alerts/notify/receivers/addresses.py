"""Which addresses a name has, and where no message may go: a receiver is never link-local, but cloud metadata is.

Looked at after the name was resolved, and those addresses are then connected to: what a name server says cannot lead
there either, nor change between the look and the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Function from a name and a port to addresses, the best one first. Raises OSError."""

MAX_ADDRESSES = 4
"""Most addresses that are tried for one message: there is a deadline."""
_METADATA = frozenset({
    "fd00:ec2::254",  # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    "fd20:ce::254",  # https://cloud.google.com/compute/docs/metadata/querying-metadata
    "100.100.100.200",  # https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
})  # fmt: skip
"""Metadata services of clouds outside 169.254.0.0/16 and fe80::/10."""


class ForbiddenAddressError(ValueError):
    """No message goes there."""


class Resolver:
    """The system's name service, in threads of its own: one that hangs must not take those that write to the disk."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(4, "names")
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def close(self) -> None:
        """Wait for nobody: a name server may take its time."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def is_forbidden(address: str) -> bool:
    """Return whether it is link-local or a cloud's metadata service. Raises ValueError for what is no address."""
    parsed = ipaddress.ip_address(address)
    inner = getattr(parsed, "ipv4_mapped", None) or parsed
    return inner.is_link_local or str(inner) in _METADATA


async def allowed_addresses(host: str, port: int, resolve: Resolve) -> Sequence[str]:
    """Return where to connect to for a host, a few addresses at most.

    Raises ForbiddenAddressError if there is nothing else, and OSError for a name that cannot be resolved.
    """
    try:
        ipaddress.ip_address(host)
        found: Sequence[str] = [host]
    except ValueError:
        found = await resolve(host, port)
    allowed = [address for address in found if not is_forbidden(address)]
    if not allowed:
        raise ForbiddenAddressError
    return allowed[:MAX_ADDRESSES]
