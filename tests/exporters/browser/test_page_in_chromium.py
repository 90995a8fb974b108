"""The page in headless Chromium: what a person with a browser sees, and what a hostile process cannot do there."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.core.units import GIB
from gpuagent_exporters.api.routes import Document, PageDocuments
from gpuagent_exporters.charts import Charts
from gpuagent_exporters.history import History
from gpuagent_exporters.page.assets import ASSETS
from tests.exporters.browser.chromium import Tab, axe
from tests.exporters.browser.served import served
from tests.exporters.page.evidence import evidence
from tests.exporters.page.test_page_alerts import alert, remedy
from tests.exporters.test_history_document import after, process, tick
from tests.fakes.source import FakeSource, status_document

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium"), pytest.mark.timeout(180)]

HOSTILE = (
    "</td><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\N{RIGHT-TO-LEFT MARK}"
)
PROBLEM = {"severity": "critical", "kind": "lost", "text": "GPU 3: it is lost", "advice": "Reboot the node."}


def history(*, name: str = "python3") -> History:
    """Three slots of GPU `a` with two processes."""
    ticks = [
        tick(slot * 10.0, process(4242, (4 + slot) * GIB, name=name), process(7, GIB), used=(8 + slot) * GIB)
        for slot in range(3)
    ]
    return after(*ticks, length=360)


def source(**changes: Any) -> FakeSource:
    """A node with one GPU, whose chart has points."""
    gpu = {**status_document()["gpus"][0], "uuid": "a"}
    node = FakeSource(status=status_document(**{"gpus": [gpu], **changes}))
    show_history(node, history())
    return node


def show_history(node: FakeSource, points: History) -> None:
    """From now on the source tells and draws these points."""
    node.history, node.charts = points, Charts(points)


def change(node: FakeSource, **changes: Any) -> None:
    """From now on the source tells this."""
    node.document = {**node.document, **changes}


async def alerts() -> Document:
    """An alert that fires."""
    return {"alerts": [alert()], "time_seconds": 1.0}


async def remedies() -> Document:
    """A remedy that has helped."""
    return {"remedies": [remedy()], "stopped": "", "dry_run": True}


DOCUMENTS = PageDocuments(alerts=alerts, remedies=remedies)


def test_it_draws(tab: Tab) -> None:
    """Cards, table and charts are there; the chart's lines have names and figures, and the policy forbade nothing."""
    with served(source(), DOCUMENTS) as page:
        tab.open(page.url)

        for words in ("NVIDIA H100", "60.0 GiB of 80.0 GiB", "serve.py", "FIRING", "RELEASED", "live"):
            assert words in tab.text
        assert tab.run("[...document.querySelectorAll('.legend li')].map((line) => line.textContent)") == [
            "python3 (4242) 6.0 GiB",
            "python3 (7) 1.0 GiB",
            "held by no process 3.0 GiB",
        ]
        assert "now 10.0 GiB of 80.0 GiB, highest 10.0 GiB" in tab.run("document.querySelector('.plot').ariaLabel")
        own, other = f"'.area.c{4242 % 8}'", f"'.area.c{7 % 8}'"
        assert tab.run(f"document.querySelector({own}).getBoundingClientRect().height") > 3
        assert tab.run(f"{FILL}({own}) !== {FILL}({other}) && {FILL}({own}) !== {FILL}('.rest')")
        assert tab.complaints == []


FILL = "((what) => getComputedStyle(document.querySelector(what)).fill)"


