"""A capture that was written by hand: what is stated is answered, the rest by a base, or by nothing."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.driver.nvml.library import FUNCTION_NOT_FOUND, Library, NvmlFailure
from gpuagent_simulator.abi import NO_INSTANCE, NOT_AVAILABLE, PROCESS, SAMPLE
from gpuagent_simulator.captures import file
from gpuagent_simulator.captures.node import PROCESS_FACTS, CapturedNode, open_node
from gpuagent_simulator.scenario import ScenarioError
from tests.fakes.nvml import use

HEAD = "gpuagent-capture: 1\n"


class Bench:
    """A library over a capture, and its first GPU."""

    def __init__(self, text: str, folder: Path) -> None:
        path = folder / "capture.yaml"
        path.write_text(text, encoding="utf-8")
        self.clock = ManualClock()
        self.node = open_node(str(path), self.clock)
        self.library = Library(self.node.library, max_pid=self.node.max_pid)
        self.library.initialize()
        self.gpu = self.library.call("nvmlDeviceGetHandleByIndex", 0)

    def ask(self, call: str, *args: Any) -> Any:
        """The answer of a wrapper, or the code that it failed with."""
        try:
            return self.library.call(call, self.gpu, *args)
        except NvmlFailure as failure:
            return failure.code

    def processes(self, call: str = "nvmlDeviceGetComputeRunningProcesses_v3", size: int = 64) -> list[tuple[int, ...]]:
        """The entries of a list of 24 bytes each."""
        count, buffer = ctypes.c_uint(size), (ctypes.c_char * (size * 32))()
        assert self.library.raw(call, self.gpu, ctypes.byref(count), buffer) == 0
        return [PROCESS.unpack_from(buffer, position * PROCESS.size) for position in range(count.value)]


@pytest.fixture(autouse=True)
def _nothing_under_pynvml() -> Iterator[None]:
    with use(None):
        yield


def test_only_what_is_stated_is_answered(tmp_path: Path) -> None:
    """Without a base a call that was not captured is FUNCTION_NOT_FOUND, and a stated one answers."""
    bench = Bench(HEAD + "gpus:\n  - calls: {nvmlDeviceGetPowerUsage: 70500}\n", tmp_path)
    assert bench.ask("nvmlDeviceGetPowerUsage") == 70500
    assert bench.ask("nvmlDeviceGetName") == FUNCTION_NOT_FOUND
    assert bench.ask("nvmlDeviceGetFieldValues", [82]) == FUNCTION_NOT_FOUND


def test_a_base_answers_the_rest(tmp_path: Path) -> None:
    """A file may state only what differs from a model; `*` stands for all calls that are not stated themselves."""
    text = HEAD + (
        "base: l40s\ngpus:\n  - calls:\n"
        "      nvmlDeviceGetPower*: {error: not_supported}\n"
        "      nvmlDeviceGetPowerUsage: 70500\n"
        "    fields: {'82': uint 71}\n"
    )
    bench = Bench(text, tmp_path)
    assert bench.ask("nvmlDeviceGetName") == "NVIDIA L40S"
    assert bench.ask("nvmlDeviceGetPowerUsage") == 70500
    assert bench.ask("nvmlDeviceGetPowerManagementLimit") == 3
    memory, limit = bench.ask("nvmlDeviceGetFieldValues", [82, 190])
    assert (memory.nvmlReturn, memory.value.uiVal) == (0, 71)
    assert (limit.nvmlReturn, limit.value.uiVal) == (0, 350_000)


def test_the_second_pass_follows_the_first(tmp_path: Path) -> None:
    """An answer of two passes changes when as much time is over as lay between them, and stays."""
    text = HEAD + "seconds_between_passes: 4\ngpus:\n  - calls: {nvmlDeviceGetPowerUsage: {passes: [1, 2]}}\n"
    bench = Bench(text, tmp_path)
    found = []
    for seconds in (0, 3.5, 0.5, 3600):
        bench.clock.advance(seconds)
        found.append(bench.ask("nvmlDeviceGetPowerUsage"))
    assert found == [1, 1, 2, 2]


def test_structures_by_fields_and_bytes(tmp_path: Path) -> None:
    """A field counts more than the raw bytes, which keep what no field names; another version is refused."""
    raw = "280000020000000001000000000000000200000000000000030000000000000004"
    text = HEAD + (
        "gpus:\n  - calls:\n"
        f"      nvmlDeviceGetMemoryInfo_v2: {{version: 33554472, used: 3GiB, raw: '{raw}'}}\n"
        "      nvmlDeviceGetTemperatureV: {version: 1, temperature: 40}\n"
    )
    bench = Bench(text, tmp_path)
    memory = bench.ask("nvmlDeviceGetMemoryInfo", bench.library.constant("nvmlMemory_v2"))
    assert (memory.total, memory.reserved, memory.free, memory.used) == (1, 2, 3, 3 * 2**30)
    assert bench.ask("nvmlDeviceGetTemperatureV", 0) == 25


def test_pids_mean_nobody_here(tmp_path: Path) -> None:
    """Captured pids lie above the kernel's highest in lists and samples, and /proc has their captured facts."""
    text = HEAD + (
        "gpus:\n  - calls:\n"
        "      nvmlDeviceGetComputeRunningProcesses_v3: {processes: [[1, 2GiB], [7, null, 3, 0]]}\n"
        "      nvmlDeviceGetProcessUtilization: {samples: [[1, 250000, 55, 20]]}\n"
        "processes:\n  1: {name: init, user: root, command: [/sbin/init]}\n  7: {gone: true}\n"
    )
    bench = Bench(text, tmp_path)
    first, second = bench.processes()
    assert first == (4_194_305, 2 * 2**30, NO_INSTANCE, NO_INSTANCE)
    assert second == (4_194_311, NOT_AVAILABLE, 3, 0)
    assert bench.node.proc.read(first[0], "cmdline") == b"/sbin/init\0"
    assert not bench.node.proc.exists(second[0])

    count, buffer = ctypes.c_uint(4), (ctypes.c_char * 256)()
    call = "nvmlDeviceGetProcessUtilization"
    now = int(bench.clock.wall() * 1e6)
    assert bench.library.raw(call, bench.gpu, buffer, ctypes.byref(count), ctypes.c_ulonglong(0)) == 0
    assert SAMPLE.unpack_from(buffer) == (first[0], now - 250_000, 55, 20, 0, 0)
    assert bench.library.raw(call, bench.gpu, buffer, ctypes.byref(count), ctypes.c_ulonglong(now)) == 6


