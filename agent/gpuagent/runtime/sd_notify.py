"""Telling systemd how we are: the sd_notify protocol (man 3 sd_notify), which is one datagram per message."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class SystemdNotifier:
    """Silent where the agent was not started by systemd. A message that is lost is never an error."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._status = ""
        watchdog = environ.get("WATCHDOG_USEC", "")
        own = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_seconds = int(watchdog) / 1e6 if watchdog.isdecimal() and own else None
        """Within this time systemd wants to hear from us; None if it does not watch."""

    def ready(self) -> None:
        """Tell systemd that the first collection has been tried."""
        self._send("READY=1")

    def reloading(self, monotonic_microseconds: int) -> None:
        """Tell systemd that the configuration is being read again; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={monotonic_microseconds}")

    def stopping(self) -> None:
        """Tell systemd that the agent is on its way out."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Tell systemd's watchdog that the loop turns."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows; sent when it changes."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.setblocking(False)  # a receiver that does not read must not stop the loop
                notify.sendto(message.encode(), self._address)
        except OSError as error:
            log.debug("systemd was not told %r: %s", message, error)
