"""The check of `Host` around everything that a TCP address serves: every route, every error, every method."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent_exporters.guards import SECURITY_HEADERS, error_response
from gpuagent_exporters.host_names import HostNames, is_loopback_address

logger = logging.getLogger(__name__)

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
            logger.warning("refused a request for host %r: add it to http.allowed_hosts if it is this machine's", host)


def _hosts(scope: Scope) -> list[str]:
    """Return each host that a request names, "" for a missing one."""
    hosts = [Headers(scope=scope).get("host", "")]
    target: bytes = scope.get("raw_path", b"/")
    if not target.startswith(b"/") and target != b"*":
        absolute = _ABSOLUTE_FORM.match(target)
        hosts.append((absolute[1] if absolute else target).decode("latin-1"))
    return hosts
