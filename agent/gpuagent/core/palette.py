"""Colors of processes, given by the same rule on the page and in `gpuagent top`.

Red and amber are not among them: they say that something is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence

ON_DARK = ("#4c9be8", "#9d86e9", "#3fb8a9", "#d08fc4", "#7fa7c9", "#5c7cd6", "#8fc7b5", "#b59ad6")
"""On a dark background."""
ON_LIGHT = ("#2f7fd0", "#5a3bb0", "#178f80", "#8f3d80", "#5889ac", "#2b47a8", "#3f9279", "#7a4fa8")
"""The same hues on a light background, each with a contrast of at least 3 to 1 with white. Light and dark ones take
turns, so that neighbors differ for who cannot tell the hues apart."""


Drawn = tuple[int, Hashable]
"""Whoever is drawn: the pid, and what tells it from an earlier process with that pid."""


class ColorAssignment:
    """Gives whoever is drawn a color and lets them keep it for as long as they are known.

    It follows from the pid, so that two screens that know nothing of each other give the same one. Those that are drawn
    together get different ones while there are enough.
    """

    def __init__(self, colors: int = len(ON_DARK)) -> None:
        self._colors = colors
        self._given: dict[Drawn, int] = {}

    def assign(self, together: Sequence[Sequence[Drawn]], known: Collection[Drawn]) -> Mapping[Drawn, int]:
        """Return the number of the color of each that is drawn.

        `together` are those of each picture, `known` all whose color is kept: the others are forgotten.
        """
        self._given = {who: color for who, color in self._given.items() if who in known}
        pictures: dict[Drawn, list[Counter[int]]] = {}
        for picture in together:
            here = Counter(self._given[who] for who in picture if who in self._given)
            for who in picture:
                pictures.setdefault(who, []).append(here)
        for who in sorted(pictures.keys() - self._given.keys(), key=lambda one: one[0]):
            taken = sum(pictures[who], Counter[int]())
            wanted = ((who[0] + step) % self._colors for step in range(self._colors))
            self._given[who] = min(wanted, key=lambda color: taken[color])
            for here in pictures[who]:
                here[self._given[who]] += 1
        return {who: self._given[who] for who in pictures}
