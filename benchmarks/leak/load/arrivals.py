"""What services were asked: recorded series that the user names, or generated ones of the same kinds.

A series is a count of requests in each 5 minutes. A file of recorded series is numpy's `.npz`: one-dimensional arrays
of counts, and arrays of two columns with the tokens that each request read and wrote.
"""

from __future__ import annotations

import ast
import math
import random
import struct
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STEP_SECONDS: Final = 300.0
DAY_SECONDS: Final = 86_400.0
_RUSH: Final = 12.0
"""The most times its mean that a series asks for: a service turns the rest away."""
_TYPES: Final = dict(zip(("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"), "bBhHiIqQfd", strict=True))
"""`array`'s letters for numpy's names of numbers."""


@dataclass(frozen=True)
class Load:
    """Requests over time, relative to their mean, and the sizes of requests relative to theirs."""

    name: str
    counts: Sequence[float]
    """Each 5 min; the mean is 1."""
    sizes: Sequence[float] = (1.0,)

    def rate(self, seconds: float) -> float:
        """Return the load at this time; the series begins again at its end."""
        place = seconds / STEP_SECONDS
        first = int(place)
        rest = place - first
        counts = self.counts
        return counts[first % len(counts)] * (1 - rest) + counts[(first + 1) % len(counts)] * rest


def recorded(path: Path) -> list[Load]:
    """Return the series of a file. Raises OSError, and ValueError where there is none."""
    series: dict[str, list[float]] = {}
    tokens: dict[str, list[float]] = {}
    for name, (shape, values) in _arrays(path).items():
        if len(shape) == 1:
            series[name] = values
        elif len(shape) == 2 and shape[1] == 2:
            tokens[name] = [values[place] + 4 * values[place + 1] for place in range(0, len(values), 2)]
    if not series:
        raise ValueError(f"{path} has no series of counts")
    sizes = [_relative(one) for _, one in sorted(tokens.items())] or [[1.0]]
    return [
        Load(name, _relative(counts), sizes[place % len(sizes)])
        for place, (name, counts) in enumerate(sorted(series.items()))
    ]


def generated(count: int, seed: int) -> list[Load]:
    """Return so many made-up series of eight weeks: days, weeks and rushes, some with office hours, some even."""
    return [_generate(f"generated-{seed + place}", random.Random(7919 * (seed + place) + 5)) for place in range(count)]


def _generate(name: str, rng: random.Random) -> Load:
    kind = rng.choice(("day", "day", "office", "even"))
    night, weekend = rng.uniform(0.05, 0.5), rng.uniform(0.2, 1.0)
    phase, noise = rng.uniform(0, DAY_SECONDS), rng.uniform(0.05, 0.4)
    counts: list[float] = []
    rush, wobble = 0.0, 0.0
    for place in range(int(56 * DAY_SECONDS / STEP_SECONDS)):
        at = place * STEP_SECONDS + phase
        hour, day = at % DAY_SECONDS / 3600, int(at // DAY_SECONDS) % 7
        height = 1.0
        if kind == "day":
            height = night + (1 - night) * (0.5 - 0.5 * math.cos(2 * math.pi * hour / 24))
        elif kind == "office":
            height = 1.0 if 8 <= hour < 18 and day < 5 else 0.02
        if day >= 5 and kind == "day":
            height *= weekend
        wobble = 0.95 * wobble + rng.gauss(0, 0.1 * noise)
        rush = rng.uniform(2, 8) if rng.random() < 0.0005 else rush * 0.9
        counts.append(max(0.0, height * math.exp(wobble + rng.gauss(0, noise)) + rush))
    sizes = [math.exp(rng.gauss(-0.3, 0.8)) for _ in range(4000)]
    return Load(name, _relative(counts), _relative(sizes))


def office(load: Load) -> Load:
    """Return the same asked in office hours alone: five days of ten hours."""
    step = STEP_SECONDS
    counts = [
        count if 8 <= place * step % DAY_SECONDS / 3600 < 18 and int(place * step // DAY_SECONDS) % 7 < 5 else 0.0
        for place, count in enumerate(load.counts)
    ]
    return Load(f"{load.name}, office hours", _relative(counts), load.sizes)


def _relative(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    if not mean > 0:
        raise ValueError("a series without a request")
    clipped = [min(value / mean, _RUSH) for value in values]
    again = math.fsum(clipped) / len(clipped)
    return [value / again for value in clipped]


def _arrays(path: Path) -> Mapping[str, tuple[tuple[int, ...], list[float]]]:
    """Return numpy's arrays, without numpy: little-endian numbers in C order are all that is read."""
    found: dict[str, tuple[tuple[int, ...], list[float]]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                found[entry.removesuffix(".npy")] = _array(archive.read(entry))
    except (zipfile.BadZipFile, struct.error, SyntaxError, KeyError) as error:
        raise ValueError(f"{path} is no file of arrays: {error}") from error
    return found


def _array(data: bytes) -> tuple[tuple[int, ...], list[float]]:
    if data[:6] != b"\x93NUMPY":
        raise ValueError("not an array of numpy's")
    form, size = ("<H", 2) if data[6] == 1 else ("<I", 4)
    (length,) = struct.unpack_from(form, data, 8)
    begin = 8 + size + length
    head = ast.literal_eval(data[8 + size : begin].decode("latin-1").strip())
    if head["fortran_order"]:
        raise ValueError("an array that is not in C order")
    numbers = array(_TYPES[head["descr"].lstrip("<|=")])
    numbers.frombytes(data[begin:])
    return tuple(head["shape"]), [float(number) for number in numbers]
