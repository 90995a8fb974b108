"""Notes on entries of the never-list that are the names of something else than a program, and so spare nobody."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_ALLOW = "are spared by leaving them out of remedies.allow"


class _Form(NamedTuple):
    pattern: re.Pattern[str]
    text: str
    """What it is, and what to write."""


_FORMS = (
    _Form(
        re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*"),
        f"is an address, and no name or path of a program: containers and images {_ALLOW}.containers; for a program"
        " write its name, or its path from / on",
    ),
    _Form(
        re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]*", re.IGNORECASE),
        f"is a GPU, and never names programs: GPUs {_ALLOW}.gpus",
    ),
    _Form(
        re.compile(r"([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE),
        f"is a PCI address, and never names programs: GPUs {_ALLOW}.gpus",
    ),
    _Form(
        re.compile(r"[0-9]{1,10}"),
        "is a number, and is compared with names of programs, not with pids, uids or jobs: write the name of the"
        " program, and leave users and jobs out of remedies.allow",
    ),
    _Form(
        re.compile(r"(?=.*[0-9])([0-9a-f]{12}|[0-9a-f]{64})"),
        f"looks like the id of a container, and never names programs: containers {_ALLOW}.containers",
    ),
)


def form_notes(entries: Iterable[str], is_program: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Yield the place and the text of each note; `is_program` says whether a program of that name is found here."""
    for index, entry in enumerate(entries):
        form = next((each for each in _FORMS if each.pattern.fullmatch(entry)), None)
        if form is not None and not is_program(entry):
            yield index, f"{entry} {form.text}"
        elif not {"[", "?"}.isdisjoint(entry) and not is_program(entry) and not Path(entry).exists():
            yield index, f"{entry}: [ and ? mean themselves here, and * alone stands for any text: {_with_stars(entry)}"
        elif "/" in entry and "**" in entry:
            yield index, f"{entry}: * means any text here, slashes too, so that ** is no more: write {_one_star(entry)}"


def _with_stars(entry: str) -> str:
    """Return what a shell's pattern is written as; it may mean more."""
    stars = re.sub(r"[*?]+", "*", re.sub(r"\[[^]]*\]", "*", entry))
    return f"write {stars}, if it is meant as a shell's pattern"


def _one_star(entry: str) -> str:
    """Return what is meant by a shell's `**`, which stands for no directory at all as well."""
    single = re.sub(r"\*{2,}", "*", entry)
    if "/**/" not in entry:
        return single
    return f"{single} and, for what lies in the directory itself, {re.sub(r'/[*]{2,}/', '/', entry)}"
