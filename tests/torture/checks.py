"""What must hold however it went: checked while a trouble is on, and after it."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import NamedTuple

from tests.integration.waiting import until
from tests.torture.receivers import told
from tests.torture.scraper import Scrape
from tests.torture.stage import BELL, Stage
from tests.torture.trouble import Cost, Trouble

TOLD_SECONDS = 20.0
BACK_SECONDS = 30.0
GROWTH_BYTES = 16 * 2**20
"""More than this above the size at the start is a leak: a burst of a thousand clients leaves some fragments."""
_RINGING = {"kind": "full", "gpu": BELL}


class Bill(NamedTuple):
    """What a trouble has cost."""

    name: str
    seconds: float
    told_seconds: float
    """From the moment at which GPU 3 was full until the good receiver knew."""
    scrapes: int
    failed_scrapes: int
    unhealthy_scrapes: int
    """Answers without the GPU that nothing happens to."""
    resident_mib: float


def endure(stage: Stage, trouble: Trouble) -> Bill:
    """Let it happen while Bell rings, and see that everything is as it was afterwards. Raises AssertionError."""
    began = time.monotonic()
    stage.scraper.take()
    rings = stage.rings + 1
    stage.hang_bell(rings)
    late = Cost.LATE in trouble.costs
    sign = trouble.sign
    before = stage.metric(sign.start) or 0.0 if sign else 0.0
    with ExitStack() as ringing:
        with trouble.on(stage):
            ringing.enter_context(stage.faults.holding(_RINGING))
            rang = time.monotonic()
            if not late:
                _wait_until_told(stage, rings)
            told_seconds = time.monotonic() - rang
            if sign is not None:
                until(
                    lambda: sign.shown(before, stage.metric(sign.start) or 0.0), "the agent has noticed", TOLD_SECONDS
                )
            time.sleep(max(0.0, trouble.least_seconds - (time.monotonic() - rang)))
            assert stage.agent.process.poll() is None, f"it ended with {stage.agent.process.returncode}"
        if late:
            _wait_until_told(stage, rings)
            told_seconds = time.monotonic() - rang
    stage.rings = rings
    during = stage.scraper.take()
    _check_scrapes(during, trouble)
    _check_back(stage, trouble)
    scrapes = during + stage.scraper.take()
    return Bill(
        trouble.name,
        time.monotonic() - began,
        told_seconds,
        len(scrapes),
        sum(scrape.status != 200 for scrape in scrapes),
        sum(scrape.status == 200 and not scrape.healthy for scrape in scrapes),
        stage.size().resident_bytes / 2**20,
    )


def _wait_until_told(stage: Stage, rings: int) -> None:
    until(
        lambda: told(stage.good, "Bell").count("firing") >= rings,
        f"the good receiver is told of ring {rings}; {told(stage.good, 'Bell')[-4:]}; log: {stage.agent.log()[-2000:]}",
        TOLD_SECONDS,
    )


def _check_scrapes(scrapes: list[Scrape], trouble: Trouble) -> None:
    """Neither the answers nor the healthy GPU may be missing, but for what the trouble may cost."""
    absurd = [line for scrape in scrapes for line in scrape.absurd]
    assert not absurd, absurd[:4]
    good = {200, 503} if trouble.broken_off else {200}
    failed = [scrape for scrape in scrapes if scrape.status not in good]
    if Cost.TCP in trouble.costs:
        failed = [scrape for scrape in failed if scrape.door == "control"]
    if Cost.SCRAPES not in trouble.costs:
        assert len(failed) <= trouble.broken_off, f"{len(failed)} of {len(scrapes)} scrapes failed: {failed}"
    if Cost.GPUS not in trouble.costs:
        gaps = [scrape for scrape in scrapes if scrape.status == 200 and not scrape.healthy]
        assert not gaps, f"{len(gaps)} of {len(scrapes)} scrapes lack GPU 0"


def _check_back(stage: Stage, trouble: Trouble) -> None:
    """Everything is told, everybody lives, and the agent is as large as it was."""
    rings = stage.rings
    for receiver, name in ((stage.good, "good"), (stage.other, "other")):
        missed = stage.lost_rings if name == "other" else 0
        if name == "other" and trouble.refused_for_good:
            continue
        until(
            lambda receiver=receiver, missed=missed: told(receiver, "Bell").count("resolved") >= rings - missed,  # type: ignore[misc]
            f"{name} is told of {rings - missed} ends: {told(receiver, 'Bell')[-6:]}",
            BACK_SECONDS,
        )
    if trouble.refused_for_good:
        until(lambda: told(stage.good, "Bell").count("resolved") >= rings, "the end is told")
        heard = told(stage.other, "Bell").count("resolved")
        stage.lost_rings = max(stage.lost_rings, rings - heard)
    assert told(stage.good, "Bell") == ["firing", "resolved"] * rings, told(stage.good, "Bell")[-8:]
    assert told(stage.good, "Steady") == ["firing"]
    until(stage.settled, "all GPUs are read and the crowd is back", BACK_SECONDS)
    until(lambda: stage.agent.get("/-/ready").status == 200, "ready again", BACK_SECONDS)
    until(lambda: stage.metric("gpuagent_store_healthy") == 1, "the state is on disk again", BACK_SECONDS)
    _check_size(stage)
    assert stage.agent.process.poll() is None
    assert "Traceback" not in stage.agent.log(), stage.agent.log()[-4000:]
    assert [process.poll() for process in stage.bystanders] == [None, None]
    assert not stage.untrusted.asked
    assert json.loads(stage.agent.get("/api/v1/remedies").body)["remedies"] == []


def _check_size(stage: Stage) -> None:
    """No thread and no descriptor more than before, and hardly any memory."""

    def back() -> bool:
        now = stage.size()
        # Between two of its own connections it has a descriptor or a thread of the pool more or less.
        return (
            now.descriptors <= stage.baseline.descriptors + 4
            and now.threads <= stage.baseline.threads + _POOL_THREADS
            and now.resident_bytes <= stage.baseline.resident_bytes + GROWTH_BYTES
        )

    until(back, f"the size is {stage.size()}, and was {stage.baseline}", BACK_SECONDS)


_POOL_THREADS = 4
"""asyncio's pool grows to its size as it is used and never shrinks."""