def test_the_figures_under_the_cursor_are_told(tab: Tab) -> None:
    """The legend says what each process held then, by the pointer and by the arrow keys, and of now afterwards."""
    values = "[...document.querySelectorAll('.legend li[data-name] b')].map((one) => one.textContent).join()"
    with served(source()) as page:
        tab.open(page.url)
        box = tab.run("document.querySelector('.plot').getBoundingClientRect().toJSON()")
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + 1, y=box["y"] + 20)
        tab.until("document.querySelector('.told')")
        assert tab.run(values) == "4.0 GiB,1.0 GiB,3.0 GiB"
        assert "60 s ago: 8.0 GiB in use" in tab.text
        tab.refresh()
        assert tab.run(values) == "4.0 GiB,1.0 GiB,3.0 GiB"
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
        tab.until("!document.querySelector('.told')")
        assert tab.run(values) == "6.0 GiB,1.0 GiB,3.0 GiB"
        tab.run("document.querySelector('.plot').focus()")
        for _ in range(25):
            tab.press("ArrowLeft", 37)
        assert tab.run(values) == "5.0 GiB,1.0 GiB,3.0 GiB"


def test_nothing_moves_while_it_loads_and_it_loads_at_once(tab: Tab) -> None:
    """Eight GPUs with 64 processes each come in one go: no layout shift, and nothing beside the page is fetched."""
    add = "(list) => { for (const one of list.getEntries()) moved += one.value; }"
    watch = f"window.moved = 0; new PerformanceObserver({add})"
    node = source()
    gpus = [{**node.document["gpus"][0], "uuid": f"g{number}", "index": number} for number in range(8)]
    row = node.document["processes"][0]
    crowd = [{**row, "gpu": number % 8, "gpu_uuid": f"g{number % 8}", "pid": number} for number in range(512)]
    change(node, gpus=gpus, processes=crowd)
    with served(node, DOCUMENTS) as page:
        observe = f"{watch}.observe({{ type: 'layout-shift', buffered: true }})"
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=observe)
        tab.open(page.url)
        tab.until("document.readyState === 'complete'")
        tab.refresh()

        assert tab.run("moved") == 0
        assert tab.run("document.querySelectorAll('tbody tr').length") == 20
        fetched = tab.run("performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname).sort()")
        assert set(fetched) <= {"/", *(f"/assets/{name}" for name in ASSETS)}


def test_without_a_script_everything_works(tab: Tab) -> None:
    """The chart is drawn, and links filter, sort and choose a range, in a browser that runs no script."""
    with served(source()) as page:
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        tab.call("Page.navigate", url=f"{page.url}?sort=pid&filter=alice&range=15m")
        tab.wait_for("Page.loadEventFired")

        assert tab.run("document.querySelector('.area.c2').getBoundingClientRect().height") > 3
        assert tab.run("document.querySelector('th[aria-sort]').textContent") == "PID"
        assert tab.run("document.querySelector('.ranges [aria-current]').textContent") == "15 min"
        assert "filtered by alice" in tab.text


def test_it_updates_by_itself(tab: Tab) -> None:
    """New figures, problems and points come without a reload: what the reader had in hand stays as it was."""
    node = source()
    with served(node) as page:
        tab.open(page.url)
        tab.run("window.before = document.querySelector('article'); document.querySelector('.scroll').focus()")
        points = node.history
        assert isinstance(points, History)
        points.add(tick(30.0, process(4242, 9 * GIB), used=12 * GIB))
        change(node, problems=[PROBLEM])

        tab.until("document.body.innerText.includes('Reboot the node.')")
        tab.until("document.querySelector('.legend').textContent.includes('9.0 GiB')")
        assert tab.run("window.before === document.querySelector('article')")
        assert tab.run("document.activeElement.className") == "scroll"
        assert tab.complaints == []


