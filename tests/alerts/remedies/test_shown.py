"""A request names the process that the person was shown: whoever else has its pid by then is left alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.service.remedies import RemedyCommands
from gpuagent_alerts.remedies.manual_requests import read_identified
from gpuagent_alerts.store.database import Store
from gpuagent_exporters.api.process_routes import NotDone
from tests.alerts.remedies.processes import PLAIN, running
from tests.alerts.remedies.staging import read, stage

ASKS = ("kill", "release", "unload")
GOOD = {"start_ticks": 1234, "boot_id": "b", "pid_namespace": 4026531836, "card": "k-00"}


def ask(commands: RemedyCommands, name: str) -> Callable[[int, dict[str, Any], int], Awaitable[dict[str, Any]]]:
    """One of the three requests that act on a process."""
    found: Callable[[int, dict[str, Any], int], Awaitable[dict[str, Any]]] = getattr(commands, name)
    return found


@pytest.mark.parametrize("name", ASKS)
def test_a_pid_alone_names_no_process(tmp_path: Path, name: str) -> None:
    """Every field that is missing is named, for a caller of any age, and nothing is on record."""

    async def story(pid: int) -> None:
        async with stage(read({}), Store(tmp_path / "state.db"), {"leaker": pid}) as one:
            commands = RemedyCommands(one.service)
            some: list[dict[str, Any]] = [{}, {"force": True}, *({key: GOOD[key]} for key in SHOWN_FIELDS)]
            for given in some:
                missing = ", ".join(key for key in SHOWN_FIELDS if key not in given)
                with pytest.raises(ValueError, match=f"missing: {missing};"):
                    await ask(commands, name)(pid, given, 0)
            assert (await one.service.document())["remedies"] == []

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
        assert leaker.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda shown: {"start_ticks": shown["start_ticks"] - 1}, "is another process now"),
        (lambda shown: {"start_ticks": shown["start_ticks"] + 1}, "is another process now"),
        (lambda _: {"boot_id": "another"}, "before the machine was started again"),
        (lambda shown: {"pid_namespace": shown["pid_namespace"] + 1}, "in another pid namespace"),
        (lambda _: {"pid_namespace": None}, "in another pid namespace"),
    ],
    ids=["older", "younger", "other boot", "other namespace", "unknown namespace"],
)
def test_another_process_is_refused(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]], says: str
) -> None:
    """Each field counts: 409 in words, also where it is forced or a dry run, and nothing on record or done."""

    async def story(pid: int) -> None:
        async with stage(read({}), Store(tmp_path / "state.db"), {"leaker": pid}) as one:
            shown = one.shown(pid)
            for further in ({}, {"force": True}, {"dry_run": True}):
                with pytest.raises(NotDone, match=says) as refused:
                    await ask(RemedyCommands(one.service), name)(pid, {**shown, **change(shown), **further}, 0)
                assert refused.value.status == 409
            assert (await one.service.document())["remedies"] == []

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
        assert leaker.poll() is None


@pytest.mark.parametrize(
    "change",
    [
        {"start_ticks": 0}, {"start_ticks": 7.5}, {"start_ticks": 1234.0}, {"start_ticks": math.inf},
        {"start_ticks": math.nan}, {"start_ticks": "1234"}, {"start_ticks": True}, {"start_ticks": 2**63},
        {"boot_id": ""},
        {"boot_id": 7}, {"boot_id": None}, {"pid_namespace": 0}, {"pid_namespace": 2**32}, {"pid_namespace": "x"},
        {"ends_with_it": 7}, {"ends_with_it": [7]}, {"ends_with_it": [[7]]}, {"ends_with_it": [[7, 0]]},
        {"ends_with_it": [[True, 7]]}, {"ends_with_it": None}, {"card": ""}, {"card": 7}, {"card": None},
        {"ends_with_it": [[7, 70.0]]}, {"pid_namespace": 7.0}, {"together": 7},
        {"together": [[7]]}, {"together": [[7, 0]]},
    ],
)  # fmt: skip
def test_what_names_no_process_is_no_request(change: dict[str, Any]) -> None:
    """A field of another kind is a fault of the caller's, never taken for a match or for unknown."""
    wanted = (*GOOD.values(), frozenset(), frozenset())
    assert tuple(read_identified(GOOD)) == wanted
    assert read_identified(GOOD | {"ends_with_it": [[7, 70], [8, 80]]}).ends_with_it == {(7, 70), (8, 80)}
    assert read_identified(GOOD | {"together": [[9, 90]]}).together == {(9, 90)}
    assert read_identified(GOOD | {"pid_namespace": None}).pid_namespace is None
    with pytest.raises(ValueError, match=f"{next(iter(change))} must be"):
        read_identified(GOOD | change)
