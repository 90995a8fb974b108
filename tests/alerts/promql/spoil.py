"""Expressions with mistakes in them, and patterns out of the corners where engines differ."""

from __future__ import annotations

import re
from random import Random

_WORDS = r"""
( ) { } [ ] , + - * / % ^ == != < <= > >= = =~ !~ @ and or unless atan2 bool on ignoring group_left group_right by
without offset sum avg topk count_values quantile rate abs absent round time scalar vector hour used_bytes info gpu pid
mode "a" 'b' `c` "\x41" "\u00e9" 1 0.5 .5 5. 1e3 0x1f 017 08 1e 1_0 5m 1h30m Inf NaN inf -Inf SUM Abs AND start END fill
limitk __name__ :x x:y ; $ {gpu="0"} {gpu="0",} {} by(gpu) on(gpu) on() group_left() ! ~ é [5m] [5m:1m]
"""
_PIECES = r"""
a b \d \w \C \pN \p{Greek} \p{Lu} \p{Foo} (?<n> (?P<n> (?P<m> (?i) (?s: (?m-i: (?U) (?-s) ( ) [ ] [^ [[:alpha:]]
[[:^alpha:]] [:alpha:] {2} {2,} {,2} {1001} * + ? *? ++ | ^ $ \A \z \Z \b \B \Q \E . - \x41 \x{263a} \x{110000}
\u0041 \0 \07 \123 \777 \8 \. \- \_ \é é 😀 \< (?=a) (?!a) (?: \n \f \v \a \t \cA \s \S \W \D [a-z] [z-a] [a-\d] [\C]
[(?<] \\C \(?< []a] [^]a] [[] { } {a} && \X \R \h \K \G \N [[.a.]] [[=a=]] \pL \PL \p{^Lu} \P{Lu} (?P=n) (?P>n)
(?#x) (?|a) (?>a) (? (?P
"""
WORDS = tuple(_WORDS.split())
PIECES = tuple(_PIECES.split())
_TOKEN = re.compile(r'"[^"]*"|[\w.:]+|\s+|==|!=|<=|>=|=~|!~|.')


def spoiled(expression: str, pick: Random) -> str:
    """One to three words lost, added, exchanged or doubled."""
    tokens = _TOKEN.findall(expression)
    for _ in range(pick.choice((1, 1, 2, 3))):
        position = pick.randrange(len(tokens))
        match pick.randrange(5):
            case 0:
                tokens[position] = ""
            case 1:
                tokens.insert(position, f" {pick.choice(WORDS)} ")
            case 2:
                tokens[position] = pick.choice(WORDS)
            case 3:
                other = pick.randrange(len(tokens))
                tokens[position], tokens[other] = tokens[other], tokens[position]
            case _:
                tokens.insert(position, pick.choice(tokens))
    return "".join(tokens)


def patterns(number: int, pick: Random) -> list[str]:
    """Selectors with such patterns, in ordinary quotes."""
    texts = ["".join(pick.choice(PIECES) for _ in range(pick.randrange(1, 6))) for _ in range(number)]
    return ['used{{mode=~"{}"}}'.format(text.replace("\\", "\\\\").replace('"', '\\"')) for text in texts]
