"""A program of the user's own: the message as JSON on its standard input, exit status 0 when it has told.

The JSON is that of the webhook, and `id`, which stays the same when the program is run again for the same message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuagent_alerts.alert import Message
from gpuagent_alerts.masker import Masker
from gpuagent_alerts.notify.outbox.attempt import DELIVERED, DeliveryOutcome, MessageContext, Reason
from gpuagent_alerts.notify.receivers.base import Dependencies, ReceiverKind
from gpuagent_alerts.notify.receivers.settings import KeyType, key
from gpuagent_alerts.notify.receivers.webhook import version_4
from gpuagent_alerts.programs.run import run_program
from gpuagent_alerts.secret import argument_secrets

_SHOWN = 160


@dataclass(frozen=True, slots=True)
class ExecConfig:
    """A program of your own: the message as JSON on its standard input. No shell is involved."""

    command: tuple[str, ...] = key(KeyType.TEXTS, "The program and its arguments, one list item each.")
    timeout: float = key(
        KeyType.DURATION, "It is ended when it takes longer than this.", default=10.0, least=1, most=300
    )


@dataclass(frozen=True, slots=True)
class Exec:
    """Runs a command."""

    command: tuple[str, ...]
    timeout_seconds: float = 10.0
    masker: Masker = field(default_factory=Masker, repr=False, compare=False)

    async def send(self, message: Message, context: MessageContext) -> DeliveryOutcome:
        """Run it once."""
        document = version_4(message, context) | {"id": message.id}
        finished = await run_program(self.command, json.dumps(document).encode(), self.timeout_seconds)
        if finished.status == 0:
            return DELIVERED
        if finished.status is None:
            return DeliveryOutcome(Reason.TIMED_OUT, f"the program was ended after {self.timeout_seconds:g} s")
        how = f"status {finished.status}" if finished.status > 0 else f"signal {-finished.status}"
        _, newline, last = finished.said.rstrip().rpartition("\n")
        whole = finished.whole or bool(newline)
        last = self.masker.hide(last, argument_secrets(self.command), starts=whole)[:_SHOWN]
        return DeliveryOutcome(Reason.FAILED, f"the program ended with {how}" + (f": {last}" if last else ""))


class ExecKind(ReceiverKind[ExecConfig]):
    """Programs."""

    name = "exec"
    settings = ExecConfig

    def address(self, config: ExecConfig) -> None:
        """Return None: a command is no secret address."""

    def transport(self, config: ExecConfig, receiver: str, shared: Dependencies) -> Exec:  # noqa: ARG002
        """Return what runs the command."""
        return Exec(config.command, config.timeout, shared.masker)

    def secret_arguments(self, config: ExecConfig) -> Iterator[str]:
        """Return what looks like a secret in the command line."""
        return argument_secrets(config.command)
