"""The formats of recorded traces: what is read, what is skipped and named, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_alerts.leak.replay.prometheus_trace import MOST_VALUE_BYTES, JsonScanner
from gpuagent_alerts.leak.replay.rows import LINE_CHARACTERS, Row, TraceError
from gpuagent_alerts.leak.replay.run import MOST_PROCESSES, DownsampledSeries, replay_rows
from gpuagent_alerts.leak.replay.trace_files import open_trace

GIB = 2**30


def read(path: Path, total_bytes: int | None = None) -> tuple[list[Row], list[tuple[int, str]]]:
    """The rows of a file, and the faults in it."""
    faults: list[tuple[int, str]] = []
    with open_trace(path, total_bytes, lambda line, what: faults.append((line, what))) as rows:
        return list(rows), faults


def written(folder: Path, content: str | bytes, name: str = "trace") -> Path:
    """A file with it."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv(tmp_path: Path) -> None:
    """Columns in any order, empty cells, a byte order mark, unknown columns, and Windows' line ends."""
    rows, faults = read(
        written(
            tmp_path,
            '\ufeffprocess,used_bytes, time_seconds,note,free_bytes\r\n"a,b",100,1.5,x,200\r\nc,,2,,\r\n\r\n',
        )
    )

    assert rows == [(1.5, 100, 200, None, None, "a,b"), (2, None, None, None, None, "c")]
    assert faults == []


def test_csv_without_free_memory(tmp_path: Path) -> None:
    """Free memory is what the processes leave of the total, one beside or after the other; quoted names are names."""
    content = '"time_seconds","used_bytes","process"\n0,10,a\n0,20,b\n5,,a\n5,30,b\n90,40,b\n0,50,c\n'
    path = written(tmp_path, content)

    assert [row[2] for row in read(path, 100)[0]] == [90, 70, 70, 60, 60, 50]
    assert {row[2] for row in read(path)[0]} == {None}


def test_malformed_rows_are_named_by_their_line(tmp_path: Path) -> None:
    """Each is skipped at its own cost; the good ones around it count."""
    rows, faults = read(
        written(
            tmp_path,
            "time_seconds,used_bytes\n1,100\nx,100\n2\n3,-5\n4,nan\n5,inf\nnan,1\n6,1e300\n7,1,1\n8,100\n",
        )
    )

    assert [row[0] for row in rows] == [1, 8]
    assert [line for line, _ in faults] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert faults[0][1] == "could not convert string to float: 'x'"
    assert faults[1][1] == "1 cells where the first line has 2"


def test_compressed(tmp_path: Path) -> None:
    """Gzip is known by its content, not by its name; a file that is cut off is an error after what could be read."""
    whole = gzip.compress(b"time_seconds,used_bytes\n" + b"".join(b"%d,100\n" % k for k in range(9000)))
    assert len(read(written(tmp_path, whole))[0]) == 9000

    with pytest.raises(TraceError, match="end-of-stream"):
        read(written(tmp_path, whole[:-400]))