def test_a_lost_agent_is_shown_as_lost(tab: Tab) -> None:
    """EXP-05: old figures are called old at once, in the tab's title as well, and all is well when it is back."""
    with served(source()) as page:
        tab.open(page.url)
        page.stop()
        tab.refresh()

        assert "AGENT LOST: the agent cannot be reached. Everything below is from" in tab.text
        assert "not connected, trying again" in tab.text
        assert tab.run("document.querySelector('.sentence').textContent").startswith("Not known since ")
        assert "Then: The GPU is healthy" in tab.text
        assert tab.run("document.getElementById('headline').className") == "unknown"
        assert "data is 400 ms old" not in tab.text
        assert tab.run("document.title").startswith("LOST")
        tab.run("scrollTo(0, document.body.scrollHeight)")
        assert tab.run("document.querySelector('[role=alert]').getBoundingClientRect().top") >= 0  # it stays in view
        assert tab.run("getComputedStyle(document.querySelector('main')).outlineStyle") == "dashed"
        assert axe(tab) == []

        page.start()
        tab.until("document.title === 'gpuagent · node1'")
        assert "AGENT LOST" not in tab.text
        assert tab.run("document.querySelector('.sentence').textContent").startswith("The GPU is healthy")


def test_an_agent_that_only_says_no_is_lost_too(tab: Tab) -> None:
    """A broken answer leaves the old figures, and says that they are old and why."""
    node = source()
    with served(node) as page:
        tab.open(page.url)
        node.document = {**node.document, "gpus": 5}
        tab.refresh()

        assert "AGENT LOST: the agent answers 500" in tab.text
        assert "60.0 GiB of 80.0 GiB" in tab.text


def test_old_data_is_shown_as_old(tab: Tab) -> None:
    """EXP-05: an agent that answers but has not measured says STALE, and a lost GPU loses its figures."""
    node = source()
    with served(node) as page:
        tab.open(page.url)
        lost = {**node.document["gpus"][0], "state": "lost", "reason": "GPU_IS_LOST", "age_seconds": 60.0}
        change(node, age_seconds=60.0, gpus=[lost])
        tab.refresh()

        assert "STALE: the last measurement is 1 min old" in tab.text
        assert "LOST" in tab.text
        assert "60.0 GiB" not in tab.text
        assert tab.run("document.querySelectorAll('.plot .area').length") == 3  # what led to it


def test_a_hostile_process_name_is_only_text(tab: Tab) -> None:
    """No name of a process, in the table or in a chart, at the start or in an update, becomes anything but text."""
    node = source()
    wicked = dict.fromkeys(("process", "user", "command", "unit"), HOSTILE)
    row = {**node.document["processes"][0], **wicked}
    show_history(node, history(name=HOSTILE))
    with served(node) as page:
        change(node, processes=[row], problems=[{**PROBLEM, "text": HOSTILE}])
        tab.open(page.url)
        change(node, processes=[{**row, "pid": 4243}])
        tab.refresh()

        assert tab.text.count("<script>document.title=") >= 4
        assert "4243" in tab.text
        assert tab.run("document.querySelectorAll('img, main script').length") == 0
        assert tab.run("document.querySelector('.legend').textContent").count("<script>") == 1
        assert tab.run("document.title") == "gpuagent · node1"
        assert tab.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_accessibility(tab: Tab, width: int, dark: bool) -> None:
    """axe-core finds nothing, contrast included, with everything that can be wrong at once; nothing is cut off."""
    node = source(problems=[PROBLEM, {**PROBLEM, "severity": "warning"}, {**PROBLEM, "severity": "info"}])
    lost = {**node.document["gpus"][0], "uuid": "b", "index": 1, "state": "lost", "reason": "x"}
    agent = {**node.document["agent"], "simulated": "leak"}
    leaking = {**node.document["processes"][0], "verdict": "leaking", "exhaustion_seconds": 60.0}
    change(node, age_seconds=60.0, gpus=[*node.document["gpus"], lost], agent=agent, processes=[leaking])
    with served(node, DOCUMENTS) as page:
        tab.dark(dark=dark)
        tab.size(width)
        tab.open(page.url)

        assert axe(tab) == []
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")


