r"""Redact secrets in command lines.

Anybody on the machine may read a command line, but a metric travels much further: to Prometheus,
into chat, into a ticket. So what looks like a secret is replaced *before* the text is cut, and a
doubt costs the value: `--tokenizer x` and `--max-tokens 512` are kept, `--monkey wrench` is not
worth a guess.

The unit is the argument, because a value may hold spaces: after `--password` the whole next
argument goes, after `X_TOKEN=` the whole rest of it. An argument that is a text of its own (`sh -c
"..."`, JSON, or the title that a process wrote over its arguments) is split at spaces and quotes
and treated the same way.

A local user chooses the input, so all of this takes time linear in its length, and no more than it takes to fill what
is shown: what stands behind that is not looked at, unless a pattern of the operator's may match across it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from gpuagent.core.matchers import TextRegex
from gpuagent.procfs.files import decode, printable

COMMAND_LIMIT_BYTES = 256
MASK = "[redacted]"

_INPUT_LIMIT_BYTES = 4 * 1024
_PATTERN_ROOM = 1024
"""Characters that the operator's patterns are given: what they match may end behind what is shown."""


_SENSITIVE = re.compile(
    r"p(?:assw|assphrase|asscode|wd)|secret|token(?!iz)|key|credential|cookie|auth(?!ors?\b)"  # of a folded text
)
_ASSIGNMENT = re.compile(
    # From right to left, because then each run of letters is read once, for the sign behind it.
    r"[=:](?=[\"']?[\w.\-\[\]]{3})[\"']?[\w.\-\[\]]{0,64}?"
    r"(?:(?:wssa|esarhpssa|edocssa|dw)p|terces|(?<!zi)nekot|yek|laitnederc|eikooc|(?<!\bro)(?<!\bsro)htua)"
    # Words alone, `pass` and not `bypass=` or `passes=`: pass, pat, pw, jwt, bearer, sig, session.
    r"|[=:][\"']?(?:ssap|tap|wp|twj|reraeb|gis|noisses)(?![a-z0-9])"
)
_ASSIGNMENT_REACH = 80
"""Characters of the longest assignment, and a few more."""
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*+\Z")
_WORD_ALONE = re.compile(r"(?:\A|[\W_])(?:pass|pat|pw|jwt|bearer)\Z", re.IGNORECASE)
"""A sensitive name that is one only as the last word of a name: `--git-pat`, and no `--path` or `--passes`."""
_PROGRAM = re.compile(r"[\"']?(?:[^\s\"']*/)?(?:(mysql|mariadb)[\w-]*|sshpass)[\"']?\Z")
"""Programs that take a password glued to `-p`. Of sshpass it may be the next argument, what follows is another's."""
_SSHPASS = "sshpass"
_SHELL_SIGN = re.compile(r"[&|;<>()]++\Z")
_GLUED = re.compile(r"[\"']?-p")
_USER_OPTIONS = frozenset({"-u", "--user", "--proxy-user"})
_PASSWORD_OF_USER = re.compile(r"(?<=:)(?<!\A:)(?!\d++\Z|//).+\Z", re.DOTALL)
"""Behind `-u`, as curl takes it. `1000:1000` is a user and a group."""
_NEXT_OPTION = re.compile(
    # Words in small letters or in camelCase: `--x7Qm...` is no option, and may be the value.
    r"[\"']?--[a-z]++(?:[A-Z][a-z]++)*+\d{0,3}+(?:[._-](?:[a-z]++(?:[A-Z][a-z]++)*+\d{0,3}+|\d{1,3}+))*+(?![\w.+/-])"
)
_VARIABLE = re.compile(r"[\"']?[A-Z][A-Z0-9]*+(?:_[A-Z0-9]++)++[\"']?\Z")
_VARIABLE_OPTIONS = frozenset({"-e", "--env", "-u", "--unset"})
"""Behind them stands a variable alone, as in `docker run -e HF_TOKEN image` and `env -u HF_TOKEN program`."""
_NO_VALUE = re.compile(r"-|[&|;<>()]++\Z")
"""Pattern of what follows a variable and is no value of it: an option, or a sign of the shell."""
_PEM = "-----BEGIN"
_SCHEME = re.compile(r"(?:bearer|basic|digest|token)\Z", re.IGNORECASE)
_JOINTS = frozenset({"=", ":", ","})
_COUNT = re.compile(r"tokens\W?\Z", re.IGNORECASE)
_COUNT_DIGITS = 7
_USER_INFO = re.compile(r"(?<=://)(?![\w.-]++(?::\d{1,5})?(?:/|\Z))")  # not a plain host and port
_SPACE = re.compile(r"\s")
_TEXT = re.compile(r"[\s\"']")
_QUOTED = re.compile(r"\"(?:[^\"\\]++|\\.)*+(?:\"|\\?\Z)|'[^']*+(?:'|\Z)", re.DOTALL)
_TOKEN = re.compile(rf"\s++|{_QUOTED.pattern}|(?:[^\s\"'\\]++|\\.)++|\\", re.DOTALL)
_REST_OF_WORD = re.compile(rf"(?:{_QUOTED.pattern}|[^\s\"'\\]++|\\.|\\)*+", re.DOTALL)
_SHAPES = re.compile(
    # Keys whose first letters say what they are, so that a bare argument is recognized too.
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abpr]-|nvapi-|AIza)[\w-]{12,}"
    r"|\bAKIA[0-9A-Z]{16}\b"  # AWS access key id
    r"|\beyJ[\w.-]{16,}"  # JSON web token (RFC 7519): base64 of '{"'
    # Who knows the path of a webhook may write to the channel: Slack's, and Discord's by number and token.
    r"|(?<=(?i:hooks\.slack\.com)/)[\w/-]{8,}|(?<=(?i:hooks\.slack-gov\.com)/)[\w/-]{8,}"
    r"|(?<=/webhooks/)\d{5,}/[\w-]+"
)


