"""No secret of the configuration is shown, in whatever form a receiver quotes it."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.masker import HIDDEN, Masker
from gpuagent_alerts.secret import Secret, argument_secrets

USER, PASSWORD = "ops-bot", "s&/\"3?cr é<t'1+%41"
RAW = base64.b64encode(bytes(range(200, 232)))
AT = "hooks.example.org:8443/services/T0AAAA/B0BBBB/xY9zW7vU5?token=qu3ry%2Fval"
URL = f"https://{USER}:{quote(PASSWORD, safe='')}@{AT}"
KEY = "whsec_" + RAW.decode()
ROUTING_KEY = "R0123456789abcdefghij0123456789ab"
SECRETS = {
    "the URL": URL,
    "user and password": f"{USER}:{PASSWORD}",
    "the password": PASSWORD,
    "the path": "/services/T0AAAA/B0BBBB/xY9zW7vU5",
    "a part of the path": "xY9zW7vU5",
    "a part of the query": "qu3ry/val",
    "the host": "hooks.example.org",
    "a key for signatures": KEY,
    "its bytes": RAW.decode(),
    "a routing key": ROUTING_KEY,
}
Form = Callable[[str], str]


def _base64(text: str, before: bytes = b"", behind: bytes = b"", *, url_safe: bool = False) -> str:
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    return encode(before + text.encode() + behind).decode()


FORMS: dict[str, Form] = {
    "as it is": str,
    "percent-encoded": lambda text: quote(text, safe=""),
    "percent-encoded in lower case": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "percent-encoded twice": lambda text: quote(quote(text, safe=""), safe=""),
    "form-encoded": quote_plus,
    "JSON": json.dumps,
    "JSON with escaped slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text)),
    "JSON, all escaped": lambda text: "".join(f"\\u{ord(c):04X}" for c in text),
    "HTML": html.escape,
    "HTML by numbers": lambda text: "".join(f"&#{ord(c)};" for c in text),
    "HTML by hexadecimal numbers": lambda text: "".join(f"&#x{ord(c):X};" for c in text),
    "HTML of a percent-encoded one": lambda text: html.escape(quote(text, safe="")),
    "Python's repr": repr,
    "bytes in Python's repr": lambda text: repr(text.encode()),
    "base64": _base64,
    "base64 without padding": lambda text: _base64(text).rstrip("="),
    "base64, URL-safe": lambda text: _base64(text, url_safe=True),
    "base64 behind one byte": lambda text: _base64(text, b"{", b"}"),
    "base64 behind two bytes": lambda text: _base64(text, b'{"', b'"}'),
    "base64 behind three bytes, URL-safe": lambda text: _base64(text, b'{ "', b'" }', url_safe=True),
    "base64 in percent-encoding": lambda text: quote(_base64(text), safe=""),
    "hexadecimal": lambda text: text.encode().hex(),
    "hexadecimal in upper case": lambda text: text.encode().hex().upper(),
    "hexadecimal with blanks": lambda text: text.encode().hex(" "),
    "hexadecimal with colons": lambda text: text.encode().hex(":").upper(),
    "upper case": lambda text: text.encode().upper().decode(),
    "lower case": lambda text: text.encode().lower().decode(),
}


@pytest.fixture
def masker() -> Masker:
    """One that knows a URL and two keys."""
    return Masker([Secret("URL", URL), Secret("key for signatures", KEY), Secret("routing key", ROUTING_KEY)])


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_secret_is_shown(masker: Masker, form: str) -> None:
    """ALERT-07: each part of each secret is hidden, however a program encodes it, wherever it stands."""
    for name, secret in SECRETS.items():
        quoted = FORMS[form](secret)
        for text in (quoted, f"no: x={quoted}&y", f'{{"sent": "{quoted}"}}', f"[{quoted}] and {quoted}, no more"):
            shown = masker.hide(text)
            assert HIDDEN in shown, (name, text)
            assert all(part not in shown for part in _telltales(quoted)), (name, text, shown)


def _telltales(quoted: str) -> list[str]:
    """Pieces of eight characters: one of them in what is shown would be too much."""
    return [quoted[at : at + 8] for at in range(0, max(len(quoted) - 7, 1), 4)]


@pytest.mark.parametrize("secret", ["xY9zW7vU5", ROUTING_KEY, KEY])
@pytest.mark.parametrize("size", [8, 9, 12])
def test_a_secret_that_was_cut_in_the_middle_is_hidden(masker: Masker, secret: str, size: int) -> None:
    """ALERT-07: eight bytes or more of a key's or a password's beginning or end, in any case; words stay legible."""
    for part in (secret[:size], secret[-size:]):
        for text in (part, part.upper(), part.lower()):
            if len(text.encode()) >= 8 and part.isascii():
                assert masker.hide(f"no: {text}... is wrong") == f"no: {HIDDEN}... is wrong"
    assert masker.hide("the service of this webhook, whsec") == "the service of this webhook, whsec"


@pytest.mark.parametrize("padding", range(6))
def test_the_header_that_httpx_makes_of_a_url_is_hidden(masker: Masker, padding: int) -> None:
    """ALERT-07: `Authorization: Basic` of the URL's user and password, also inside a request quoted in base64."""
    credentials = _base64(f"{USER}:{PASSWORD}")
    request = "x" * padding + f"POST / HTTP/1.1\r\nx-auth: {credentials}\r\n"
    header = masker.hide(f"you sent authorization = Basic {credentials}")
    whole = masker.hide(_base64(request))

    assert credentials[4:12] not in header
    assert whole == HIDDEN


