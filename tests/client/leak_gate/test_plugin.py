"""The leak gate as people use it: pytest in an environment with torch, over functions that leak and that do not."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.client.blame.kinds import marked_lines
from tests.client.conftest import ROOT, Apps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Path(__file__).parent / "apps"
DOCS = ROOT / "docs"
LINES = marked_lines(HERE / "functions.py", "# LEAK ")
ALL = """
import functions, gc, pytest, torch

torch.set_num_threads(1)
gc.freeze()  # torch's own objects: a full collection takes a hundredth of the time without them

@pytest.fixture
def step(request):
    return request.param()

@pytest.mark.gpu_leak
@pytest.mark.parametrize("step", functions.LEAKY.values(), ids=functions.LEAKY, indirect=True)
def test_leaky(step):
    step()

@pytest.mark.gpu_leak
@pytest.mark.parametrize("step", functions.HEALTHY.values(), ids=functions.HEALTHY, indirect=True)
def test_healthy(step):
    step()
"""
USES = """
import asyncio
import gc
import pytest
import torch

torch.set_num_threads(1)
gc.freeze()

KEPT = []

def test_fixture(gpu_leak):
    kept = []
    gpu_leak(lambda: kept.append(torch.zeros(8)))  # LINE test_fixture

def keep(size):
    KEPT.append(torch.zeros(size))

def test_arguments(gpu_leak):
    gpu_leak(keep, 8)

@pytest.mark.gpu_leak(allowed_bytes=32)
def test_allowed():
    KEPT.append(torch.zeros(8))

@pytest.fixture
def kept():
    return []

@pytest.mark.gpu_leak
def test_parameter(kept):
    kept.append(torch.zeros(8))  # LINE test_parameter

class TestClass:
    kept = []

    @pytest.mark.gpu_leak(calls=8, warmup=1, confirm=40)
    def test_method(self):
        self.kept.append(torch.zeros(8))  # LINE test_method

async def step():
    KEPT.append(torch.zeros(8))

@pytest.mark.gpu_leak
async def test_async():
    await step()

def test_run(gpu_leak):
    gpu_leak(lambda: asyncio.run(step()))

@pytest.mark.gpu_leak(40)
def test_positional():
    pass

@pytest.mark.gpu_leak(rounds=40)
def test_unknown():
    pass

@pytest.mark.gpu_leak
def test_raises():
    raise LookupError("as ever")

@pytest.mark.gpu_leak
@pytest.mark.skip(reason="as ever")
def test_skipped():
    pass
"""
CUDA = """
import functions, gc, pytest, torch
from fake_cuda import FakeCuda

gc.freeze()
cuda = FakeCuda(torch)
calls = 0

@pytest.mark.gpu_leak
def test_outside_python():
    cuda.allocate(1000)

@pytest.mark.gpu_leak
def test_churn():
    cuda.allocate(4096)
    cuda.free(4096)

@pytest.mark.gpu_leak
def test_workspace():
    global calls
    calls += 1
    if calls in (1, 10):
        cuda.allocate(1 << 20)

@pytest.mark.gpu_leak
def test_reserved():
    cuda.reserved += 2 << 20

@pytest.mark.gpu_leak
def test_no_figures():
    FakeCuda(torch, backend="pluggable")
    functions.CACHE[len(functions.CACHE)] = torch.zeros(8)
"""

LOADED = """
import sys

def test_modules():
    assert {"torch", "gpuagent_client.testing", "gpuagent_client.blame"}.isdisjoint(sys.modules)
"""


def run_pytest(source: str, folder: Path, apps: Apps, python: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The outcome of each test of a file, and the text of those that did not pass."""
    path = folder / "test_it.py"
    path.write_text(source)
    command: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--color=no",
        "-W",
        "ignore",
        path,
    ]
    environment = apps.environment(COLUMNS="4000")
    environment["PYTHONPATH"] += f":{HERE}"
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    words = re.findall(r"^(PASSED|FAILED|ERROR) test_it\.py::(\S+)", run.stdout, re.MULTILINE)
    assert words, run.stdout + run.stderr
    sections = re.split(
        r"^_+ (?:ERROR at \w+ of )?(\S+) _+$", run.stdout.partition("short test summary")[0], flags=re.MULTILINE
    )
    texts = {name.rpartition(".")[2]: text for name, text in zip(sections[1::2], sections[2::2], strict=True)}
    return {name.rpartition("::")[2]: word.lower() for word, name in words}, texts


