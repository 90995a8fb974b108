"""Templates of labels and annotations: the part of Go's text/template that fills in labels and the value.

What loads here prints in Prometheus exactly the same; everything else is refused when the file is loaded, so that
filling in can never fail. Syntax: https://pkg.go.dev/text/template, functions:
https://prometheus.io/docs/prometheus/latest/configuration/template_reference/.

Prometheus can neither round nor put a space before a unit. What people read on the node is therefore filled in with
`house_format`: the same templates, with quantities as every other surface of the agent writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

from gpuagent_alerts.rules.formats import (
    HOUSE_FORMATS,
    format_float,
    humanize,
    humanize_1024,
    humanize_duration,
    humanize_percentage,
    print_float,
    write_now,
)

Part = Callable[[Mapping[str, str], float], str]
"""Fills in one piece of the text from a row's labels and value."""
_Number = Callable[[float], str]

MAX_CHARACTERS = 16_384

_FUNCTIONS: dict[str, _Number] = {
    "humanize": humanize,
    "humanize1024": humanize_1024,
    "humanizePercentage": humanize_percentage,
    "humanizeDuration": humanize_duration,
}
_WAYS = f"here are $labels.NAME, $value, externalURL, {', '.join(_FUNCTIONS)} and printf"
_URL = "externalURL"
_MESSAGES_OWN = "every message of an incident tells it by itself, and Prometheus does not know it"
_NOT_HERE = {
    "$external_url": "Prometheus calls it {{ externalURL }}, which is filled in here too",
    "$holders": _MESSAGES_OWN,
    "$incident": _MESSAGES_OWN,
}
"""What somebody may try, with what there is instead."""
_WORDS_OF_A_LIST = frozenset({"result"})
"""Labels whose values are words of a list, such as `dry_run`, which people read as `dry run`."""
_SPACE = " \t\r\n"
_TOKEN = re.compile(
    r"[ \t\r\n]+|(?P<label>(?:\$labels|\.Labels)\.(?P<name>[a-zA-Z_][a-zA-Z0-9_]*))|(?P<value>\$value|\.Value)"
    r"|(?P<url>\$externalURL)"
    r'|(?P<word>[a-zA-Z_][a-zA-Z0-9_]*)|(?P<string>"[^"\\\n]*"|`[^`\n]*`)|(?P<pipe>\|)',
    re.ASCII,
)
_VARIABLE = re.compile(r"[$.][\w.$]*", re.ASCII)
_END_OF_WORD = re.compile(r"[ \t\r\n|]|\Z", re.ASCII)
_VERB = re.compile(r"%(?:%|(?P<precision>\.\d{1,2})?(?P<verb>[a-zA-Z])|(?P<other>.?))", re.DOTALL)
_KEYWORDS = frozenset({
    "if", "else", "end", "range", "with", "define", "template", "block", "break", "continue", "nil", "true", "false",
})  # fmt: skip


class TemplateFault(ValueError):
    """The template is wrong, or uses what is not here."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with places to fill in."""

    text: str
    parts: tuple[Part | str, ...]

    @property
    def is_constant(self) -> bool:
        """Whether there is nothing to fill in."""
        return all(isinstance(part, str) for part in self.parts)

    def fill(self, labels: Mapping[str, str], value: float, *, house_format: bool = False) -> str:
        """Return the text for one row; a label that it does not have is empty.

        With `house_format`, quantities are written as on every other surface of the agent, `84.4 GiB` for Prometheus'
        `84.38GiB`.
        """
        texts = []
        for part, following in zip_longest(self.parts, self.parts[1:], fillvalue=""):
            if isinstance(part, str):
                texts.append(part)
            elif house_format and isinstance(part, _Quantity):
                texts.append(part.in_house_format(value, following if isinstance(following, str) else ""))
            elif house_format and isinstance(part, _Label):
                texts.append(part.in_house_format(labels))
            else:
                texts.append(part(labels, value))
        return write_now("".join(texts)) if house_format else "".join(texts)

    def with_external_url(self, url: str) -> Template:
        """Return the template with this in place of `{{ externalURL }}`."""
        return replace(self, parts=tuple(url if isinstance(part, _ExternalUrl) else part for part in self.parts))


