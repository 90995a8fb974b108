"""What a restart of the agent may and may not forget about the driver's listings."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.collector.listings import KNOWN_HOLDERS, SAVE_SECONDS, Holders, Listings
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.procfs.machine import SINCE_BOOT, PidMark, PidSpace
from tests.agent.collector.test_listings import BOOT, GPU, HELD, PID, STRANGER, UNPROVEN, process, seen
from tests.integration.waiting import until

NOW = 200.0
"""When the second agent starts."""


def stored(path: Path, holds: Callable[[dict[str, object]], bool] = bool) -> None:
    """Wait until the file holds this."""
    until(lambda: path.exists() and holds(json.loads(path.read_text())), "the listings are written")


def again(path: Path) -> Listings:
    """Start the agent again, on a machine where one has run in this boot. Each has a file that no other writes."""
    copy = Path(tempfile.mkdtemp(dir=path.parent)) / path.name
    if path.exists():
        shutil.copyfile(path, copy)
    return Listings(copy, BOOT, ran_before=True, now_seconds=NOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "listings.json"


def test_a_restart_forgets_nothing(path: Path) -> None:
    """A process that was given a listed number while no agent ran is a stranger; the holder is not."""
    both = {PID: HELD, 701: HELD}
    seen(Listings(path, BOOT), 100.0, process(99.0), held=both)
    stored(path)
    living = process(99.0), process(150.0, 701)
    for gpu in (GPU, GpuIdentity(0, "GPU-other", pci_bus_id=GPU.pci_bus_id), GpuIdentity(0, GPU.uuid)):
        assert seen(again(path), NOW, *living, held=both, gpu=gpu) == Holders(strangers=frozenset({701}))


def test_the_first_list_after_a_restart_comes_after_a_gap(path: Path) -> None:
    """However short the restart: who started since the last list of the agent before may have been given the number."""
    seen(Listings(path, BOOT), 199.0, held={})
    stored(path)
    both = {PID: HELD, 701: HELD}
    assert seen(again(path), NOW, process(199.5), process(198.0, 701), held=both) == UNPROVEN


def test_the_last_list_is_recent_in_the_file(path: Path) -> None:
    """The file is written while nothing changes, too: otherwise all who came since would be unproven."""
    listings = Listings(path, BOOT)
    for each in range(int(SAVE_SECONDS) + 1):
        seen(listings, 100.0 + each, held={})
    stored(path, lambda document: f'"read": {100 + SAVE_SECONDS}' in json.dumps(document))
    assert seen(again(path), NOW, process(100 + SAVE_SECONDS - 1)) == KNOWN_HOLDERS


DAMAGE: dict[str, Callable[[str], str | None]] = {
    "gone": lambda text: None,
    "half": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "schema": lambda text: text.replace('"schema": 3', '"schema": 2'),
    "boot": lambda text: text.replace(BOOT, "another"),
    "future list": lambda text: text.replace('"read": 100.0', '"read": 1e12'),
    "future number": lambda text: text.replace("[100.0,", "[1e12,"),
    "no number": lambda text: text.replace("[100.0,", "[NaN,"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_was_lost_proves_nobody(path: Path, damage: str) -> None:
    """Absent, damaged, of another schema or with times to come: whoever is there at first is unproven, then as ever."""
    seen(Listings(path, BOOT), 100.0, process(99.0))
    stored(path)
    text = path.read_text()
    after = DAMAGE[damage](text)
    assert after != text
    path.unlink() if after is None else path.write_text(after)
    listings = again(path)
    assert seen(listings, NOW, process(99.0)) == UNPROVEN
    both = {PID: HELD, 701: HELD}
    assert seen(listings, NOW + 1, process(99.0), process(NOW + 0.5, 701), held=both) == UNPROVEN


@pytest.mark.slow
@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text() | st.floats(), st.lists).map(json.dumps).map(str.encode)
    | st.fixed_dictionaries(
        {"tables": st.dictionaries(st.text(), st.fixed_dictionaries({"numbers": st.lists(st.floats())}))}
    ).map(lambda tables: json.dumps({"schema": 3, "boot_id": BOOT, **tables}).encode())
)
def test_whatever_is_in_the_file_the_agent_starts(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Nobody is proven by it where an agent ran before, and everybody accepted on a machine where none did."""
    path, other = (tmp_path_factory.mktemp("damaged") / "listings.json" for _ in range(2))
    path.write_bytes(data)
    other.write_bytes(data)
    assert seen(again(path), NOW, process(99.0)) == UNPROVEN
    assert seen(Listings(other, BOOT, now_seconds=NOW), NOW, process(99.0)) == KNOWN_HOLDERS


