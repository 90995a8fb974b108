"""Reports of usage that are sent once a week."""

from __future__ import annotations

from typing import Literal

from gpuagent.config.values import Text
from gpuagent.core.sections import Section, key

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
REPORT_KINDS = ("webhook", "apprise", "exec")
"""Kinds of receivers that can be sent a report: to others it would be an alert."""


class Report(Section):
    """Usage of the last seven days (`gpuagent usage`), sent once a week. Off until there is one."""

    receivers: tuple[Text, ...] = key(
        min_length=1, description="Names of receivers: a webhook, a program, or mail through Apprise."
    )
    by: Literal["user", "unit", "container", "namespace", "pod", "job", "gpu"] = key(
        default="user", description="What usage is summed up by."
    )
    weekday: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = key(
        default="monday", description="The day on which it is sent."
    )
    hour: int = key(default=8, ge=0, le=23, description="The hour at which it is sent, by UTC.")
    format: Literal["markdown", "html"] = key(default="markdown", description="The form of its text.")
