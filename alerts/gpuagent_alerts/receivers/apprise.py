"""Whatever Apprise can reach (https://github.com/caronc/apprise), e-mail included; an optional package.

It runs in a process of its own, which has neither the proxies of the environment nor a way to hold up the agent: a mail
server that hangs is ended with it. The address goes through its standard input, where no other process can see it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.outcome import DELIVERED, Outcome, Reason
from gpuagent_alerts.outbox.sender import Context
from gpuagent_alerts.receivers.apprise_program import BAD_ADDRESS, NOT_INSTALLED
from gpuagent_alerts.receivers.program import run_program
from gpuagent_alerts.receivers.secret import Secret
from gpuagent_alerts.receivers.text import headline, is_over, plain

_TIMEOUT_SECONDS = 30.0
"""A mail server may take its time; loading Apprise alone takes a second."""
_PROGRAM = "gpuagent_alerts.receivers.apprise_program"


@dataclass(frozen=True, slots=True)
class Apprise:
    """Tells one address in Apprise's notation."""

    url: Secret
    timeout_seconds: float = _TIMEOUT_SECONDS

    async def send(self, message: Message, context: Context) -> Outcome:
        """Raises Misconfigured."""
        request = {
            "url": self.url.line(),
            "title": headline(message, context),
            "body": plain(message, context),
            "type": "success" if is_over(message) else "failure",
        }
        command = (sys.executable, "-I", "-m", _PROGRAM)
        finished = await run_program(command, json.dumps(request).encode(), self.timeout_seconds)
        if finished.status == 0:
            return DELIVERED
        if finished.status is None:
            return Outcome(Reason.TIMED_OUT, "it did not answer in time")
        if finished.status == NOT_INSTALLED:
            return Outcome(Reason.MISCONFIGURED, "the package apprise is not installed: pip install gpuagent[apprise]")
        if finished.status == BAD_ADDRESS:
            return Outcome(Reason.MISCONFIGURED, "Apprise does not know this kind of address")
        return Outcome(Reason.FAILED, "Apprise could not deliver it")  # what it says may hold the address