@dataclass(frozen=True, slots=True)
class _ExternalUrl:
    """The address of whoever evaluates the rule: of Prometheus there, of the agent's page here."""

    def __call__(self, _labels: Mapping[str, str], _value: float) -> str:
        """Return nothing: nobody has told the address."""
        return ""


@dataclass(frozen=True, slots=True)
class _Label:
    """One label of the row; nothing where it has none of this name."""

    name: str

    def __call__(self, labels: Mapping[str, str], _: float) -> str:
        """Return what Prometheus prints."""
        return labels.get(self.name, "")

    def in_house_format(self, labels: Mapping[str, str]) -> str:
        """Return what people read."""
        text = labels.get(self.name, "")
        return text.replace("_", " ") if self.name in _WORDS_OF_A_LIST else text


@dataclass(frozen=True, slots=True)
class _Quantity:
    """The value through one of Prometheus' functions for quantities."""

    function: str

    def __call__(self, _: Mapping[str, str], value: float) -> str:
        """Return what Prometheus prints."""
        return _FUNCTIONS[self.function](value)

    def in_house_format(self, value: float, following: str) -> str:
        """Return what the agent prints where this text follows, and Prometheus' digits where it has no format."""
        write = HOUSE_FORMATS.get(self.function)
        text = write(value, following) if write is not None else None
        return _FUNCTIONS[self.function](value) if text is None else text


def parse_template(text: str) -> Template:
    """Compile a template. Raises TemplateFault, which names the function or the place."""
    if len(text) > MAX_CHARACTERS:
        raise TemplateFault(f"the text is longer than {MAX_CHARACTERS} characters")
    parts: list[Part | str] = []
    position = 0
    trim = False
    while True:
        begin = text.find("{{", position)
        plain = text[position : len(text) if begin < 0 else begin]
        plain = plain.lstrip(_SPACE) if trim else plain
        if begin < 0:
            parts.append(plain)
            break
        end, body, trim_before, trim = _action(text, begin)
        parts.append(plain.rstrip(_SPACE) if trim_before else plain)
        if body is not None:
            parts.append(_compile(body))
        position = end
    return Template(text, tuple(part for part in parts if part != ""))


def _action(text: str, begin: int) -> tuple[int, str | None, bool, bool]:
    """Return the end of the action that begins there, its body (None for a comment), whether it trims before, after."""
    start = begin + 2
    trim_before = text[start : start + 1] == "-" and text[start + 1 : start + 2] in tuple(_SPACE)
    start += 2 if trim_before else 0
    if text.startswith("/*", start):
        return _comment(text, start, trim_before=trim_before)
    end = _end_of_action(text, start)
    body = text[start:end]
    trim_after = len(body) > 1 and body[-1] == "-" and body[-2] in _SPACE
    return end + 2, body[:-2] if trim_after else body, trim_before, trim_after


def _comment(text: str, start: int, *, trim_before: bool) -> tuple[int, str | None, bool, bool]:
    end = text.find("*/", start + 2)
    if end >= 0:
        for closing, trim_after in (("}}", False), *((f"{space}-}}}}", True) for space in _SPACE)):
            if text.startswith(closing, end + 2):
                return end + 2 + len(closing), None, trim_before, trim_after
    raise TemplateFault("a comment is not closed: write {{/* ... */}}")


def _end_of_action(text: str, start: int) -> int:
    """Return where its `}}` is: one inside of quotes does not count."""
    position = start
    while position < len(text):
        if text.startswith("}}", position):
            return position
        quote = text[position]
        if quote in '"`':
            closing = text.find(quote, position + 1)
            if closing < 0:
                raise TemplateFault("a quote is not closed in {{ ... }}")
            position = closing
        position += 1
    raise TemplateFault("{{ has no }} after it")


@dataclass(slots=True)
class _Command:
    """Between two bars: a word or an operand, and the operands after it."""

    words: list[re.Match[str]]


def _compile(body: str) -> Part:
    first, *others = _commands(body)
    piped = _command(first.words, None)
    for command in others:
        piped = _command(command.words, piped)
    return _operand(piped) if isinstance(piped, re.Match) else piped


