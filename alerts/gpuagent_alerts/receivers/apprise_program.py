"""Tells one address through Apprise: a program, with its request as JSON on its standard input."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping

from gpuagent_alerts.receivers.addresses import is_forbidden

DELIVERED = 0
NOT_DELIVERED = 3
NOT_INSTALLED = 4
BAD_ADDRESS = 5


def tell(request: Mapping[str, str]) -> int:
    """Returns the exit status."""
    try:
        import apprise  # noqa: PLC0415 (optional)
    except ImportError:
        return NOT_INSTALLED
    sys.addaudithook(refuse_forbidden)
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    # A redirect would be followed as a GET, and the message lost.
    sender = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
    if not sender.add(_without_redirects(request["url"])):
        return BAD_ADDRESS
    told = sender.notify(title=request["title"], body=request["body"], notify_type=request["type"])
    return DELIVERED if told else NOT_DELIVERED


def refuse_forbidden(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: whatever Apprise makes of a name, no connection leads to a link-local address."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if isinstance(address, tuple) and isinstance(address[0], str) and _is_known_to_be_forbidden(address[0]):
        raise PermissionError("a link-local address")


def _is_known_to_be_forbidden(address: str) -> bool:
    try:
        return is_forbidden(address)
    except ValueError:
        return False


def _without_redirects(url: str) -> str:
    """Also where the address itself asks for redirects: of two settings the last one counts."""
    return f"{url}{'&' if '?' in url else '?'}redirect=no"


if __name__ == "__main__":
    sys.exit(tell(json.load(sys.stdin)))
