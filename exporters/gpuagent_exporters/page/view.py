"""How a person wants the page: its range, and which processes in which order. All of it is in the address's query.

So everything works without a script, and a link to a page shows others the same. What is not understood is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from gpuagent_exporters.charts import RANGES
from gpuagent_exporters.page.html import attribute, text

RANGE_WORDS: Final = {"15m": "15 min", "1h": "1 h", "6h": "6 h", "1d": "1 day"}
DEFAULT_RANGE: Final = "1h"
_MOST_CHARACTERS: Final = 100
_SORTS: Final = frozenset({
    "process", "memory", "full", "verdict", "growth", "gpu", "pid", "user", "busy", "allocator", "belongs", "command",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What is shown, as the query says."""

    range: str = DEFAULT_RANGE
    sort: str = ""
    """Name of a column of the processes; "" for the gravest first, then the largest."""
    ascending: bool = False
    filter: str = ""
    all: bool = False
    """Show all processes, and not only the first ones."""

    def link(self, fragment: str = "", **changes: str | bool) -> str:
        """Return the address of this view with changes, fit for an attribute."""
        view = replace(self, **changes)  # type: ignore[arg-type]  # fields of this class
        query = {
            "range": view.range if view.range != DEFAULT_RANGE else "",
            "sort": view.sort,
            "order": "up" if view.ascending and view.sort else "",
            "filter": view.filter,
            "all": "1" if view.all else "",
        }
        return attribute(f"?{urlencode({key: value for key, value in query.items() if value})}{fragment}")


def view_of(query: Mapping[str, str]) -> PageQuery:
    """Return the view that a query asks for."""
    sort, chosen = query.get("sort", ""), query.get("range", "")
    return PageQuery(
        range=chosen if chosen in RANGES else DEFAULT_RANGE,
        sort=sort if sort in _SORTS else "",
        ascending=query.get("order") == "up",
        filter=query.get("filter", "")[:_MOST_CHARACTERS],
        all=query.get("all") == "1",
    )


def range_picker(view: PageQuery, known_seconds: float) -> str:
    """Render links to the ranges. One that shows no more than the one before it is no link."""
    items, before = [], 0.0
    for name, words in RANGE_WORDS.items():
        if name == view.range:
            items.append(f'<li><a href="{view.link(range=name)}" data-view aria-current="true">{words}</a></li>')
        elif known_seconds > before:
            items.append(f'<li><a href="{view.link(range=name)}" data-view>{words}</a></li>')
        else:
            items.append(f'<li><span class="off">{words}<span class="hear"> (not kept yet)</span></span></li>')
        before = RANGES[name]
    return f'<ul class="ranges" aria-label="Range of the charts">{"".join(items)}</ul>'


def filter_words(view: PageQuery) -> str:
    """Say what the processes are filtered by, with the way out; empty without a filter."""
    if not view.filter:
        return ""
    return f'filtered by {text(view.filter)} · <a href="{view.link("#processes", filter="")}" data-view>clear</a>'