@pytest.mark.parametrize("compress", [False, True])
def test_a_pipe(tmp_path: Path, compress: bool) -> None:
    """What a shell puts in the place of a file, as in `replay <(zcat ...)`, is read like a file."""
    content = b"time_seconds,used_bytes\n1,100\n2,200\n"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[gzip.compress(content) if compress else content])
    writer.start()
    rows, faults = read(pipe)
    writer.join()

    assert ([row[1] for row in rows], faults) == ([100, 200], [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("hello\n", "neither CSV"),
        ("time_seconds,free_bytes\n1,2\n", "neither CSV"),
        ("time_seconds,used_bytes,used_bytes\n", "names used_bytes twice"),
        (b"\x1f\x8bgarbage", "compression method|Not a gzipped|end-of-stream"),
        (b"\xff\xfe\x00\x01" * 100, "neither CSV"),
        ("{", "no JSON at byte 1"),
        ("{}", "no series of used memory"),
        ('{"status":"error","error":"x"}', "tells of an error"),
        ('{"status":"success","data":{"resultType":"vector","result":[]}}', "instant query"),
        ('{"status":"success","data":{"resultType":"matrix","result":[]}}', "no series"),
        ('{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"]', "JSON"),
        ("timestamp, pid, used_gpu_memory [MiB]\n", "--total"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, content: str | bytes, message: str) -> None:
    """Each has a message that tells what is wrong."""
    with pytest.raises(TraceError, match=message):
        read(written(tmp_path, content))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The system's own words."""
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "nothing")


def test_a_file_without_line_ends(tmp_path: Path) -> None:
    """It is read in pieces, each of which is malformed: no memory, no wait."""
    rows, faults = read(written(tmp_path, "time_seconds,used_bytes\n" + "9" * (3 * LINE_CHARACTERS)))

    assert rows == []
    assert faults


SMI = """timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]
2026/11/20 10:00:00.100, GPU-1, 10, /usr/bin/python3, 1024 MiB
2026/11/20 10:00:00.100, GPU-1, 11, /usr/bin/ollama, 2048 MiB
2026/11/20 10:00:05.100, GPU-1, 10, /usr/bin/python3, [N/A]
timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]
2026/11/20 10:00:10.100, GPU-1, 10, /usr/bin/python3, 1025 MiB
yesterday, GPU-1, 10, python3, 1 MiB
2026/11/20 10:02:00.100, GPU-1, 10, /usr/bin/python3, 1 GiB
2026/11/20 10:02:05.100, GPU-1, 10, /usr/bin/python3, 7 furlongs
"""


def test_nvidia_smi(tmp_path: Path) -> None:
    """Free memory is what the listed processes leave; a repeated header, or what is not told, is no fault."""
    rows, faults = read(written(tmp_path, SMI), 80 * GIB)
    first = rows[0][0]

    assert [(row[0] - first, row[1], row[2], row[5]) for row in rows] == [
        (0, GIB, 79 * GIB, "python3:10 on GPU-1"),
        (0, 2 * GIB, 77 * GIB, "ollama:11 on GPU-1"),
        (5, None, 77 * GIB, "python3:10 on GPU-1"),
        (10, 1025 * 2**20, 80 * GIB - 3073 * 2**20, "python3:10 on GPU-1"),
        (120, GIB, 79 * GIB, "python3:10 on GPU-1"),  # the other one was not listed for a minute
    ]
    assert [line for line, _ in faults] == [7, 9]
    assert first == 1_795_168_800.1


def test_nvidia_smi_without_units(tmp_path: Path) -> None:
    """With nounits, the header has the unit."""
    rows, _ = read(written(tmp_path, "timestamp, pid, used_memory [MiB]\n2026/11/20 10:00:00.0, 7, 3\n"), GIB)

    assert [row[1:] for row in rows] == [(3 * 2**20, GIB - 3 * 2**20, None, None, "process:7")]


def answer(*series: tuple[dict[str, str], Iterable[tuple[float, Any]]]) -> str:
    """A range query's answer."""
    result = [{"metric": metric, "values": [[t, str(v)] for t, v in values]} for metric, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}, "infos": [{}]})


PROCESS = {"gpu": "0", "uuid": "GPU-1", "pid": "10", "process": "python3", "instance": "node:9"}


@pytest.mark.parametrize("compress", [False, True])
def test_prometheus(tmp_path: Path, compress: bool) -> None:
    """Series of one process are joined by time; a moment that one of them lacks has no reading of it."""
    gpu = {"gpu": "0", "uuid": "GPU-1", "instance": "node:9"}
    text = answer(
        ({"__name__": "gpuagent_torch_memory_allocated_bytes", **PROCESS}, [(1, 5), (3, 6)]),
        ({"__name__": "gpuagent_process_memory_used_bytes", **PROCESS}, [(1, 10), (2, 11), (3, "NaN"), (4, 12)]),
        ({"__name__": "gpuagent_gpu_memory_free_bytes", **gpu}, [(1, 90), (2, 89), (4, 88)]),
    )
    rows, faults = read(written(tmp_path, gzip.compress(text.encode()) if compress else text))

    name = "python3:10 on GPU 0 of node:9"
    assert rows == [(1, 10, 90, 5, None, name), (2, 11, 89, None, None, name), (4, 12, 88, None, None, name)]
    assert len(faults) == 1


def test_prometheus_of_other_exporters(tmp_path: Path) -> None:
    """Any metric counts as used bytes; free is what the series of a GPU leave of --total."""
    text = answer(
        ({"__name__": "container_gpu_bytes", "uuid": "GPU-1", "pod": "b"}, [(1, GIB)]),
        ({"__name__": "container_gpu_bytes", "uuid": "GPU-1", "pod": "a"}, [(1, 2 * GIB)]),
    )
    rows, _ = read(written(tmp_path, text), 80 * GIB)

    assert sorted((row[1], row[2], row[5]) for row in rows) == [
        (GIB, 77 * GIB, 'container_gpu_bytes{pod="b",uuid="GPU-1"}'),
        (2 * GIB, 77 * GIB, 'container_gpu_bytes{pod="a",uuid="GPU-1"}'),
    ]