@pytest.mark.timeout(600)
def test_leaks_fail_with_their_line_and_healthy_functions_pass(tmp_path: Path, apps: Apps, apps_python: Path) -> None:
    """LEAK-01, LEAK-02: each leak is named with the line that keeps the memory, and nothing healthy is a leak."""
    outcomes, texts = run_pytest(ALL, tmp_path, apps, apps_python)

    leaky = {name for name in outcomes if name.startswith("test_leaky")}
    assert {name for name, outcome in outcomes.items() if outcome != "passed"} == leaky
    assert {name[len("test_leaky[") : -1] for name in leaky} == LINES.keys()
    wrong = {
        kind: texts[f"test_leaky[{kind}]"]
        for kind in LINES
        if f"functions.py:{LINES[kind]} in" not in texts[f"test_leaky[{kind}]"]
    }
    assert wrong == {}


def test_ways_to_use_it(tmp_path: Path, apps: Apps, apps_python: Path) -> None:
    """Mark and fixture judge functions, methods and what runs a coroutine; a wrong use is an error that says so."""
    outcomes, texts = run_pytest(USES, tmp_path, apps, apps_python)

    lines = marked_lines(tmp_path / "test_it.py", "# LINE ")
    assert {name for name, outcome in outcomes.items() if outcome == "passed"} == {"test_allowed"}
    for name, line in lines.items():
        assert f"test_it.py:{line} in" in texts[name], texts[name]
    assert "is held by `test_it.KEPT` (list" in texts["test_arguments"]
    assert "test_it.KEPT" in texts["test_run"]
    assert "give the fixture gpu_leak a function that runs the coroutine" in texts["test_async"]
    assert "gpu_leak takes keywords only" in texts["test_positional"]
    assert "rounds" in texts["test_unknown"]
    assert "LookupError: as ever" in texts["test_raises"]


def test_the_allocators_figures_are_judged(tmp_path: Path, apps: Apps, apps_python: Path) -> None:
    """On a GPU the allocated bytes count, and not what is reserved; without figures, the tensors of Python."""
    outcomes, texts = run_pytest(CUDA, tmp_path, apps, apps_python)

    assert {name for name, outcome in outcomes.items() if outcome != "passed"} == {
        "test_outside_python",
        "test_no_figures",
    }
    assert "leaks 1.0 KiB with each call on cuda:0: 240.0 KiB in 240 calls" in texts["test_outside_python"]
    assert "what holds it is not known" in texts["test_outside_python"]
    assert "functions.CACHE" in texts["test_no_figures"]


def test_nothing_is_loaded_before_a_test_asks(tmp_path: Path, apps: Apps, apps_python: Path) -> None:
    """A run of pytest with the client installed loads neither torch nor the gate."""
    assert run_pytest(LOADED, tmp_path, apps, apps_python)[0] == {"test_modules": "passed"}


def test_the_documented_examples(tmp_path: Path, apps: Apps, apps_python: Path) -> None:
    """The first example of the page fails with the text that stands there; of the second, what leaks does."""
    page = (DOCS / "leak-gate.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (text,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)

    outcomes, texts = run_pytest(first, tmp_path, apps, apps_python)
    assert outcomes == {"test_step": "failed"}
    assert text.replace("test_step.py", "test_it.py") in texts["test_step"]

    outcomes, texts = run_pytest(second, tmp_path, apps, apps_python)
    assert outcomes == {"test_requests": "failed", "test_find_leak": "passed"}
    assert "is held by `test_it.KEPT` (list" in texts["test_requests"]


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(15, marks=pytest.mark.extended),
        pytest.param(1000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(7200)]),
    ],
)
def test_no_healthy_function_is_ever_called_leaky(rounds: int, apps: Apps, apps_python: Path) -> None:
    """LEAK-02: the gate of a build does not fail by chance."""
    command: list[str | Path] = [apps_python, "-W", "ignore", HERE / "rounds.py", str(rounds), "7"]
    run = subprocess.run(command, env=apps.environment(), capture_output=True, text=True, check=True)

    *found, end = map(json.loads, run.stdout.splitlines())
    assert (found, end["runs"], end["false"]) == ([], rounds, 0)


def test_each_function_is_marked() -> None:
    """Each leaky function has a marked line, and the five classic causes are among them."""
    text = (HERE / "functions.py").read_text(encoding="utf-8")

    assert LINES.keys() == set(
        re.findall(r'^    "(\w+)": lambda', text.partition("LEAKY:")[2].partition("}")[0], re.MULTILINE)
    )
    assert {"losses_with_graph", "hidden_state", "global_cache", "exception", "hook_closure"} <= LINES.keys()
