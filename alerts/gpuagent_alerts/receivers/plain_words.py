"""What a receiver says, as far as it is plain words.

A receiver knows the secrets of its own address and may say them in any form: encoded, spaced out, in parts, in a way
that nobody has thought of. No list of forms is whole, so this keeps what no secret looks like: words of letters, and a
few small numbers. It goes over what `Masker` has left.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby

from gpuagent_alerts.receivers.masker import HIDDEN

_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_SEPARATOR = re.compile(r"((?:[\s\"'`{}\[\](),;<>|=]|\\[\"/nrt])+)")
_WORD = re.compile(r"[^\W\d_]{2,}(?:[-_./:]+[^\W\d_]{2,})*[.:!?]*")
_HUMP = re.compile(r"[A-Z]*[^A-Z]+|[A-Z]+")
"""Letters of one case, with a capital in front or none: `ends` and `At` of `endsAt`."""
_LETTERS_A_HUMP = 3
"""On average, at least: words change their case less often than keys do."""
_LONGEST_WORD = 40
_SHORT = re.compile(r"(?:\d{1,5}(?:[.:]\d{1,5}){0,4}|\w|[A-Fa-f]{2}|[-+*/&#.:!?]{1,3})[.:!?]*")
"""A number, or what may be one character or one byte of something that was taken apart."""
_MOST_SHORT = 3
"""Of them, and of what is hidden, between two words: a line and a column, a date."""


def plain_words(text: str) -> str:
    """Return the text on one line; `<hidden>` stands for whatever is no plain word."""
    text = _TAG.sub(" ", unicodedata.normalize("NFKC", text.replace(HIDDEN, "\0")))
    pieces = _SEPARATOR.split(text)
    line = "".join(_kept(pieces))
    return " ".join(re.sub(rf"{HIDDEN}(?:[\s\"'`{{}}\[\](),;|=]*{HIDDEN})+", HIDDEN, line).split())


def _kept(pieces: list[str]) -> Iterator[str]:
    """Yield the pieces, every second of which is a separator, with what is not plain replaced."""
    for plain, group in groupby(range(0, len(pieces), 2), lambda place: _is_word(pieces[place])):
        places = list(group)
        told = plain or sum(map(bool, (pieces[place] for place in places))) <= _MOST_SHORT
        for place in places:
            piece = pieces[place]
            yield piece if not piece or (told and (plain or _SHORT.fullmatch(piece))) else HIDDEN
            yield from pieces[place + 1 : place + 2]


def _is_word(piece: str) -> bool:
    if _SHORT.fullmatch(piece) or len(piece) > _LONGEST_WORD or _WORD.fullmatch(piece) is None:
        return False
    return len(piece) >= _LETTERS_A_HUMP * len(_HUMP.findall(piece)) or len(piece) < _LETTERS_A_HUMP
