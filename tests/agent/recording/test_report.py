"""What a recording tells at its end."""

from __future__ import annotations

from gpuagent.recording.sources import MemorySample
from gpuagent.recording.track import Track, report

MIB, GIB = 1024**2, 1024**3


def held(used_bytes: float, **changes: object) -> MemorySample:
    """On an 80 GiB GPU, alone."""
    plain = MemorySample(4711, 0, "python3", None, int(used_bytes), int(80 * GIB - used_bytes), 80 * GIB)
    return plain._replace(**changes)  # type: ignore[arg-type]


def track_of(sizes: list[float], *, ended_itself: bool = False) -> Track:
    """A reading a second."""
    track = Track("python3:4711", 0)
    for second, size in enumerate(sizes):
        track.add(float(second), held(size))
    track.end(ended_itself=ended_itself)
    return track


def test_a_leak_of_a_mebibyte_a_second() -> None:
    """Peak, floor, growth an hour and per request, and the room that was left."""
    lines = report([track_of([10.0 * GIB + k * MIB for k in range(1201)])], 1200.0, requests=2400)

    assert lines[0] == "recorded 20 min: 1201 readings"
    assert lines[2] == "python3:4711 on GPU 0"
    assert [line.split()[0] for line in lines[3:]] == ["peak", "floor", "growth", "headroom", "verdict"]
    assert "11.2 GiB, 20 min after the start" in lines[3]
    assert "11.2 GiB held at the end" in lines[4]
    assert "3.5 GiB/h" in lines[5]
    assert "512.0 KiB per request" in lines[5]
    assert "68.8 GiB of 80.0 GiB" in lines[6]


def test_a_leak_is_called_one_with_its_reasons() -> None:
    """LEAK-02's counterpart: two hours of 8 MiB a second are a leak, and the report says since when."""
    lines = report([track_of([10.0 * GIB + k * 8 * MIB for k in range(7200)])], 7200.0)

    assert lines[-1].split("(")[0].split() == ["verdict", "leaking"]
    assert "first called a leak" in lines[-1]
    assert "floor of" in lines[-1]


def test_a_warm_up_is_no_growth() -> None:
    """LEAK-01: what rises in the first half and stands in the second has not grown."""
    lines = report([track_of([min(k, 200) * 64.0 * MIB for k in range(1, 1200)])], 1199.0)

    assert "0 B/h" in lines[5]
    assert "leaking" not in lines[-1]


def test_a_short_recording_says_that_it_is_short() -> None:
    """No verdict is not "steady"."""
    lines = report([track_of([GIB, GIB, GIB, GIB])], 3.0)

    assert lines[-1] == "  verdict   learning: too short a time to tell a leak from warming up"


def test_the_last_reading_of_a_process_that_ended_is_not_its_floor() -> None:
    """It may be half of its way out."""
    sizes = [5.0 * GIB] * 50 + [0.1 * GIB]

    assert "5.0 GiB held at the end" in report([track_of(sizes, ended_itself=True)], 51.0)[4]
    assert "102.4 MiB held at the end" in report([track_of(sizes)], 51.0)[4]


def test_missing_readings_are_counted() -> None:
    """They are neither zero nor the last value."""
    track = Track("x:1", 0)
    for second in range(60):
        track.add(float(second), held(GIB) if second % 10 else None)
    track.end(ended_itself=False)

    assert report([track], 60.0)[0] == "recorded 1 min: 54 readings, 6 missing"


def test_nothing_held_is_said() -> None:
    """A command that never came to the GPU is the most frequent mistake."""
    assert report([], 12.0) == ["recorded 12 s: no process of it held GPU memory"]


def test_the_largest_come_first_and_a_crowd_is_cut() -> None:
    """A launcher with a hundred workers has a report that can be read."""
    tracks = []
    for number in range(100):
        track = Track(f"worker:{number}", 0)
        track.add(0.0, held((number + 1) * MIB))
        track.end(ended_itself=False)
        tracks.append(track)
    lines = report(tracks, 5.0)

    assert lines[2] == "worker:99 on GPU 0"
    assert lines[-1] == "and 84 processes with less, which are in the file"


def test_no_free_memory_told_is_no_headroom() -> None:
    """A GPU without memory of its own (LEAK on a shared one) has figures that are not there."""
    track = Track("x:1", 0)
    track.add(0.0, held(GIB, free_bytes=None, total_bytes=None))
    track.end(ended_itself=False)

    assert "  headroom  the driver tells no free memory" in report([track], 5.0)