def test_a_list_longer_than_the_buffer(tmp_path: Path) -> None:
    """A list that does not fit is INSUFFICIENT_SIZE with its length, as a driver says it, and nothing is written."""
    call = "nvmlDeviceGetComputeRunningProcesses_v3"
    bench = Bench(HEAD + f"gpus:\n  - calls: {{{call}: {{processes: [[1, 1], [2, 2], [3, 3]]}}}}\n", tmp_path)
    count, buffer = ctypes.c_uint(2), (ctypes.c_char * 64)()
    assert bench.library.raw(call, bench.gpu, ctypes.byref(count), buffer) == 7
    assert (count.value, buffer.raw) == (3, bytes(64))


def test_faults_on_top_of_a_capture(tmp_path: Path) -> None:
    """A captured machine can be given the faults of a scenario, for calls that were captured too."""
    text = HEAD + (
        "gpus:\n  - calls: {nvmlDeviceGetPowerUsage: 70500, nvmlDeviceGetPerformanceState: 8}\n"
        "faults:\n  - {kind: error, calls: [nvmlDeviceGetPowerUsage], code: unknown, until: 10s}\n"
        "  - {kind: missing, calls: [nvmlDeviceGetPerformanceState]}\n  - {kind: lost, gpu: 0, at: 20s}\n"
    )
    bench = Bench(text, tmp_path)
    assert bench.ask("nvmlDeviceGetPowerUsage") == 999
    assert bench.ask("nvmlDeviceGetPerformanceState") == FUNCTION_NOT_FOUND
    bench.clock.advance(10)
    assert bench.ask("nvmlDeviceGetPowerUsage") == 70500
    bench.clock.advance(10)
    assert bench.ask("nvmlDeviceGetPowerUsage") == 15


