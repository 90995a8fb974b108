"""The built-in rules of redaction, written down plainly: what `gpuagent.procfs.redact` does in bounded time.

Every token of the whole command line is looked at, however little of it is shown: some 10 ms for 4 KiB of quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from gpuagent.procfs.files import decode, printable
from gpuagent.procfs.redact import MASK

_INPUT_LIMIT_BYTES = 4 * 1024
_SENSITIVE = re.compile(
    r"passw|passphrase|passcode|pwd|secret|token(?!iz)|key|credential|cookie|auth(?!ors?\b)", re.IGNORECASE
)
_ASSIGNMENT = re.compile(
    rf"(?:{_SENSITIVE.pattern})[\w.\-\[\]]{{0,64}}[\"']?[=:]|(?<![a-z0-9])(?:pass|pat|pw|jwt|bearer|sig|session)[\"']?[=:]",
    re.IGNORECASE,
)
_WORD_ALONE = re.compile(r"(?:.*[\W_])?(?:pass|pat|pw|jwt|bearer)", re.IGNORECASE | re.DOTALL)
_DATABASE = re.compile(r"[\"']?(?:[^\s\"']*/)?(?:mysql|mariadb)[\w-]*[\"']?")
_SSHPASS = re.compile(r"[\"']?(?:[^\s\"']*/)?sshpass[\"']?")
_USER_OPTIONS = {"-u", "--user", "--proxy-user"}
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*\Z")
_OPTION_WORD = r"[a-z]+(?:[A-Z][a-z]+)*\d{0,3}"
_NEXT_OPTION = re.compile(rf"[\"']?--{_OPTION_WORD}(?:[._-](?:{_OPTION_WORD}|\d{{1,3}}))*(?![\w.+/-])")
_VARIABLE = re.compile(r"[\"']?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+[\"']?")
_VARIABLE_OPTIONS = {"-e", "--env", "-u", "--unset"}
_SHELL_SIGN = re.compile(r"[&|;<>()]+")
_PEM = "-----BEGIN"
_SCHEME = re.compile(r"(?:bearer|basic|digest|token)\Z", re.IGNORECASE)
_JOINTS = frozenset({"=", ":", ","})
_COUNT = re.compile(r"tokens\W?\Z", re.IGNORECASE)
_COUNT_DIGITS = 7
_USER_INFO = re.compile(r"(?<=://)(?![\w.-]+(?::\d{1,5})?(?:/|\Z))")  # not a plain host and port
_SPACE = re.compile(r"\s")
_TEXT = re.compile(r"[\s\"']")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|\\?\Z)|'[^']*(?:'|\Z)", re.DOTALL)
_TOKENS = re.compile(rf"\s+|{_QUOTED.pattern}|(?:\\.|[^\s\"'\\])+|\\", re.DOTALL)
_SHAPES = re.compile(
    # Keys whose first letters say what they are, so that a bare argument is recognized too.
    r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|xox[abpr]-|nvapi-|AIza)[\w-]{12,}"
    r"|\bAKIA[0-9A-Z]{16}\b"  # AWS access key id
    r"|\beyJ[\w.-]{16,}"  # JSON web token (RFC 7519): base64 of '{"'
    r"|(?<=(?i:hooks\.slack\.com)/)[\w/-]{8,}|(?<=(?i:hooks\.slack-gov\.com)/)[\w/-]{8,}"
    r"|(?<=/webhooks/)\d{5,}/[\w-]+"
)


def redacted(raw: bytes, limit_bytes: int) -> str:
    """Return what is shown of /proc/<pid>/cmdline."""
    arguments = raw[:_INPUT_LIMIT_BYTES].rstrip(b"\0").split(b"\0")
    if len(raw) > _INPUT_LIMIT_BYTES:
        whole = arguments[-1].rsplit(None, 1)[:-1]
        arguments[-1] = b" ".join([*whole, b"..."])
    tokens = [token for argument in arguments for token in (decode(argument), " ")]
    return printable("".join(_walk(tokens[:-1], _argument)), limit_bytes)


def _walk(tokens: Sequence[str], treat: Callable[[str], str]) -> Iterator[str]:  # noqa: C901, PLR0912  all the rules
    """Yield tokens, of which those of white space part the words, with the secret ones masked.

    `treat` redacts inside a single token. A value reaches from its first token to the next space.
    """
    awaited = ""  # the name whose value comes next
    previous = ""
    masking = False
    program = ""
    for place, token in enumerate(tokens):
        if not token or token.isspace():
            masking = False
            yield token
            continue
        if masking:
            continue
        if awaited and (_NEXT_OPTION.match(token) or _follows_variable(awaited, token)):
            awaited = ""
        if awaited and (token in _JOINTS or _SCHEME.match(token)):
            yield token  # "Authorization: Bearer xyz": the value is one word further
            continue
        if awaited:
            masking = not _is_count(awaited, token)
            awaited = ""
            yield MASK if masking else token
            if token.endswith(_PEM):
                return
            continue
        quote = token[0] if token[0] in "\"'" else ""
        if program and token.startswith(f"{quote}-p"):
            rest = token[len(quote) + 2 :] or (place + 1 < len(tokens) and not tokens[place + 1].isspace())
            masking = bool(rest)
            if program == "sshpass":
                program = ""
                awaited = "" if rest else token
            previous = token
            yield f"{quote}-p{MASK}" if rest else token
            continue
        if _DATABASE.fullmatch(token):
            program = "database"
        elif _SSHPASS.fullmatch(token):
            program = "sshpass"
        elif _SHELL_SIGN.fullmatch(token):
            program = ""
        treated = treat(token)
        if previous in _USER_OPTIONS:
            treated = _without_password(treated)
        masking = treated.endswith(MASK) and treated != token
        awaited = _awaited(token, previous)
        previous = token
        yield treated
        if token.endswith(_PEM):
            return


def _follows_variable(name: str, token: str) -> bool:
    return bool(_VARIABLE.fullmatch(name)) and (token[0] == "-" or bool(_SHELL_SIGN.fullmatch(token)))


def _without_password(text: str) -> str:
    """Mask what stands behind the first colon, as curl takes `-u`, that is no number and no address."""
    for place, sign in enumerate(text):
        rest = text[place + 1 :]
        if sign == ":" and place and rest and not rest.startswith("//") and not re.fullmatch(r"\d+", rest):
            return text[: place + 1] + MASK
    return text


def _awaited(token: str, previous: str) -> str:
    """Name the value that comes next: after `--password`, `password=` or `password` and `=`."""
    if token in {*_JOINTS, "is"}:
        return previous if _is_sensitive(previous) else ""
    if token[-1] in "=:":
        found = _ASSIGNMENT.search(token)
        return token if found and found.end() == len(token) else ""  # a key in base64 ends so too
    if _VARIABLE.fullmatch(token):
        return token if _is_sensitive(token) and previous not in _VARIABLE_OPTIONS else ""
    name = token.rsplit(maxsplit=1)[-1].strip("\"'")
    return name if _OPTION.match(name) and _is_sensitive(name) else ""


def _is_sensitive(name: str) -> bool:
    return _SENSITIVE.search(name) is not None or _WORD_ALONE.fullmatch(name.strip("\"'")) is not None


def _argument(text: str) -> str:
    """Redact one argument: the rest behind a sensitive name, else what it holds as a text."""
    if _PEM in text:
        return _argument(text[: text.index(_PEM)]) + MASK
    first = len(text) - len(text.lstrip())
    end = next((found.start() for found in _SPACE.finditer(text, first)), len(text))
    head = _without_known_secrets(text[:end])
    found = _ASSIGNMENT.search(head)
    if found:
        return _masked_from(head + text[end:], found)
    if _TEXT.search(text):
        return "".join(_walk(_TOKENS.findall(text), _text_token))
    return _word(text)


def _text_token(token: str) -> str:
    """Redact a token of a text; what stands in quotes is an argument in its turn."""
    if not _QUOTED.fullmatch(token):
        return _word(token)
    quote = token[0]
    closing = quote if len(token) > 1 and token[-1] == quote else ""
    return quote + _argument(token[1 : len(token) - len(closing)]) + closing


def _word(word: str) -> str:
    """Redact one word: an assignment, the user part of a URL, a key known by its shape."""
    word = _without_known_secrets(word)
    found = _ASSIGNMENT.search(word)
    return _masked_from(word, found) if found else word


def _without_known_secrets(word: str) -> str:
    """Mask what needs no name in front: everything from `://` to the last `@`, and the shapes."""
    found, last = _USER_INFO.search(word), word.rfind("@")
    if found and found.end() <= last:
        word = word[: found.end()] + MASK + word[last:]
    return _SHAPES.sub(MASK, word)


def _masked_from(text: str, name: re.Match[str]) -> str:
    value = text[name.end() :]
    if not value or _is_count(name[0], value):
        return text
    return text[: name.end()] + MASK


def _is_count(name: str, value: str) -> bool:
    """`--max-num-batched-tokens 8192` counts tokens and holds none."""
    return _COUNT.search(name) is not None and value.isdigit() and len(value) <= _COUNT_DIGITS