class Redactor:
    """Redact the raw text of a command line, so that it may leave the machine."""

    def __init__(self, patterns: Sequence[str] = (), limit_bytes: int = COMMAND_LIMIT_BYTES) -> None:
        """Take the operator's further `patterns`: whatever matches one is replaced.

        Raises ValueError for a pattern that RE2 does not take.
        """
        self._patterns = tuple(TextRegex(pattern) for pattern in patterns)
        self._limit_bytes = limit_bytes

    def command(self, raw: bytes) -> str:
        """Make text of /proc/<pid>/cmdline: no secrets, printable, at most `limit_bytes` long."""
        arguments = raw[:_INPUT_LIMIT_BYTES].rstrip(b"\0").split(b"\0")
        if len(raw) > _INPUT_LIMIT_BYTES:
            # The word at the cut is dropped: of half a word nobody can tell whether it is a secret.
            whole = arguments[-1].rsplit(None, 1)[:-1]
            arguments[-1] = b" ".join([*whole, b"..."])
        tokens = _Arguments(arguments)
        room = max(_PATTERN_ROOM, self._limit_bytes) if self._patterns else self._limit_bytes
        text = _walk(tokens, _argument, room)
        return self.text(text if tokens.ended and len(text) <= room else f"{text} ...")

    def text(self, text: str) -> str:
        """Apply the operator's patterns alone, then escape and cut."""
        for pattern in self._patterns:
            text = pattern.replaced(text, MASK)
        return printable(text, self._limit_bytes)


class _Tokens(Protocol):
    """Tokens in their order, of which those of white space part the words."""

    def next_token(self) -> str | None:
        """Return the next token; None at the end."""
        ...

    def skip_word(self) -> bool:
        """Leave out what follows up to the next token of white space; return whether there was anything."""
        ...


class _Arguments:
    """Each argument is a token, with a space between two."""

    def __init__(self, arguments: Sequence[bytes]) -> None:
        self._arguments = arguments
        self._place = 0
        self._space = False

    @property
    def ended(self) -> bool:
        """Whether all have been taken."""
        return self._place == len(self._arguments)

    def next_token(self) -> str | None:
        if self.ended:
            return None
        if self._space:
            self._space = False
            return " "
        self._place += 1
        self._space = True
        return decode(self._arguments[self._place - 1])

    def skip_word(self) -> bool:
        """Do nothing: an argument is a word."""
        return False


