"""The leak detector: how sure it must be, on the whole node and for whom otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from gpuagent.config.remedies import match_problems
from gpuagent.config.values import ContainerName, ServiceName, Text, UserName
from gpuagent.core.problems import Problem, listed
from gpuagent.core.sections import Section, key

LEAST_FIRST = ("off", "strict", "balanced", "sensitive")
"""Every sensitivity, from the least sensitive on."""


class OverrideMatch(Section):
    """Whose memory an override is for: all keys given must hold of a process."""

    app: Text | None = key(
        default=None,
        description="The name that an embedded client gave its app. Any process may give itself any name: so it can "
        "make the detector less sensitive for its own process, and nothing else.",
    )
    unit: ServiceName | None = key(default=None, description="A systemd unit, such as whisper.service.")
    user: UserName | None = key(
        default=None,
        description="A user's name. Processes in containers do not count: a container chooses its user ids.",
    )
    process_name: Text | None = key(
        default=None,
        description="The whole name of the process, as `gpuagent ps` shows it. It chooses it for itself alone.",
    )
    container: ContainerName | None = key(
        default=None,
        description="A container's id, or its name where that is known; without an id `lxc/NAME` or "
        "`systemd-nspawn/NAME`.",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        if not given:
            yield Problem((), "is empty: it would match every process", listed(cls.keys))
        yield from match_problems(given, cls.keys)


class LeakOverride(Section):
    """Another sensitivity for some processes. The first override that matches a process is taken."""

    match: OverrideMatch = key(description=OverrideMatch.__doc__)
    sensitivity: Literal["off", "strict", "balanced", "sensitive"] = key(
        description="As `leaks.sensitivity`; `off`: its growth is never called a leak, and goes on being watched and "
        "forecast.",
    )


class Leaks(Section):
    """The leak detector."""

    sensitivity: Literal["strict", "balanced", "sensitive"] = key(
        default="balanced",
        description="How much evidence a leak needs: `strict` is nearly never wrong and slow, "
        "`sensitive` is early and sometimes wrong.",
    )
    overrides: tuple[LeakOverride, ...] = key(
        default=(),
        max_length=1000,
        description="Another sensitivity for some processes: the first one that matches is taken, and an override that "
        "names an `app` only where it makes the detector less sensitive than it would be without. "
        "`gpuagent leaks tune` writes one. A change at a reload loses no history.",
    )
    blame: Literal["manual", "automatic"] = key(
        default="manual",
        description="`automatic`: an app with the embedded client that is found leaking is asked which line holds the "
        "memory, and the alert tells. The app stands still while it forks, twice for some 30 ms per GiB resident. "
        "`manual`: only `gpuagent blame` asks.",
    )

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        overrides = given.get("overrides")
        items = (
            [item if isinstance(item, Mapping) else {} for item in overrides] if isinstance(overrides, tuple) else []
        )
        yield from _check_apps(items, given.get("sensitivity", "balanced"))
        yield from _check_reached(items)


def _check_apps(items: list[Mapping[str, object]], default: object) -> Iterator[Problem]:
    """Find apps that would make the detector more sensitive by the name that they give themselves."""
    others = [item.get("sensitivity") for item in items if not _names_app(item)]
    most = max((_rank(value) for value in (default, *others)), default=0)
    for index, item in enumerate(items):
        if _names_app(item) and _rank(item.get("sensitivity")) > most:
            yield Problem(
                ("overrides", index, "sensitivity"),
                f"{item['sensitivity']} is more sensitive than anything else here, and an app says by itself what it "
                "is called: that may only make the detector less sensitive",
                f"{listed(LEAST_FIRST[: most + 1])}, or a match without app",
            )


def _check_reached(items: list[Mapping[str, object]]) -> Iterator[Problem]:
    """Find overrides that are never reached, as an earlier one matches the same."""
    seen: dict[frozenset[tuple[str, str]], int] = {}
    for index, item in enumerate(items):
        match = item.get("match")
        keys = (
            frozenset((key, str(value)) for key, value in match.items()) if isinstance(match, Mapping) else frozenset()
        )
        first = seen.setdefault(keys, index) if keys else index
        if first != index:
            yield Problem(
                ("overrides", index, "match"),
                f"is the same as that of overrides[{first}], which comes first: this one is never reached",
                "one override for each match",
            )


def _names_app(item: Mapping[str, object]) -> bool:
    match = item.get("match")
    return isinstance(match, Mapping) and bool(match.get("app"))


def _rank(value: object) -> int:
    """Return how sensitive; 0 for what is no sensitivity, which is told elsewhere."""
    return LEAST_FIRST.index(value) if isinstance(value, str) and value in LEAST_FIRST else 0
