"""Families of the embedded clients as a whole: how many there are, and what became of connections and commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpuagent.catalogue.family import Family, Kind, Labelled, Value, single


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """The clients' door at a moment."""

    listening: bool
    clients: int = 0
    accepted: int = 0
    lines: int = 0
    events: int = 0
    throttlings: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    """Connections that never became a client, by reason."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Connections that the agent ended, by reason."""
    commands: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By command and outcome."""


ClientFamily = Family[ClientFigures]


def _by_reason(read: Callable[[ClientFigures], Mapping[str, int]]) -> Callable[[ClientFigures], Iterable[Labelled]]:
    return lambda figures: (((reason,), count) for reason, count in read(figures).items())


def _commands(figures: ClientFigures) -> Iterable[Labelled]:
    return (((command, outcome), count) for (command, outcome), count in figures.commands.items())


def _count(name: str, text: str, read: Callable[[ClientFigures], Value]) -> ClientFamily:
    return _family(name, text, single(read), kind=Kind.COUNTER)


def _family(
    name: str, text: str, of: Callable[[ClientFigures], Iterable[Labelled]], labels: tuple[str, ...] = (),
    kind: Kind = Kind.GAUGE,
) -> ClientFamily:  # fmt: skip
    return Family(f"gpuagent_{name}", kind, text, "clients", labels, of)


CLIENT_FAMILIES: tuple[ClientFamily, ...] = (
    _family("client_socket_up", "1 while apps with the embedded client can connect.",
            single(lambda figures: figures.listening)),
    _family("clients", "Apps with the embedded client that are connected.", single(lambda figures: figures.clients)),
    _count("client_connections_total", "Connections of embedded clients.", lambda figures: figures.accepted),
    _family("client_connections_refused_total", "Connections that were not taken: of too many, of a false pid...",
            _by_reason(lambda figures: figures.refused), ("reason",), Kind.COUNTER),
    _family("client_connections_dropped_total", "Connections that the agent ended: malformed lines, stalled...",
            _by_reason(lambda figures: figures.dropped), ("reason",), Kind.COUNTER),
    _count("client_lines_total", "Lines that embedded clients sent.", lambda figures: figures.lines),
    _count("client_events_total", "Events that apps reported.", lambda figures: figures.events),
    _count("client_throttlings_total", "Times that a client sent more than its share and had to wait.",
           lambda figures: figures.throttlings),
    _family("client_commands_total", "Commands to apps, by what became of them.", _commands, ("command", "outcome"),
            Kind.COUNTER),
)  # fmt: skip
