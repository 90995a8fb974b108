"""The screen under a person's keys, over an agent made of documents."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from gpuagent.cli.agent import Refused
from gpuagent.cli.remedy_requests import Request
from gpuagent.core.snapshot import GpuState, ProcessState
from gpuagent.top import acts
from gpuagent.top.app import TopApp
from gpuagent.top.detail_screen import DetailScreen
from gpuagent.top.dialogs import Choice, Columns, Question, TextWindow
from gpuagent.top.panels import problem_lines
from gpuagent.top.widgets import LinesView, ProcessTable
from tests.agent.cli.alerts_document import ALERT
from tests.agent.cli.alerts_document import document as alerts_document
from tests.agent.cli.test_screen import crowd, growth, kinds_of_processes, mig, unified
from tests.fakes.documents import document
from tests.fakes.identified import row
from tests.fakes.readings import absent_gpu, gpu, process, snapshot
from tests.fakes.top_source import FakeSource

Script = Callable[[Pilot[None], TopApp], Awaitable[None]]


def play(source: FakeSource, script: Script, folder: Path, size: tuple[int, int] = (120, 36)) -> None:
    """Run the screen with one reading, and press what the script presses."""

    async def run() -> None:
        app = TopApp(source, folder / "top.json", polls=False)
        async with app.run_test(size=size) as pilot:
            app.take(source.read())
            await pilot.pause()
            await script(pilot, app)

    asyncio.run(run())


def drawn(app: TopApp) -> list[str]:
    """What the screen shows, a line each."""
    height = app.size.height
    return ["".join(segment.text for segment in line) for line in app.screen._compositor.render_strips()][:height]


def table(app: TopApp) -> ProcessTable:
    """The processes."""
    return app.screen_stack[0].query_one(ProcessTable)


def pids(app: TopApp) -> list[int]:
    """The processes in the order in which they are shown."""
    return [each.process["pid"] for each in table(app).rows if each.process is not None]


async def settle(pilot: Pilot[None]) -> None:
    """Wait for the threads that ask."""
    app = pilot.app
    assert isinstance(app, TopApp)
    await app.workers.wait_for_complete()
    while any(thread.is_alive() for thread in app.acting):
        await pilot.pause(0.01)
    await pilot.pause()


def test_keys_sort_and_turn_the_order_round(tmp_path: Path) -> None:
    """The keys of htop choose the column, and the same key again turns it round."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        assert pids(app) == [1, 2, 3, 4, 5]
        await pilot.press("G")
        assert pids(app)[:3] == [1, 4, 2]
        await pilot.press("N", "N")
        assert pids(app) == [5, 4, 3, 2, 1]
        await pilot.press("V")
        assert pids(app)[0] == 1

    play(FakeSource(document(growth())), script, tmp_path)


@pytest.mark.slow
def test_a_filter_works_as_one_types(tmp_path: Path) -> None:
    """Words narrow the list at each key, Enter keeps them, Esc brings all back."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("slash", *"leak")
        assert pids(app) == [1]
        await pilot.press("enter", "M")
        assert pids(app) == [1]
        await pilot.press("escape")
        assert len(pids(app)) == 5
        await pilot.press("slash", *"job:4711")
        assert pids(app) == []
        assert "No GPU process matches" in "\n".join(drawn(app))

    play(FakeSource(document(growth())), script, tmp_path)


def test_the_tree_groups_by_unit_job_and_container(tmp_path: Path) -> None:
    """Each group has a head with its sum; those that belong to none come last."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        heads = {}
        for _ in range(6):
            await pilot.press("t")
            heads[app.view.tree] = [each.head.partition("  ")[0] for each in table(app).rows if each.process is None]
        assert heads["unit"] == ["unit slurmd.service", "unit whisper.service", "no unit"]
        assert heads["job"] == ["job 4711", "no job"]
        assert heads["container"][0] == "container speech/whisper-0"
        assert heads["gpu"] == ["GPU 0", "GPU 1"]
        assert heads[""] == []

    play(FakeSource(document(kinds_of_processes())), script, tmp_path)


