"""What is told of a simulated node says so, whoever is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuagent_alerts.alert import Message
from gpuagent_alerts.notify.outbox.attempt import MessageContext
from gpuagent_alerts.notify.receivers.pagerduty import event
from gpuagent_alerts.notify.receivers.slack_message import payload
from gpuagent_alerts.notify.receivers.text import plain_text
from gpuagent_alerts.notify.receivers.webhook import version_4
from tests.alerts.messages import CONTEXT, alert, message

MADE_UP = replace(CONTEXT, simulated=True)
TITLES: dict[str, Callable[[Message, MessageContext], str]] = {
    "slack": lambda told, context: payload(told, context)["text"],
    "pagerduty": lambda told, context: json.loads(event(told, context, "key"))["payload"]["summary"],
    "plain": plain_text,
}


@pytest.mark.parametrize("receiver", TITLES)
@pytest.mark.parametrize("ended", [False, True], ids=["firing", "resolved"])
def test_the_first_word_says_so(receiver: str, ended: bool) -> None:
    """Who is woken by a simulation sees it before anything else; of a real node the word is never said."""
    told = message(alert(ended=ended))
    assert TITLES[receiver](told, MADE_UP).startswith("SIMULATED ")
    assert "simulated" not in TITLES[receiver](told, CONTEXT).lower()


def test_a_program_can_tell() -> None:
    """`simulated` is true in the webhook's document of a simulated node, and false in a real one's."""
    real, made_up = version_4(message(), CONTEXT), version_4(message(), MADE_UP)
    assert (real["simulated"], made_up["simulated"]) == (False, True)
    assert made_up == real | {"simulated": True, "headline": f"SIMULATED {real['headline']}"}