def test_a_fresh_install_accepts_who_is_there(path: Path) -> None:
    """Where no agent has run in this boot, who was there before the first list holds the memory."""
    assert seen(Listings(path, BOOT, now_seconds=NOW), NOW, process(99.0)) == KNOWN_HOLDERS


def test_a_gpu_that_appears_under_new_names_proves_nobody(path: Path) -> None:
    """With both its UUID and its address changed, a GPU is one that nobody has looked at."""
    seen(Listings(path, BOOT), 100.0, process(99.0))
    stored(path)
    assert seen(again(path), NOW, process(150.0), gpu=GpuIdentity(0, "GPU-other", pci_bus_id="7")) == UNPROVEN


def test_a_failed_write_is_tried_again_and_leaves_no_old_file(path: Path) -> None:
    """While it fails, no old file stays for a restart to believe; it is written once there is room."""
    listings = Listings(path, BOOT, retry_seconds=0.01)
    seen(listings, 100.0, held={})
    stored(path)
    blocked = path.with_suffix(".new")
    blocked.mkdir()
    seen(listings, 101.0, process(99.0))
    until(lambda: not path.exists(), "the old file is removed")
    assert seen(again(path), NOW, process(150.0)) == UNPROVEN
    blocked.rmdir()
    stored(path, lambda document: str(PID) in json.dumps(document))
    assert seen(again(path), NOW, process(150.0)) == STRANGER


class Numbers(PidSpace):
    """A space of numbers that has come round, or has not, since the last save or since the boot."""

    def __init__(self, *, wrapped: bool = False, since_boot: bool = True) -> None:
        super().__init__("/none")
        self.wrapped, self.since_boot = wrapped, since_boot

    def mark(self) -> PidMark:
        return PidMark(5, 1000)

    def may_have_wrapped(self, since: PidMark) -> bool:
        return self.since_boot if since == SINCE_BOOT else self.wrapped or since != self.mark()


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_restart_is_a_gap_only_where_numbers_may_have_come_round(path: Path, wrapped: bool) -> None:
    """KILL-01: who started while no agent ran is the holder, unless its number may have been given twice."""
    before = Listings(path, BOOT, pid_space=Numbers(wrapped=wrapped))
    seen(before, 100.0, held={})
    until(path.exists, "the listings are written")
    after = Listings(path, BOOT, ran_before=True, now_seconds=NOW, pid_space=Numbers(wrapped=wrapped))
    assert seen(after, NOW, process(150.0)) == (UNPROVEN if wrapped else KNOWN_HOLDERS)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_first_list_is_believed_only_before_numbers_come_round(path: Path, wrapped: bool) -> None:
    """KILL-01: where no agent has run in this boot, who is there may have a dead one's number all the same."""
    listings = Listings(path, BOOT, now_seconds=NOW, pid_space=Numbers(since_boot=wrapped))
    assert seen(listings, NOW, process(99.0)) == (UNPROVEN if wrapped else KNOWN_HOLDERS)


def test_the_first_list_is_told_once(path: Path) -> None:
    """Whoever keeps in mind that an agent has run in this boot hears of it when there is something to lose."""
    told: list[str] = []
    listings = Listings(path, BOOT, on_first_list=lambda: told.append("first"))
    assert told == []
    for at in (100.0, 101.0, 200.0):
        seen(listings, at, process(99.0))
    assert told == ["first"]