class _TextTokens:
    """White space, what stands in quotes, and what does not."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def next_token(self) -> str | None:
        found = _TOKEN.match(self._text, self._place)
        if found is None:
            return None
        self._place = found.end()
        return found[0]

    def skip_word(self) -> bool:
        found, before = _REST_OF_WORD.match(self._text, self._place), self._place
        self._place = found.end() if found else before
        return self._place > before


class _ShortOption:
    """`-p` of the programs that take a password by it, in one walk."""

    def __init__(self) -> None:
        self._program = ""

    def follow(self, token: str) -> None:
        """Take note of the program that the words from here on are for."""
        if found := _PROGRAM.match(token):
            self._program = found[1] or _SSHPASS
        elif _SHELL_SIGN.match(token) or (self._program == _SSHPASS and _GLUED.match(token)):
            self._program = ""

    def redacted(self, token: str, tokens: _Tokens) -> str:
        """Return the option with the password that is glued to it masked; "" where there is none."""
        found = _GLUED.match(token) if self._program else None
        if found is None:
            return ""
        more = tokens.skip_word()
        return found[0] + MASK if more or found.end() < len(token) else ""

    def awaited(self, token: str) -> str:
        """Return the option where its value comes next: of mysql it is asked for, and what comes next a database."""
        return token if self._program == _SSHPASS and _GLUED.match(token) else ""


def _walk(tokens: _Tokens, treat: Callable[[str, int], str], room: int) -> str:
    """Return the text of the tokens with the secret ones masked, or as much of it as has more than `room` characters.

    `treat` redacts inside a single token. A value reaches from its first token to the next space.
    """
    awaited = ""  # the name whose value comes next
    previous, short_option = "", _ShortOption()
    parts: list[str] = []
    while room >= 0:
        token = tokens.next_token()
        if token is None:
            break
        shown = token
        if token and not token.isspace():
            if awaited and _is_no_value(awaited, token):
                awaited = ""
            if not awaited:
                glued = short_option.redacted(token, tokens)
                shown = glued or treat(token, room)
                if previous in _USER_OPTIONS:
                    shown = _PASSWORD_OF_USER.sub(MASK, shown, count=1)
                if shown != token and shown.endswith(MASK):
                    tokens.skip_word()
                awaited = "" if glued else short_option.awaited(token) or _awaited(token, previous)
                short_option.follow(token)
                previous = token
            elif token not in _JOINTS and not _SCHEME.match(token):  # "Authorization: Bearer xyz": one word further
                if not _is_count(awaited, token):
                    shown = MASK
                    tokens.skip_word()
                awaited = ""
            _skip_key(tokens, token)
        parts.append(shown)
        room -= len(shown)
    return "".join(parts)


def _is_sensitive(name: str) -> bool:
    return _SENSITIVE.search(_folded(name)) is not None or _WORD_ALONE.search(name.strip("\"'")) is not None


def _awaited(token: str, previous: str) -> str:
    """Name the value that comes next: after `--password`, `password=` or `password` and `=`."""
    if token in {*_JOINTS, "is"}:
        return previous if _is_sensitive(previous) else ""
    if token[-1] in "=:":
        tail = token[-_ASSIGNMENT_REACH:]  # most are told by it: a key in base64 ends so too
        return token if _assigned(tail) == len(tail) and _assigned(token) == len(token) else ""
    if _VARIABLE.match(token):
        return token if _is_sensitive(token) and previous not in _VARIABLE_OPTIONS else ""
    name = token.rsplit(maxsplit=1)[-1].strip("\"'")
    return name if _OPTION.match(name) and _is_sensitive(name) else ""


def _skip_key(tokens: _Tokens, token: str) -> None:
    """Leave out all that follows where a key begins whose words are an argument each."""
    while token.endswith(_PEM) and tokens.next_token() is not None:
        pass


def _is_no_value(name: str, token: str) -> bool:
    """Return whether this is not the value that is awaited: an option, mostly."""
    if _NEXT_OPTION.match(token):
        return True
    return _VARIABLE.match(name) is not None and _NO_VALUE.match(token) is not None


def _argument(text: str, room: int, *, named: bool = True) -> str:
    """Redact one argument: the rest behind a sensitive name, else what it holds as a text.

    Where it is known that no such name is in it, `named` is False.
    """
    begin = text.find(_PEM)
    if begin >= 0:  # to the end of the argument: a key may lack its last line
        return _argument(text[:begin], room, named=named) + MASK
    first = len(text) - len(text.lstrip())
    space = _SPACE.search(text, first)
    end = space.start() if space else len(text)
    head = _without_known_secrets(text[:end])
    assigned = _assigned(head) if named else 0
    if assigned:
        return _masked_from(head + text[end:], assigned)
    if not _TEXT.search(text):
        return head
    named = named and (space is not None or head != text)
    return _walk(_TextTokens(text), lambda token, left: _text_token(token, left, named=named), room)


def _text_token(token: str, room: int, *, named: bool) -> str:
    """Redact a token of a text; what stands in quotes is an argument in its turn."""
    quote = token[0]
    if quote not in "\"'":
        return _word(token) if named else _without_known_secrets(token)
    closing = quote if len(token) > 1 and token[-1] == quote else ""
    return quote + _argument(token[1 : len(token) - len(closing)], room, named=named) + closing


def _word(word: str) -> str:
    """Redact one word: an assignment, the user part of a URL, a key known by its shape."""
    word = _without_known_secrets(word)
    assigned = _assigned(word)
    return _masked_from(word, assigned) if assigned else word


def _assigned(text: str) -> int:
    """Return where the value behind the first sensitive name and its sign begins; 0 if there is none."""
    backwards = _folded(text)[::-1]
    places = [found.start() for found in _ASSIGNMENT.finditer(backwards)]
    return len(text) - places[-1] if places else 0


def _folded(text: str) -> str:
    """Return the text in lower case, of the same length, as re.IGNORECASE compares it."""
    if text.isascii():
        return text.lower()
    return text.replace("\u0130", "i").lower().replace("\u0131", "i").replace("\u017f", "s")


def _without_known_secrets(word: str) -> str:
    """Mask what needs no name in front: everything from `://` to the last `@`, and the shapes."""
    found, last = _USER_INFO.search(word), word.rfind("@")
    if found and found.end() <= last:
        word = word[: found.end()] + MASK + word[last:]
    return _SHAPES.sub(MASK, word)


def _masked_from(text: str, place: int) -> str:
    """Mask all that stands behind a name, unless it is a count."""
    value = text[place:]
    if not value or _is_count(text[:place], value):
        return text
    return text[:place] + MASK


def _is_count(name: str, value: str) -> bool:
    """Return whether a key counts tokens and holds none: `--max-num-batched-tokens 8192`."""
    return _COUNT.search(name) is not None and value.isdigit() and len(value) <= _COUNT_DIGITS
