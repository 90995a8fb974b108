"""The option `--plot`: a picture in a file, as SVG or PNG by the ending of its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuagent.cli.agent import tell

if TYPE_CHECKING:
    from gpuagent.core.plot.memory_plot import MemoryPlot

_HELP = "Draw a picture into FILE, which ends in .svg, or in .png with Pillow (pip install 'gpuagent\\[plot]')"
"""The help is rich markup: an unescaped bracket would be a tag."""
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help=_HELP, show_default=False)]


def check_plot(file: Path | None) -> None:
    """Refuse a file that cannot become a picture, before any work is done. Raises typer.BadParameter."""
    from gpuagent.core.plot.png import NEEDS_PILLOW, can_write_png

    if file is None:
        return
    if file.suffix.lower() not in {".svg", ".png"}:
        raise typer.BadParameter(f"{file.name} has to end in .svg or .png", param_hint="--plot")
    if file.suffix.lower() == ".png" and not can_write_png():
        raise typer.BadParameter(NEEDS_PILLOW, param_hint="--plot")


def write_plot(file: Path, plots: Sequence[MemoryPlot]) -> bool:
    """Write the picture; say why and return False where the file cannot be written."""
    from gpuagent.core.plot.drawing import to_svg
    from gpuagent.core.plot.memory_plot import draw
    from gpuagent.core.plot.png import to_png

    drawing = draw(plots)
    try:
        file.write_bytes(to_png(drawing) if file.suffix.lower() == ".png" else to_svg(drawing).encode())
    except OSError as error:
        tell(f"{file}: {error.strerror or error}")
        return False
    return True