@pytest.mark.slow
def test_columns_are_remembered(tmp_path: Path) -> None:
    """What was chosen is there the next time, and a damaged file is as none."""

    async def choose(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("c")
        assert isinstance(app.screen, Columns)
        await pilot.press("space", "escape")
        assert "gpu" not in app.columns
        await pilot.press("N")

    async def look(pilot: Pilot[None], app: TopApp) -> None:
        assert "gpu" not in app.columns
        assert app.view.sort == "pid"

    async def usual(pilot: Pilot[None], app: TopApp) -> None:
        assert "gpu" in app.columns

    source = FakeSource(document(growth()))
    play(source, choose, tmp_path)
    play(source, look, tmp_path)
    for damage in (
        "{",
        "[]",
        json.dumps({"columns": ["nope", 3], "sort": [], "tree": {}, "descending": 2}),
        "[" * 9999,
    ):
        (tmp_path / "top.json").write_text(damage)
        play(source, usual, tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Requests that were sent; the agent knows the process, and ends it."""
    sent: list[Request] = []

    def attend(requests: list[Request], socket: Any, waits: Any, say: Callable[[str], None]) -> list[Any]:
        sent.extend(requests)
        say("terminate: waiting for its effect")
        return [{"pid": 1, "name": "python3", "gpu": 0, "result": "released", "detail": "", "released_bytes": 2**30}]

    identified = {"processes": [row(1, gpu_uuid=gpu().identity.uuid)], "agent": {}}
    monkeypatch.setattr(acts, "identified_processes", lambda socket: identified)
    monkeypatch.setattr(acts, "attend", attend)
    return sent


@pytest.mark.slow
def test_an_act_shows_what_is_known_and_waits_for_a_yes(tmp_path: Path, asked: list[Request]) -> None:
    """Nothing is asked of the agent before `y`: no Enter, no other key, no Esc."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        for no in ("enter", "tab enter", "escape", "n"):
            await pilot.press("K")
            await settle(pilot)
            assert isinstance(app.screen, Question)
            assert "pid 1" in "\n".join(drawn(app))
            await pilot.press(*no.split())
            await settle(pilot)
            assert asked == []
        await pilot.press("K")
        await settle(pilot)
        await pilot.press("y")
        await settle(pilot)
        assert [each.body["steps"] for each in asked] == [["terminate", "kill"]]
        assert asked[0].path == "/api/v1/processes/1/kill"
        assert asked[0].body["force"] is False
        assert isinstance(app.screen, TextWindow)
        assert "released" in "\n".join(drawn(app))

    play(FakeSource(document(growth())), script, tmp_path)


@pytest.mark.parametrize(("key", "steps"), [("k", ["terminate"]), ("R", ["restart_unit"])])
def test_each_key_asks_for_its_own_steps(tmp_path: Path, asked: list[Request], key: str, steps: list[str]) -> None:
    """The small k sends SIGTERM alone; a restart is of the unit."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("enter", key)
        await settle(pilot)
        await pilot.press("y")
        await settle(pilot)
        assert [each.body["steps"] for each in asked] == [steps]

    play(FakeSource(document(growth())), script, tmp_path)


def test_the_screen_ends_while_an_act_goes_on(
    tmp_path: Path, asked: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`q` does not wait for the agent, which may take minutes."""
    going_on = threading.Event()
    monkeypatch.setattr(acts, "attend", lambda *_, **__: going_on.wait(50) and [Refused("too late")])

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("k")
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("y", "q")
        await pilot.pause()
        apps.append(app)

    apps: list[TopApp] = []
    play(FakeSource(document(growth())), script, tmp_path)
    [acting] = apps[0].acting
    assert acting.is_alive()
    going_on.set()
    acting.join(50)
    assert not acting.is_alive()


def test_a_refusal_is_shown(tmp_path: Path, asked: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the agent refuses is told with its reason."""
    monkeypatch.setattr(acts, "attend", lambda *_, **__: [Refused("The agent refused: pid 1 is on the never-list")])

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("k")
        await settle(pilot)
        await pilot.press("y")
        await settle(pilot)
        assert "never-list" in "\n".join(drawn(app))

    play(FakeSource(document(growth())), script, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "word"), [("http://node7:9837", "read-only"), (None, "No agent is running")])
def test_a_source_that_only_reads_refuses_acts(
    tmp_path: Path, asked: list[Request], place: str | None, word: str
) -> None:
    """Over HTTP and without an agent no act is asked for, and the reason is said."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        for key in ("k", "K", "R", "r", "b", "a", "s"):
            app.say("")
            await pilot.press(key)
            await settle(pilot)
            assert len(app.screen_stack) == 1
            assert word in drawn(app)[-1]
        assert asked == []

    play(FakeSource(document(growth()), place=place), script, tmp_path)


def test_alerts_are_chosen_and_silenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert of the process under the cursor comes first, and its labels are the matchers."""
    sent: list[Any] = []

    def answer(*words: Any) -> dict[str, Any]:
        sent.append(words)
        return {"id": "s1", "acknowledged": ["x"]}

    monkeypatch.setattr(acts, "answer_of", answer)

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        for key in ("s", "a"):
            await pilot.press(key)
            await settle(pilot)
            assert isinstance(app.screen, Choice)
            await pilot.press("enter")
            await settle(pilot)
        assert [words[:2] for words in sent] == [("POST", "/api/v1/silences"), ("POST", "/api/v1/acks")]
        assert 'pid="1"' in sent[0][3]["matchers"]
        assert sent[1][3]["alert"] == "of pid 1"

    mine = ALERT | {"fingerprint": "of pid 1", "labels": {"alertname": "GpuLeak", "gpu": "0", "pid": "1"}}
    play(FakeSource(document(growth()), alerts_document(alerts=[ALERT, mine])), script, tmp_path)


@pytest.mark.slow
def test_the_agent_dies_and_comes_back(tmp_path: Path) -> None:
    """The last figures stay with their age and the reason, no act is possible, and new ones take their place."""
    source = FakeSource(document(growth()))

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        app.take(None, "Cannot reach the agent: refused. Is it running?")
        await pilot.pause()
        lines = drawn(app)
        assert "NO AGENT: figures of" in lines[0]
        assert "Cannot reach the agent" in lines[-1]
        assert table(app).grey
        assert len(pids(app)) == 5
        await pilot.press("k")
        assert len(app.screen_stack) == 1
        app.take(source.read())
        await pilot.pause()
        assert "NO AGENT" not in drawn(app)[0]
        assert not table(app).grey

    play(source, script, tmp_path)


def test_figures_come_by_themselves_and_a_strange_answer_is_survived(tmp_path: Path) -> None:
    """The thread that asks says why there are no figures, whatever was raised, and is ended with the screen."""
    source = FakeSource({"not": "a status"})
    source.dead = "NVML is not there"

    async def run() -> None:
        app = TopApp(source, tmp_path / "top.json")
        async with app.run_test(size=(80, 24)) as pilot:
            while "NVML is not there" not in "\n".join(drawn(app)):
                await pilot.pause(0.01)
            assert "`gpuagent doctor` says what is missing" in " ".join("\n".join(drawn(app)).split())
            await pilot.press("q")

    asyncio.run(run())


def test_who_was_on_a_lost_gpu_is_in_view(tmp_path: Path) -> None:
    """Below the processes of now are those that were known last, without how busy they were."""
    status = document(snapshot([gpu(), absent_gpu(1, GpuState.LOST)]))
    (now, *_) = status["processes"]
    earlier = dict(now, gpu=1, pid=4711, sm_utilization_ratio=0.84)
    status["last_known"] = {"gpus": [1], "reason": "lost", "age_seconds": 90.0, "processes": [earlier]}

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        lines = drawn(app)
        place = next(number for number, line in enumerate(lines) if "last known 1 min 30 s ago" in line)
        assert any(" 4711 " in line and "84 %" not in line for line in lines[place:])
        assert not any(" 4711 " in line for line in lines[:place])

    play(FakeSource(status), script, tmp_path)


def test_details_of_a_dead_process_say_so(tmp_path: Path) -> None:
    """No signal reaches it: no key of an act is offered, and no verdict on what it no longer does."""
    dead = process(4, used_gib=5.0, state=ProcessState.DEAD)

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("enter")
        await settle(pilot)
        text = "\n".join(drawn(app))
        assert "DEAD: it has ended, and the driver still holds 5.0 GiB" in text
        assert "SIGTERM" not in text

    play(FakeSource(document(snapshot([gpu()], [dead]))), script, tmp_path)


def test_a_leak_says_first_when_the_memory_is_full() -> None:
    """At 60 columns a line is cut after what matters; without an agent, no problem is no good news."""
    status = document(growth())
    line = problem_lines(status, None, 60, 1)[0].plain
    assert line.strip().startswith("WARNING  GPU 0 full in 9.4 s: python3 (alice, 1) leaks")
    (gone,) = problem_lines({"problems": []}, None, 60, 3, outdated=True)
    assert gone.plain.strip() == "problems not known"


def test_details_show_all_and_follow_the_process(tmp_path: Path) -> None:
    """Enter opens, what blame said is there, and a process that is gone is said to be gone."""
    source = FakeSource(document(growth()))

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        app.blamed[table(app).rows[0].key] = ["a list in serve.py holds 4 GiB"]
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, DetailScreen)
        text = "\n".join(line.plain for line in app.screen.query_one("#detail", LinesView).lines)
        for expected in ("leaking (strict), 1.2 GiB/h", "whisper.service", "allocator", "a list in serve.py"):
            assert expected in text
        source.status = document(snapshot([gpu()], []))
        app.take(source.read())
        await pilot.pause()
        assert "not on a GPU any more" in "\n".join(drawn(app))
        await pilot.press("escape")
        assert len(app.screen_stack) == 1

    play(source, script, tmp_path)


SNAPSHOTS = {
    "growth": growth(),
    "crowd": crowd(),
    "lost": snapshot([gpu(0), absent_gpu(1, GpuState.LOST, "the GPU is lost")]),
    "mig": mig(),
    "unified": unified(),
    "none": snapshot([]),
    "kinds": kinds_of_processes(),
}


@pytest.mark.slow
@pytest.mark.few(9)
@pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 36), (200, 60)], ids=str)
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_nothing_is_wider_than_the_screen(tmp_path: Path, name: str, size: tuple[int, int]) -> None:
    """Every line is exactly as wide as the screen; problems and at least one row of the processes stay in view."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        for key in ((), ("question_mark",), ("escape", "p"), ("escape", "enter")):
            await pilot.press(*key)
            await settle(pilot)
            assert {cell_len(line) for line in drawn(app)} == {size[0]}
            for view in app.screen.query(LinesView):
                room = view.scrollable_content_region.width
                assert [line.plain for line in view.lines if cell_len(line.plain) > room] == []
        await pilot.press("escape")
        lines = drawn(app)
        assert any("COMMAND" in line for line in lines)
        status = source.status
        assert not status["problems"] or str(status["problems"][0]["severity"]).upper() in lines[1]

    source = FakeSource(document(SNAPSHOTS[name]))
    play(source, script, tmp_path, size)


@pytest.mark.parametrize(
    ("ending", "style", "words"), [(False, "critical", "CRITICAL node7: x"), (True, "info", "ENDING node7: x")]
)
def test_an_incident_that_only_ends_is_no_trouble(*, ending: bool, style: str, words: str) -> None:
    """As after `gpuagent kill`, while its end is about to be told: the screen is as calm as the status document."""
    incident: dict[str, Any] = {"key": "inc-1", "kind": "process", "headline": "CRITICAL node7: x", "labels": {},
                "alerts": [], "severity": "critical", "ends_at_seconds": None, "ending": ending}  # fmt: skip
    (line,) = problem_lines({"problems": []}, {"incidents": [incident]}, 80, 5)
    assert line.plain.strip().upper().startswith(style.upper())
    assert ("ending: " in line.plain) is ending
    assert acts.incident_words(incident) == words


def test_problems_stay_on_top_of_512_processes(tmp_path: Path) -> None:
    """Whatever is scrolled, the gravest problem and the GPUs are in view; only visible rows are drawn."""
    status = document(crowd())
    status["problems"] = [
        {"severity": severity, "kind": "x", "gpu": None, "pid": None, "text": f"{severity} {number}", "advice": ""}
        for severity in ("info", "warning", "critical")
        for number in range(9)
    ]

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        rendered: list[Any] = []
        draw = table(app)._process

        def count(process: dict[str, Any], width: int) -> Any:
            rendered.append(process)
            return draw(process, width)

        table(app)._process = count  # type: ignore[method-assign]
        await pilot.press("end")
        await pilot.pause()
        lines = drawn(app)
        assert "CRITICAL" in lines[1]
        assert sum("CRITICAL" in line for line in lines[:11]) == 9
        assert any("+18 more problems" in line for line in lines[:11])
        assert sum("GPU " in line for line in lines) >= 8
        assert table(app).cursor == 511
        assert len(rendered) < 100

    play(FakeSource(status), script, tmp_path, (100, 30))


def test_the_mouse_sorts_chooses_and_opens(tmp_path: Path) -> None:
    """A click on a head sorts, a click on a row chooses it, a second one opens it."""

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.click("#processes", offset=(8, 0))
        assert app.view.sort == "pid"
        await pilot.click("#processes", offset=(8, 3))
        assert table(app).cursor == 2
        await pilot.click("#processes", offset=(8, 3), times=2)
        await settle(pilot)
        assert isinstance(app.screen, DetailScreen)

    play(FakeSource(document(growth())), script, tmp_path)


def test_it_says_the_same_without_color(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR the pieces of a bar differ by their marks, and the words are the same."""
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(pilot: Pilot[None], app: TopApp) -> None:
        bar = next(line for line in drawn(app) if line.startswith(" GPU 0"))
        assert "█" in bar
        assert "▓" in bar

    play(FakeSource(document(growth())), script, tmp_path)
