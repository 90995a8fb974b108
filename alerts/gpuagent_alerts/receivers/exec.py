"""A program of the user's own: the message as JSON on its standard input, exit status 0 when it has told.

The JSON is that of the webhook, and `id`, which stays the same when the program is run again for the same message.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from gpuagent_alerts.alert import Message
from gpuagent_alerts.outbox.outcome import DELIVERED, Outcome, Reason
from gpuagent_alerts.outbox.sender import Context
from gpuagent_alerts.receivers.masker import Masker
from gpuagent_alerts.receivers.program import run_program
from gpuagent_alerts.receivers.secret_forms import argument_secrets
from gpuagent_alerts.receivers.webhook import version_4

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class Exec:
    """Runs a command."""

    command: tuple[str, ...]
    timeout_seconds: float = 10.0
    masker: Masker = field(default_factory=Masker, repr=False, compare=False)

    async def send(self, message: Message, context: Context) -> Outcome:
        """Run it once."""
        document = version_4(message, context) | {"id": message.id}
        finished = await run_program(self.command, json.dumps(document).encode(), self.timeout_seconds)
        if finished.status == 0:
            return DELIVERED
        if finished.status is None:
            return Outcome(Reason.TIMED_OUT, f"the program was ended after {self.timeout_seconds:g} s")
        how = f"status {finished.status}" if finished.status > 0 else f"signal {-finished.status}"
        _, newline, last = finished.said.rstrip().rpartition("\n")
        whole = finished.whole or bool(newline)
        last = self.masker.hide(last, argument_secrets(self.command), starts=whole)[:_SHOWN]
        return Outcome(Reason.FAILED, f"the program ended with {how}" + (f": {last}" if last else ""))
