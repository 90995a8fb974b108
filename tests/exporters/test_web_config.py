"""Reading Prometheus' web configuration: what is accepted, and how faults are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from gpuagent_exporters.http.web_config import WebConfig, WebConfigError, read_file
from tests.exporters.wire import Answer, ask, run, serving

HASH = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()


def written(tmp_path: Path, content: dict[str, Any] | str) -> Path:
    """A web configuration file."""
    path = tmp_path / "web.yml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def faults(tmp_path: Path, content: dict[str, Any] | str) -> tuple[str, ...]:
    """What is wrong with a web configuration."""
    with pytest.raises(WebConfigError) as caught:
        WebConfig(written(tmp_path, content))
    return caught.value.faults


@pytest.mark.parametrize("content", ["", "# nothing\n", "tls_server_config:\nbasic_auth_users:\n"])
def test_an_empty_file_is_plain_http(tmp_path: Path, content: str) -> None:
    """A file in which everything is commented out asks for nothing, as with every exporter."""
    config = WebConfig(written(tmp_path, content))

    assert not config.encrypts
    assert not config.authenticates
    assert config.ssl_context() is None


def test_all_faults_at_once(tmp_path: Path) -> None:
    """A newcomer corrects the file once: every fault is told, with its key and the nearest right one."""
    found = faults(
        tmp_path,
        {
            "basic_auth_user": {"alice": HASH},
            "tls_server_config": {"cert_fil": "a", "min_version": "TLS10", "max_version": "SSL3"},
            "http_server_config": {"http2": "maybe", "headers": {"X-Mine": "1"}},
            "basic_auth_users": {"bob": "open sesame"},
        },
    )

    assert sorted(found) == [
        (
            "basic_auth_user: unknown key; did you mean basic_auth_users? (allowed: tls_server_config, "
            "http_server_config, basic_auth_users)"
        ),
        (
            "basic_auth_users: bob: not a bcrypt hash; `htpasswd -nBC 10 USER` makes one (allowed: names of users with "
            "bcrypt hashes)"
        ),
        (
            "http_server_config.headers: 'X-Mine' is no header that can be set; there are Content-Security-Policy, "
            "X-Frame-Options, X-Content-Type-Options, X-XSS-Protection or Strict-Transport-Security (allowed: names of "
            "headers with their values)"
        ),
        "http_server_config.http2: must be true or false, not text",
        (
            "tls_server_config.cert_fil: unknown key; did you mean cert_file? (allowed: cert, key, client_ca, "
            "cert_file, key_file, client_ca_file, client_auth_type, min_version, max_version, "
            "prefer_server_cipher_suites)"
        ),
        "tls_server_config.max_version: 'SSL3' is unknown (allowed: TLS12 or TLS13)",
        "tls_server_config.min_version: TLS10 is no longer offered (RFC 8996); write TLS12 or TLS13",
    ]


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"cert_file": "a"}, "one of key and key_file is missing"),
        ({"min_version": "TLS13"}, "one of cert and cert_file is missing"),
        ({"cert_file": "a", "cert": "b", "key_file": "c"}, "cert and cert_file exclude each other"),
        ({"client_auth_type": "RequestClientCert"}, "without verifying them, which Python cannot"),
        ({"client_auth_type": "RequireAnyClientCert"}, "without verifying them"),
        ({"client_auth_type": "RequireAndVerifyClientCert"}, "needs client_ca_file"),
        ({"client_ca_file": "ca.crt"}, "client_ca_file without client_auth_type"),
        ({"min_version": "TLS13", "max_version": "TLS12"}, "min_version is above max_version"),
        ({"client_allowed_sans": ["a"]}, "client_allowed_sans: names in clients' certificates are not compared"),
        ({"cipher_suites": ["TLS_AES_128_GCM_SHA256"]}, "cipher_suites: no list of ciphers is taken"),
        ({"curve_preferences": ["X25519"]}, "curve_preferences: no list of curves is taken"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, section: dict[str, Any], fault: str) -> None:
    """A setting that would be weaker here than in Prometheus stops the start with a sentence."""
    assert fault in "\n".join(faults(tmp_path, {"tls_server_config": section}))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("a: b: c", "this is not YAML: a colon does not fit"),
        ("basic_auth_users: {a: x, a: y}", "basic_auth_users.a: is given twice: see line 1"),
        ("- a list", "the file must be a mapping (key: value), not a list"),
        ("rate_limit: {burst: 1}", "rate_limit: unknown key"),
        ("basic_auth_users: {a: 1}", "'a' must be text, not a number"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: str, fault: str) -> None:
    """What is no web configuration at all is a fault like any other."""
    assert fault in "\n".join(faults(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path is in the sentence."""
    with pytest.raises(WebConfigError, match=r"nowhere\.yml: cannot be read: No such file"):
        WebConfig(tmp_path / "nowhere.yml")