def _commands(body: str) -> list[_Command]:
    commands = [_Command([])]
    position = 0
    while position < len(body):
        token = _TOKEN.match(body, position)
        kind = token.lastgroup if token else None
        if token is None or (kind not in {None, "pipe"} and not _END_OF_WORD.match(body, token.end())):
            raise TemplateFault(_refused(body[position:].lstrip(_SPACE)))
        if kind == "pipe":
            commands.append(_Command([]))
        elif kind is not None:
            if kind == "word" and not commands[-1].words:
                _check_function(token[0])
            commands[-1].words.append(token)
        position = token.end()
    if any(not command.words for command in commands):
        raise TemplateFault("{{ }} is empty" if len(commands) == 1 else "a | has nothing beside it")
    return commands


def _check_function(name: str) -> None:
    if name in _KEYWORDS:
        raise TemplateFault(f"{{{{ {name} }}}} is not available in the agent: {_WAYS}")
    if name not in {"printf", _URL} and name not in _FUNCTIONS:
        raise TemplateFault(f"the function {name} is not available in the agent: {_WAYS}")


def _command(words: list[re.Match[str]], piped: re.Match[str] | Part | None) -> re.Match[str] | Part:
    first, *arguments = words
    if callable(piped):
        raise TemplateFault(f"what comes after the last | takes a number: {_WAYS}")
    if not first["word"]:
        if arguments or piped is not None:
            what = "takes no arguments" if arguments else "takes nothing from a |"
            raise TemplateFault(f"{first[0]} {what}")
        return first
    operands = [*arguments, piped] if piped is not None else arguments
    if first["word"] == _URL:
        if operands:
            raise TemplateFault(f"{_URL} takes nothing, and nothing takes it: write {{{{ {_URL} }}}}")
        return _ExternalUrl()
    if first["word"] == "printf":
        return _printf(operands)
    if len(operands) != 1 or not operands[0]["value"]:
        raise TemplateFault(f"{first['word']} takes one number: $value")
    return _Quantity(first["word"])


def _operand(token: re.Match[str]) -> Part:
    if token["value"]:
        return lambda _, value: print_float(value)
    if token["string"]:
        constant = token["string"][1:-1]
        return lambda _labels, _value: constant
    return _ExternalUrl() if token["url"] else _Label(token["name"])


def _printf(operands: list[re.Match[str]]) -> Part:
    if not operands or not operands[0]["string"]:
        raise TemplateFault('printf takes a text in quotes first, without a backslash, such as printf "%.1f" $value')
    text, rest = operands[0]["string"][1:-1], operands[1:]
    parts: list[Part | str] = []
    position = 0
    for verb in _VERB.finditer(text):
        parts.append(text[position : verb.start()])
        position = verb.end()
        if verb[0] == "%%":
            parts.append("%")
        elif not rest:
            raise TemplateFault(f"printf {operands[0]['string']} has more verbs than values")
        else:
            parts.append(_verb(verb, rest.pop(0)))
    if rest:
        raise TemplateFault(f"printf {operands[0]['string']} has fewer verbs than values")
    parts.append(text[position:])
    whole = Template(text, tuple(parts))
    return whole.fill


def _verb(verb: re.Match[str], operand: re.Match[str]) -> Part:
    letter, precision = verb["verb"], verb["precision"]
    if operand["url"]:
        raise TemplateFault(f"{operand[0]} cannot be printed with printf: write {{{{ {_URL} }}}}")
    if letter in {"s", "v"} and not precision and not operand["value"]:
        return _operand(operand)
    if operand["value"]:
        if letter in {"g", "v"} and not precision:
            return lambda _, value: print_float(value)
        if letter in {"e", "f", "g"}:
            digits = int(precision[1:]) if precision else 6
            return lambda _, value: format_float(value, letter, digits)
    raise TemplateFault(
        f"printf {verb[0]} does not fit {operand[0]}: a number takes %f, %.1f, %e, %g or %v, a label %s"
    )


def _refused(rest: str) -> str:
    variable = _VARIABLE.match(rest)
    shown = variable[0] if variable else rest[:20].strip()
    if shown in _NOT_HERE:
        return f"{shown} is not available in the agent: {_NOT_HERE[shown]}"
    if shown == "$labels":
        return "$labels alone is not available in the agent: name a label, such as $labels.gpu"
    return f"{shown} is not available in the agent: {_WAYS}"
