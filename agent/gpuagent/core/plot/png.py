"""A picture as PNG, by Pillow, an optional package with a font of its own.

Shapes are drawn at twice the size and made smaller, since Pillow draws their edges jagged; texts are smooth by
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from math import hypot
from typing import Any, Final

from gpuagent.core.plot.drawing import Area, Drawing, Label, Line, Points, printable

NEEDS_PILLOW: Final = "PNG needs Pillow: pip install 'gpuagent[plot]'. SVG needs nothing."
_FINE: Final = 2
"""Shapes are drawn so many times larger than they become."""
_SHARP: Final = 2
"""Pixels for each pixel of the drawing, for screens with small ones."""
_MOST_PIXELS: Final = 40_000_000
"""A drawing that would have more while it is drawn gets half as many each way."""
_ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}
_BOLD: Final = 0.03


def can_write_png() -> bool:
    """Return whether Pillow is installed."""
    return find_spec("PIL") is not None


def to_png(drawing: Drawing) -> bytes:
    """Return the picture as a PNG file. Raises ImportError without Pillow."""
    from PIL import Image, ImageDraw, ImageFont  # noqa: PLC0415 (optional)

    sharp = _SHARP if drawing.width * drawing.height * (_SHARP * _FINE) ** 2 <= _MOST_PIXELS else 1
    scale = sharp * _FINE
    image = Image.new("RGB", (round(drawing.width * scale), round(drawing.height * scale)), "#ffffff")
    pen = ImageDraw.Draw(image, "RGBA")
    for item in drawing.items:
        if isinstance(item, Area) and len(item.points) > 2:
            pen.polygon(_scaled(item.points, scale), fill=item.color + f"{round(item.opacity * 255):02x}")
        elif isinstance(item, Line):
            for stroke in _strokes(item):
                pen.line(_scaled(stroke, scale), fill=item.color, width=round(item.width * scale), joint="curve")
    image = image.reduce(_FINE)
    pen = ImageDraw.Draw(image)
    fonts: dict[int, Any] = {}
    for item in drawing.items:
        if isinstance(item, Label):
            font = fonts.setdefault(item.size, ImageFont.load_default(item.size * sharp))
            bold = item.size * sharp * _BOLD if item.is_bold else 0
            place = (item.x * sharp, item.y * sharp)
            text = printable(item.text)
            pen.text(place, text, fill=item.color, font=font, anchor=_ANCHORS[item.anchor], stroke_width=bold)
    out = BytesIO()
    image.quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()


def _scaled(points: Points, scale: int) -> list[tuple[float, float]]:
    return [(x * scale, y * scale) for x, y in points]


def _strokes(line: Line) -> Iterator[Points]:
    """Yield the dashes of a line; the whole of a solid one."""
    if line.dashes is None:
        yield line.points
        return
    dash, gap = line.dashes
    at = 0.0
    for (x1, y1), (x2, y2) in pairwise(line.points):
        length = hypot(x2 - x1, y2 - y1)
        position = -(at % (dash + gap))
        while position < length:
            begin, end = max(position, 0.0), min(position + dash, length)
            if end > begin:
                yield [
                    (x1 + (x2 - x1) * each / length, y1 + (y2 - y1) * each / length) for each in (begin, end)
                ]  # fmt: skip
            position += dash + gap
        at += length