def test_it_works_from_the_keyboard(tab: Tab) -> None:
    """Tab reaches the chapters, the pause and every column's button, each with a visible focus; Enter presses them."""
    with served(source()) as page:
        tab.open(page.url)
        reached = []
        for _ in range(30):
            tab.press("Tab", 9)
            reached.append(tab.run("(document.activeElement.innerText ?? 'chart').split('\\n')[0]"))
            if not tab.run("document.activeElement === document.body"):  # after the last one the browser's own come
                assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
            if reached[-1] == "Pause":
                tab.press("Enter", 13)
                assert "paused at" in tab.text
                assert tab.run("document.title").startswith("PAUSED")

        assert {"15 min", "chart", "Problems 0", "GPUs 1", "Processes 1", "Pause", "memory", "verdict"} <= set(reached)


def test_a_table_stays_sorted(tab: Tab) -> None:
    """A click sorts by value, what is not known stands last, and a refresh keeps the order; a second click turns it."""
    node = source()
    row = node.document["processes"][0]
    sizes: dict[int, int | None] = {1: 9 * GIB, 2: None, 3: 900 * 2**20, 4: 10 * GIB}
    change(node, processes=[{**row, "pid": pid, "memory_used_bytes": size} for pid, size in sizes.items()])
    pids = "[...document.querySelectorAll('tbody tr')].map((row) => row.dataset.key.split('/').at(-1)).join('')"
    press = "document.querySelector('th[data-key=memory] a').click()"
    with served(node) as page:
        tab.open(page.url)
        tab.run("window.before = document.querySelector('table')")
        tab.run(press)
        tab.until(f"{pids} === '4132'")
        tab.refresh()
        assert tab.run(pids) == "4132"
        assert tab.run("document.querySelector('th[aria-sort]').ariaSort") == "descending"
        tab.run(press)
        tab.until(f"{pids} === '3142'")
        assert (
            tab.run("window.before === document.querySelector('table') && location.search") == "?sort=memory&order=up"
        )


def test_what_is_typed_filters(tab: Tab) -> None:
    """The slash leads to the field, what is typed there filters the table and stays, and the other way clears it."""
    node = source()
    row = node.document["processes"][0]
    change(node, processes=[{**row, "pid": pid, "user": user} for pid, user in ((1, "alice"), (2, "bob"))])
    with served(node) as page:
        tab.open(page.url)
        tab.press("/", 191)
        assert tab.run("document.activeElement.type") == "search"
        tab.call("Input.insertText", text="user:bob")
        tab.until("document.querySelectorAll('tbody tr').length === 1")
        assert "1 of 2 processes" in tab.text
        tab.refresh()
        assert tab.run("document.activeElement.value") == "user:bob"
        tab.run("[...document.querySelectorAll('a')].find((one) => one.textContent === 'clear').click()")
        tab.until("document.querySelectorAll('tbody tr').length === 2")
        assert tab.run("document.querySelector('[type=search]').value") == ""
        assert tab.complaints == []


def test_a_leak_that_is_explained_can_be_closed(tab: Tab) -> None:
    """The picture of a leak is open at first, and a refresh leaves it as the reader has it; axe finds nothing."""
    node = source()
    leaking = {**node.document["processes"][0], "verdict": "leaking", "gpu_uuid": "a"}
    change(node, processes=[leaking])
    with served(node, PageDocuments(explain=lambda _pid, _gpu: evidence(gpu_uuid="a"))) as page:
        tab.open(page.url)
        assert tab.run("document.querySelector('.leak .baseline').getBoundingClientRect().width") > 100
        assert axe(tab) == []
        tab.run("document.querySelector('.leak summary').click()")
        tab.refresh()
        assert tab.run("document.querySelector('details.leak').open") is False


def test_an_open_address_names_nobody(tab: Tab) -> None:
    """Without loopback or a password nobody is told who runs what, neither in the table nor in an alert."""
    with served(source(), DOCUMENTS, show_commands=False) as page:
        tab.open(page.url)

        assert "python3" in tab.text
        assert "alice" not in tab.run("document.documentElement.outerHTML")
        assert "serve.py" not in tab.run("document.documentElement.outerHTML")
