"""The third look: what the child writes about each holder."""

from __future__ import annotations

import gc
import json
import types
from collections.abc import Iterable
from types import ModuleType

from gpuagent_client.blame.causes import CYCLE, NATIVE, SOME_GRAPH, Cause, cause_of, hook_codes
from gpuagent_client.blame.findings import Finding, Search, length_of
from gpuagent_client.blame.fork import ThreadFrame
from gpuagent_client.blame.graph import exposes_saved_tensors
from gpuagent_client.blame.heap import ThreadValues, really, survey
from gpuagent_client.blame.lines import ADDRESSES, addresses
from gpuagent_client.blame.paths import code_name, relative, type_name
from gpuagent_client.blame.sites import MAX_SITES, Site, is_library, sites
from gpuagent_client.blame.table import decode, survivors
from gpuagent_client.blame.tensors import Key, described, live_tensors

# Of what goes into a container that only grows, all stays. Where less than this part of it does, something takes it out
# again: a bounded cache that turns over.
STAYING_PART = 0.25


def third_look(
    torch: ModuleType,
    frames: list[ThreadFrame],
    values: list[ThreadValues],
    tables: tuple[bytes, bytes],
    pace: float,
    *,
    show_keys: bool,
    top: int,
    with_addresses: bool = False,
) -> bytes:
    """Return the groups as JSON; `pace` is the length of the second gap in lengths of the first.

    `with_addresses` adds where the tensors that outlived the window lie, for `join`.
    """
    objects = gc.get_objects()
    heap = survey(objects, frames, values)
    live = live_tensors(torch, objects)
    first, second = decode(tables[0]), decode(tables[1])
    grown = survivors(first, second, live)
    search = Search(torch, heap, live, first, second, show_keys=show_keys)
    found = search.findings(grown[:top], objects)
    functions = [item for item in objects if type(item) is types.FunctionType]
    writer = _Writer(search, functions, [one.frame for one in frames], hook_codes(torch, objects), pace)
    written = []
    for one in found:
        group = writer.group(one)
        if with_addresses:
            kept = [live for live in one.tensors.values() if search.is_survivor(live)]
            group[ADDRESSES] = addresses(torch, kept)
        written.append(group)
    groups = sorted(written, key=lambda group: -int(str(group["growth_bytes"])))
    notes = [] if exposes_saved_tensors(torch) else ["this torch does not let one look into autograd graphs"]
    if len(grown) > top:
        notes.append(f"{len(grown) - top} smaller kinds of tensors were not followed")
    return json.dumps({"groups": groups[:top], "notes": notes}).encode()


class _Writer:
    def __init__(
        self,
        search: Search,
        functions: list[types.FunctionType],
        frames: list[types.FrameType],
        hooks: set[types.CodeType],
        pace: float,
    ) -> None:
        self._search = search
        self._functions = functions
        self._frames = frames
        self._hooks = hooks
        self._pace = pace

    def group(self, finding: Finding) -> dict[str, object]:
        """One holder, for the wire."""
        way, container = finding.way, finding.container
        all_sites = self._sites(finding) if finding.held.rooted else []
        adding = [site for site in all_sites if site.how != "taken"]
        cause = self._cause(finding, adding)
        place = _place(adding, finding)
        tensors = list(finding.tensors.values())
        new = [live for live in tensors if self._search.is_new(live)]
        return {
            "key": described(_main_kind(finding)),
            "count": len(tensors),
            "bytes": sum(live.storage_bytes for live in tensors) + finding.hidden_bytes,
            "growth_bytes": sum(live.storage_bytes for live in new),
            "growth_count": len(new),
            "growing": self._is_growing(finding),
            "kind": type_name(finding.container_object) if container is not None else "",
            "container": way.text(container) if container is not None else "",
            "container_length": length_of(finding.container_object) if container is not None else None,
            "path": ("autograd graph of " if finding.in_graph else "") + way.text(element=container),
            **place,
            "how": adding[0].how if adding else "",
            "others": [f"{site.file}:{site.line} in {site.function}" for site in adding[1:MAX_SITES]],
            "taken_out": [f"{site.file}:{site.line}" for site in all_sites if site.how == "taken"][:MAX_SITES],
            "cause": cause.name,
            "remedy": cause.remedy,
        }

    def _sites(self, finding: Finding) -> list[Site]:
        """Return lines of the app; of a library only if the app has no name for what it hands to it."""
        in_library: list[Site] = []
        for handle in finding.way.handles(finding.named):
            found = sites(handle, self._functions, self._frames)
            if any(site.how != "taken" for site in found):
                if not all(is_library(site.code) for site in found):
                    return found
                in_library = in_library or found
            elif not in_library:
                return found
        return in_library

    def _cause(self, finding: Finding, adding: list[Site]) -> Cause:
        if not finding.held.rooted:
            return CYCLE if finding.held.in_cycle else SOME_GRAPH if finding.in_graph else NATIVE
        carried = finding.in_graph and finding.container is None
        return cause_of(
            finding.way,
            container=finding.container,
            in_graph=finding.has_graph,
            carried=carried,
            added_by_hook=any(site.code in self._hooks for site in adding),
        )

    def _is_growing(self, finding: Finding) -> bool:
        """Return whether tensors of the whole window stay: not made once, and not pushed out again."""
        early, late = finding.made_early, finding.made_late
        if finding.container is not None:
            new = [live for live in finding.tensors.values() if self._search.is_new(live)]
            early = sum(self._search.is_survivor(live) for live in new)
            late = len(new) - early
        return late > 0 and early * self._pace >= late * STAYING_PART


def _place(adding: list[Site], finding: Finding) -> dict[str, object]:
    """file, line and function: of the code that adds, else of the function that holds it."""
    if adding:
        return {"file": adding[0].file, "line": adding[0].line, "function": adding[0].function}
    for item in reversed(list(_codes(finding))):
        code, line = item
        return {"file": relative(code.co_filename), "line": line, "function": code_name(code)}
    return {"file": "", "line": None, "function": ""}


def _codes(finding: Finding) -> Iterable[tuple[types.CodeType, int]]:
    for item in finding.way.objects:
        for name in ("", "gi_frame", "cr_frame", "ag_frame"):
            frame = item if not name else getattr(item, name, None) if _suspends(item) else None
            if really(frame, types.FrameType):
                yield frame.f_code, frame.f_lineno
        wrapped = getattr(item, "__wrapped__", None) if type_name(item) == "functools._lru_cache_wrapper" else item
        if really(wrapped, types.FunctionType):
            yield wrapped.__code__, wrapped.__code__.co_firstlineno


def _suspends(item: object) -> bool:
    return really(item, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


def _main_kind(finding: Finding) -> list[Key]:
    """Keys of one kind: the one with the most sizes, or else bytes."""
    kinds: dict[tuple[object, ...], int] = {}
    for live in finding.tensors.values():
        if live.key in finding.keys:
            kinds[live.key.kind] = kinds.get(live.key.kind, 0) + live.storage_bytes
    main = max(kinds, key=lambda kind: kinds[kind]) if kinds else next(iter(finding.keys)).kind
    return [key for key in finding.keys if key.kind == main]
