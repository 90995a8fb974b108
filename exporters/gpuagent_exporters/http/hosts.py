"""The names under which this machine may be asked, and the check of `Host` around everything that TCP serves.

A browser sends the name in its address bar as `Host`, and a page that was loaded under a name of its own can make that
name resolve to any address ("DNS rebinding"). So `Host` says whether a page could have come from a stranger. What is
allowed rests on what root has written here (hostname, /etc/hosts, the configuration), and on what a stranger's page
cannot have: an IP address, a name without a dot, a name below a domain in which this machine looks for names.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent_exporters.http.middleware import SECURITY_HEADERS, error_response

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOSTS = Path("/etc/hosts")
_RESOLV_CONF = Path("/etc/resolv.conf")

_HOST_HEADER = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{0,5})?", re.ASCII)
"""uri-host with an optional port (RFC 9110, section 7.2); no user, no zone, nothing around it."""
_NUMERIC_LABEL = re.compile(r"\d+|0[xX][0-9A-Fa-f]*", re.ASCII)
"""A name that ends in one of these is an IPv4 address to a browser (https://url.spec.whatwg.org/#ends-in-a-number-checker)."""
_PRIVATE_TOP_LEVEL = frozenset({"corp", "home", "internal", "intranet", "lan", "local", "localdomain", "private"})
"""Top-level domains that nobody can register under (RFC 6762, appendix G)."""


@dataclass(frozen=True, slots=True)
class HostNames:
    """What a `Host` header may say. All names are in lower case, without a dot at their end."""

    own: frozenset[str]
    """Names of this very machine."""
    domains: frozenset[str] = frozenset()
    """Domains in which this machine looks for short names; they may come from a network's DHCP server, so they count
    only where the network can ask anyway, and not on loopback."""
    allowed: frozenset[str] = frozenset()
    """Names that the configuration adds; one that begins with `*.` stands for all names below a domain."""

    def allow(self, host: str, *, loopback: bool) -> bool:
        """Return whether a request under `host`, the value of the header, may be answered.

        Args:
            host: What the client sent, "" for nothing.
            loopback: Whether the connection was made to a loopback address, which any page of a browser on this
                machine can reach.
        """
        parsed = _HOST_HEADER.fullmatch(host)
        if parsed is None:
            return False
        literal = parsed["ipv6"] or parsed["name"]
        address = _address(literal)
        if parsed["ipv6"] or address is not None:
            as_written = address is not None and (address.version == 6) is bool(parsed["ipv6"])
            return as_written and (not loopback or is_loopback_address(literal))
        return self._allows_name(_normal(literal), loopback=loopback)

    def _allows_name(self, name: str, *, loopback: bool) -> bool:
        *_, last = labels = name.split(".")
        if "" in labels or _NUMERIC_LABEL.fullmatch(last):
            return False
        if name in self.own or last == "localhost" or self._is_configured(labels):
            return True
        if loopback:
            return False
        return len(labels) == 1 or not self.domains.isdisjoint(_parents(labels))

    def _is_configured(self, labels: list[str]) -> bool:
        return ".".join(labels) in self.allowed or any(f"*.{parent}" in self.allowed for parent in _parents(labels))


def host_names(
    hostname: str | None = None,
    *,
    allowed: Iterable[str] = (),
    hosts: Path = _HOSTS,
    resolv_conf: Path = _RESOLV_CONF,
) -> HostNames:
    """Return the names of this machine. A file that cannot be read adds none.

    Args:
        hostname: The machine's name, by default what the kernel says.
        allowed: Further names, or `*.DOMAIN`.
        hosts: The file of hosts(5). A line that names this machine has other names of it.
        resolv_conf: The file of resolv.conf(5). `search` has the domains of short names.
    """
    full = _normal(hostname or socket.gethostname())
    short = full.partition(".")[0]
    domains = frozenset(_search_domains(_lines(resolv_conf)))
    own = frozenset({"localhost", full, short})
    return HostNames(own | _aliases({full, short}, _lines(hosts)), domains, frozenset(map(_normal, allowed)))


def _aliases(names: Collection[str], lines: Iterable[list[str]]) -> set[str]:
    """Return all names of the lines of hosts(5) that have one of `names`."""
    found: set[str] = set()
    for line in lines:
        on_line = set(map(_normal, line[1:]))
        if not on_line.isdisjoint(names):
            found |= on_line
    return found


def _search_domains(lines: Iterable[list[str]]) -> Iterator[str]:
    """Yield the domains of resolv.conf(5) that strangers cannot register names under."""
    for line in lines:
        if line[0] in {"search", "domain"}:
            for domain in map(_normal, line[1:]):
                if "." in domain or domain in _PRIVATE_TOP_LEVEL:
                    yield domain


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line that has any, without comments."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        if words := re.split(r"[#;]", line, maxsplit=1)[0].split():
            yield words


def _parents(labels: list[str]) -> Iterator[str]:
    """Yield `b.c` and `c` for the labels of `a.b.c`."""
    return (".".join(labels[start:]) for start in range(1, len(labels)))


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")


def _address(text: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_loopback_address(text: str) -> bool:
    """Return whether a local address, such as `127.0.0.1` or `::ffff:127.0.0.1`, is loopback; True for no address.

    What is not known to be open is held to the rules of loopback, which are the stricter ones.
    """
    address = _address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address is None or address.is_loopback


log = logging.getLogger(__name__)

_ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_MAX_LOGGED = 8
"""How many names are logged, each once: strangers choose them."""
_MESSAGE = (
    "This address is not served under the name in Host. Use localhost, an IP address or this machine's name; "
    "http.allowed_hosts in the configuration adds names."
)


class CheckHost:
    """Refuses requests under somebody else's name, against DNS rebinding; see `host_names`.

    `Host` must be there and be allowed, and so must the authority of a request target in absolute form, which stands
    above it (RFC 9112, section 3.2.2).

    Args:
        app: What is guarded.
        names: The names that are served.
        authenticated: Whether connections need TLS or a password. Then any name will do on an address that is not
            loopback: a page under a stranger's name has neither this machine's certificate nor the user's password.
    """

    def __init__(self, app: ASGIApp, names: HostNames, authenticated: Callable[[], bool]) -> None:
        self._app = app
        self._names = names
        self._authenticated = authenticated
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        loopback = is_loopback_address(server[0] if server else "")
        refused = [host for host in _hosts(scope) if not self._names.allow(host, loopback=loopback)]
        if refused and (loopback or not self._authenticated()):
            self._log(refused[0])
            response = error_response(HTTPStatus.MISDIRECTED_REQUEST, _MESSAGE, SECURITY_HEADERS)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _log(self, host: str) -> None:
        """Tell the operator, whose scraper may use a name that is not known here."""
        host = host[:100]
        if host not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(host)
            log.warning("refused a request for host %r: add it to http.allowed_hosts if it is this machine's", host)


def _hosts(scope: Scope) -> list[str]:
    """Return each host that a request names, "" for a missing one."""
    hosts = [Headers(scope=scope).get("host", "")]
    target: bytes = scope.get("raw_path", b"/")
    if not target.startswith(b"/") and target != b"*":
        absolute = _ABSOLUTE_FORM.match(target)
        hosts.append((absolute[1] if absolute else target).decode("latin-1"))
    return hosts