def test_field_ranges(tmp_path: Path) -> None:
    """One line states a field for all links; a single link may be stated by itself."""
    text = HEAD + "gpus:\n  - fields: {'206/0-2': uint 5, '206/1': error not_supported, '82': uint 40}\n"
    bench = Bench(text, tmp_path)
    entries = bench.ask("nvmlDeviceGetFieldValues", [(206, 0), (206, 1), (206, 2), (206, 3), 82])
    assert [(entry.nvmlReturn, entry.value.uiVal) for entry in entries] == [(0, 5), (3, 0), (0, 5), (3, 0), (0, 40)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpuagent-capture: 9\n", "version 9"),
        (HEAD + "gpu: []\n", "gpu: unknown key"),
        (HEAD + "gpus: 3\n", "gpus: not a list"),
        (HEAD + "gpus: [{call: {}}]\n", "gpus[0].call: unknown key"),
        (HEAD + "gpus: [{calls: {nvmlDeviceGetName: {error: not_suported}}}]\n", "gpus[0].calls.nvmlDeviceGetName"),
        (HEAD + "gpus: [{fields: {'82': error nothing}}]\n", "gpus[0].fields.82"),
        (HEAD + "gpus: [{base: h900}]\n", "h900"),
        (HEAD + "gpus: [{}]\nprocesses: {1: {nam: x}}\n", "processes.1"),
        (HEAD + "gpus: [\n", "capture.yaml:"),
    ],
)
def test_mistakes_are_told(text: str, problem: str, tmp_path: Path) -> None:
    """A mistake in a capture is told with where it is, before anything is replayed."""
    path = tmp_path / "capture.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=re.escape(problem)):
        open_node(str(path), ManualClock())


def test_an_answer_that_does_not_fit_is_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A stated answer of another form than the call's is UNKNOWN, and the log names the call."""
    bench = Bench(HEAD + "gpus:\n  - calls: {nvmlDeviceGetMemoryInfo: {totl: 5}}\n", tmp_path)
    assert bench.ask("nvmlDeviceGetMemoryInfo") == 999
    assert "nvmlDeviceGetMemoryInfo" in caplog.text
    assert "totl" in caplog.text


def test_which_file_is_a_capture(tmp_path: Path) -> None:
    """The content decides, not the name: a scenario stays one."""
    scenario, capture = tmp_path / "capture.yaml", tmp_path / "node.txt"
    scenario.write_text("gpus: [{model: h100}]\n# gpuagent-capture: in a comment\n")
    capture.write_text(HEAD + "gpus: [{base: h100}]\n")
    assert not isinstance(open_node(str(scenario), ManualClock()), CapturedNode)
    assert isinstance(open_node(str(capture), ManualClock()), CapturedNode)


def test_the_documented_file_is_one(tmp_path: Path) -> None:
    """The example of docs/captures.md can be replayed as it stands there, and all keys are in the tables."""
    document = (Path(__file__).parents[2] / "docs" / "captures.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)
    bench = Bench(example, tmp_path)
    assert bench.ask("nvmlDeviceGetName") == "NVIDIA GB10"
    assert bench.ask("nvmlDeviceGetClockInfo", 1) == 208
    assert bench.processes()[0][1] == 63931 * 2**20
    words = set(re.findall(r"`([\w-]+)(?:: \w+)?`", document))
    assert words >= file.KEYS | file.GPU_KEYS | PROCESS_FACTS
