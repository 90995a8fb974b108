"""A picture as shapes and texts, and how it is written as SVG: the same picture is the same file, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

Points = Sequence[tuple[float, float]]
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, in pixels from the upper left corner. Colors are `#rrggbb`."""

    points: Points
    color: str
    width: float = 1.0
    dashes: tuple[float, float] | None = None
    """Lengths of a dash and of the gap behind it; None for a solid line."""


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon."""

    points: Points
    color: str
    opacity: float = 1.0


@dataclass(frozen=True, slots=True)
class Label:
    """A text whose baseline begins, has its middle, or ends at a point."""

    x: float
    y: float
    text: str
    color: str
    size: int = 12
    anchor: Anchor = "start"
    is_bold: bool = False


@dataclass(slots=True)
class Drawing:
    """A picture on a white ground; what comes later lies on what came before, and texts on everything."""

    width: float
    height: float
    title: str = ""
    """What the picture shows, for who cannot see it."""
    items: list[Line | Area | Label] = field(default_factory=list)


def box(left: float, top: float, width: float, height: float, color: str, opacity: float = 1.0) -> Area:
    """Return a rectangle."""
    right, bottom = left + width, top + height
    return Area([(left, top), (right, top), (right, bottom), (left, bottom)], color, opacity)


def to_svg(drawing: Drawing) -> str:
    """Return the picture as an SVG document."""
    width, height = f"{drawing.width:g}", f"{drawing.height:g}"
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" role="img">',
        f"<title>{_text(drawing.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    parts += [_element(item) for item in drawing.items if not isinstance(item, Label)]
    parts += [_element(item) for item in drawing.items if isinstance(item, Label)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _element(item: Line | Area | Label) -> str:
    if isinstance(item, Label):
        weight = ' font-weight="600"' if item.is_bold else ""
        anchor = "" if item.anchor == "start" else f' text-anchor="{item.anchor}"'
        place = f'x="{item.x:.1f}" y="{item.y:.1f}"'
        return f'<text {place} fill="{item.color}" font-size="{item.size}"{weight}{anchor}>{_text(item.text)}</text>'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in item.points)
    if isinstance(item, Area):
        opacity = "" if item.opacity == 1 else f' fill-opacity="{item.opacity:g}"'
        return f'<polygon points="{points}" fill="{item.color}"{opacity}/>'
    dashes = "" if item.dashes is None else f' stroke-dasharray="{item.dashes[0]:g} {item.dashes[1]:g}"'
    style = f'stroke="{item.color}" stroke-width="{item.width:g}"{dashes} stroke-linejoin="round"'
    return f'<polyline points="{points}" fill="none" {style}/>'


def _text(text: str) -> str:
    return escape(printable(text))


def printable(text: str) -> str:
    """Return a text with `?` for what neither XML nor a font has, such as a control character of a process's name."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