@pytest.mark.parametrize("short", ["p", "pw", "pw1"])
def test_a_short_password_is_hidden_where_it_stands_alone(short: str) -> None:
    """A password of three characters is one too; the words that hold these letters stay legible."""
    masker = Masker([Secret("URL", f"http://bob:{short}@h/")])

    assert masker.hide(f"wrong password '{short}' for spw1") == f"wrong password '{HIDDEN}' for spw1"
    assert _base64(f"bob:{short}") not in masker.hide(f"sent {_base64(f'bob:{short}')}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Basic Zm9vOmJhcg==", f"Authorization: {HIDDEN}"),
        ('{"authorization": "Basic Zm9vOmJhcg==", "n": 1}', f'{{"authorization": {HIDDEN}", "n": 1}}'),
        ("{'Proxy-Authorization': 'Digest username=\"a\"'}", f"{{'Proxy-Authorization': {HIDDEN}"),
        ("header Bearer abc.def-123 refused", f"header Bearer {HIDDEN} refused"),
        ("bearer%20abc.def refused", f"bearer%20{HIDDEN} refused"),
        ("> BASIC Zm9vOmJhcg== <", f"> BASIC {HIDDEN} <"),
        ("curl https://other.example/x failed", f"curl {HIDDEN} failed"),
        ("to https%3A%2F%2Fother.example%2Fx now", f"to {HIDDEN} now"),
        ("login joe:hunter2@db refused", f"login {HIDDEN}db refused"),
    ],
)
def test_what_looks_like_a_credential_is_hidden_whatever_it_holds(text: str, shown: str) -> None:
    """ALERT-07: headers, schemes and URLs are hidden though no configuration has them."""
    assert Masker().hide(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "invalid_blocks",
        "401 Authorization required",
        'Basic realm="ops", charset="UTF-8"',
        "basic authentication failed",
        "rate limit: 1 per second & channel; retry at 12:30 (100 % of 5/5)",
        "Größe überschritten: 5 > 4",
    ],
)
def test_an_explanation_stays_legible(masker: Masker, text: str) -> None:
    """What a person needs to put it right is not lost to caution."""
    assert masker.hide(text) == text


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(sorted(SECRETS)), st.sampled_from(sorted(FORMS)))
def test_what_stands_beside_it_changes_nothing(before: str, behind: str, name: str, form: str) -> None:
    """ALERT-07: the result is one printable line without the secret, whatever is around it."""
    quoted = FORMS[form](SECRETS[name])
    shown = Masker([Secret("all", value) for value in (URL, KEY, ROUTING_KEY)]).hide(f"{before} {quoted} {behind}")

    assert shown.isprintable()
    assert quoted not in shown


@given(st.binary(max_size=300))
def test_any_bytes_become_a_line(data: bytes) -> None:
    """Half an escape, an unknown entity or no UTF-8 at all: what is shown is one printable line."""
    assert Masker([Secret("URL", URL)]).hide(data).isprintable()


def test_a_secret_that_is_cut_off_is_hidden_as_far_as_it_goes(masker: Masker) -> None:
    """ALERT-07: of an answer that is longer than what is read, neither end shows a part of a secret."""
    for kept in range(1, len(URL)):
        assert masker.hide(f"no to {URL[:kept]}", ends=False).removesuffix(HIDDEN).strip() == "no to", kept
        assert masker.hide(f"{URL[-kept:]} it is", starts=False).removeprefix(HIDDEN).strip() == "it is", kept


def test_a_passphrase_that_is_cut_off_is_hidden_as_far_as_it_goes() -> None:
    """ALERT-07: a secret of several words leaves none of them at a cut."""
    phrase = "open the gate now please"
    masker = Masker([Secret("URL", f"https://bob:{quote(phrase)}@h/")])

    for kept in range(4, 20):
        assert masker.hide(f"no: {phrase[:kept]}", ends=False).removesuffix(HIDDEN).strip() in {"no:", ""}, kept
        assert masker.hide(f"{phrase[-kept:]} no", starts=False).removeprefix(HIDDEN).strip() == "no", kept


def test_the_word_at_a_cut_is_left_out() -> None:
    """Half of a token of somebody else's does not show what it is."""
    assert Masker().hide("abcdef ghi jkl", starts=False, ends=False) == "ghi"


def test_a_secret_in_a_file_counts_as_it_is_now_and_was_before(tmp_path: Path) -> None:
    """After a rotation a late answer may quote the old value."""
    file = tmp_path / "key"
    file.write_text("first-value second-value\n")
    masker = Masker([Secret("key", file=file)])
    before = masker.hide("first-value, second-value")
    file.write_text("third-value\n")
    after = masker.hide("first-value, third-value")
    file.unlink()

    assert (before, after) == (f"{HIDDEN}, {HIDDEN}", f"{HIDDEN}, {HIDDEN}")
    assert masker.hide("first-value, third-value") == f"{HIDDEN}, {HIDDEN}"


def test_it_learns_of_another_configuration() -> None:
    """What a reload brings is hidden by everything that holds the masker already."""
    masker = Masker([Secret("key", "of-before")])
    masker.set_secrets([Secret("key", "of-now")], ["argument"])

    assert masker.hide("of-now argument other") == f"{HIDDEN} {HIDDEN} other"


def test_secrets_in_a_command_line_are_found() -> None:
    """A URL, a header and an assignment in the arguments of a program are secrets; other words are none."""
    arguments = ["curl", "-H", "X-Api-Key: abc-def", "--data=x", "https://h/x y", "--password=pw123", "-v"]

    assert set(argument_secrets(arguments)) == {"abc-def", "https://h/x", "pw123"}