def test_prometheus_by_promtool(tmp_path: Path) -> None:
    """`promtool query range -o json` writes the series without what is around them; a list of other things is none."""
    text = answer(({"__name__": "gpuagent_process_memory_used_bytes", **PROCESS}, [(1, 10), (2, 11)]))
    rows, faults = read(written(tmp_path, json.dumps(json.loads(text)["data"]["result"])), 100)

    name = "python3:10 on GPU 0 of node:9"
    assert (rows, faults) == ([(1, 10, 90, None, None, name), (2, 11, 89, None, None, name)], [])
    with pytest.raises(TraceError, match="no JSON at byte 1"):
        read(written(tmp_path, "[1, 2]"))
    with pytest.raises(TraceError, match="no series of used memory"):
        read(written(tmp_path, "[]"))


@pytest.mark.slow
def test_a_value_that_is_too_large_to_hold() -> None:
    """A string of megabytes where a label should be is an error, not memory."""
    scan = JsonScanner(io.BytesIO(b'"' + b"x" * (8 * MOST_VALUE_BYTES) + b'"'))
    with pytest.raises(TraceError, match="a value of more than"):
        scan.value()


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


@given(_JSON, st.integers(1, 9), st.sampled_from([None, 1]))
@settings(max_examples=80)
def test_the_scanner_reads_as_json_does(value: Any, chunk: int, indent: int | None) -> None:
    """Whatever the value, and wherever the chunks end: values are json's, and skipping ends at the same place."""
    text = json.dumps([value, "end"], indent=indent).encode()
    for skip in (False, True):
        scan = JsonScanner(io.BytesIO(text), 0, chunk)
        scan.need(b"[")
        if skip:
            scan.skip()
        else:
            assert scan.value() == value
        scan.need(b",")
        assert scan.value() == "end"
        scan.need(b"]")


@pytest.mark.slow
@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_garbage_is_a_clear_error_or_rows(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """No bytes whatever are more than a TraceError."""
    for start in (b"", b"{", b"[", b'{"data":{"result":[{"metric":', b"time_seconds,used_bytes\n", b"\x1f\x8b"):
        path = written(tmp_path_factory.getbasetemp(), start + data, "garbage")
        with suppress(TraceError):
            read(path, GIB)


def test_a_process_that_goes_back_in_time() -> None:
    """Its rows of the past are named and skipped."""
    faults: list[str] = []
    rows = iter([(5.0, 1.0, 1.0, None, None, "a"), (4.0, 1.0, 1.0, None, None, "a"), (4.0, 1.0, 1.0, None, None, "b")])
    found = list(replay_rows(rows, lambda _, what: faults.append(what)))

    assert [(one.process, one.samples) for one in found] == [("a", 1), ("b", 1)]
    assert faults == ["a goes back in time at 4 s"]


@pytest.mark.slow
def test_processes_without_end_are_bounded() -> None:
    """Of more than 4,096 processes, the one unseen for longest is told first, and no longer held."""
    rows = ((float(k), 1.0 * GIB, 1.0 * GIB, None, None, str(k)) for k in range(MOST_PROCESSES + 3))
    found = list(replay_rows(rows, lambda *_: None))

    assert [one.process for one in found[:4]] == ["0", "1", "2", "3"]
    assert len(found) == MOST_PROCESSES + 3


@given(st.lists(st.tuples(st.floats(0.01, 5000), st.floats(1, 1e9)), min_size=1, max_size=400))
@settings(max_examples=50)
def test_a_sketch_is_bounded_and_keeps_the_highest_and_lowest(steps: list[tuple[float, float]]) -> None:
    """Any number of readings over any time: few points, in order, with the highest and lowest of all."""
    sketch = DownsampledSeries(most=16)
    seconds = 0.0
    for step, value in steps:
        seconds += step
        sketch.add(seconds, value, None, None)
    points = sketch.points()

    assert len(points) <= 16
    lowest = [point.lowest_used_bytes for point in points if point.lowest_used_bytes is not None]
    assert min(lowest) == min(value for _, value in steps)
    assert max(point.used_bytes or 0 for point in points) == max(value for _, value in steps)
    assert [point.seconds for point in points] == sorted(point.seconds for point in points)