def test_secrets_are_not_repeated(tmp_path: Path) -> None:
    """A fault in a key or a password does not write it to the log."""
    content = {
        "tls_server_config": {"key": "-----SECRET-----", "key_file": "x"},
        "basic_auth_users": {"bob": "plain SECRET"},
    }

    assert "SECRET" not in "\n".join(faults(tmp_path, content))


def test_extra_headers(tmp_path: Path) -> None:
    """Configured headers are on every answer, in the place of our own; a blank one is none."""
    headers = {
        "Strict-Transport-Security": "max-age=60",
        "Content-Security-Policy": "default-src 'self'",
        "X-XSS-Protection": "",
    }
    config = WebConfig(written(tmp_path, {"http_server_config": {"headers": headers}}))

    async def test() -> Answer:
        async with serving(web_config=config) as server:
            return await ask(server, "/metrics")

    answer = run(test())

    assert answer.headers["strict-transport-security"] == "max-age=60"
    assert answer.headers["content-security-policy"] == "default-src 'self'"
    assert "x-xss-protection" not in answer.headers


def test_a_header_cannot_smuggle_another(tmp_path: Path) -> None:
    """A line break in a header's value is a fault, not a second header."""
    headers = {"X-Frame-Options": "deny\r\nSet-Cookie: a=b"}

    assert "X-Frame-Options has characters" in "\n".join(faults(tmp_path, {"http_server_config": {"headers": headers}}))


def test_reload_takes_new_users_at_once(tmp_path: Path) -> None:
    """After reload() a new password works and the old one does not, on open connections too."""
    config = WebConfig(written(tmp_path, {"basic_auth_users": {"alice": HASH}}))

    async def test() -> list[int]:
        async with serving(web_config=config) as server:
            alice, bob = "Basic YWxpY2U6b3BlbiBzZXNhbWU=", "Basic Ym9iOm9wZW4gc2VzYW1l"
            before = [(await ask(server, "/metrics", authorization=who)).status for who in (alice, bob)]
            written(tmp_path, {"basic_auth_users": {"bob": HASH}})
            config.reload()
            after = [(await ask(server, "/metrics", authorization=who)).status for who in (alice, bob)]
            return before + after

    assert run(test()) == [200, 401, 401, 200]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("basic_auth_users: {alice: plain}", "not a bcrypt hash"),
        ("", "TLS or authentication would be taken away; that takes a restart"),
    ],
)
def test_a_bad_reload_changes_nothing(tmp_path: Path, content: str, fault: str) -> None:
    """A faulty file, or one that would open what was closed, is refused, and the old one stays."""
    config = WebConfig(written(tmp_path, {"basic_auth_users": {"alice": HASH}}))
    written(tmp_path, content)

    with pytest.raises(WebConfigError, match=fault):
        config.reload()

    assert config.authenticates


def test_without_a_file_there_is_nothing_to_reload() -> None:
    """SIGHUP on an agent without a web configuration is nothing special."""
    config = WebConfig()
    config.reload()

    assert not config.authenticates


def test_a_fault_tells_its_line(tmp_path: Path) -> None:
    """The message names file, line and key."""
    path = written(tmp_path, "# who may ask\nbasic_auth_users:\n  bob: plain\n")

    with pytest.raises(WebConfigError, match=rf"{path}:2: basic_auth_users: bob: not a bcrypt hash"):
        WebConfig(path)


def test_settings_do_not_show_their_secrets(tmp_path: Path) -> None:
    """Neither the hashes nor a private key are in what a log line or a traceback prints."""
    path = written(tmp_path, {"basic_auth_users": {"a": HASH}, "tls_server_config": {"cert": "c", "key": "SECRET"}})

    assert HASH not in repr(read_file(path))
    assert "SECRET" not in repr(read_file(path))
