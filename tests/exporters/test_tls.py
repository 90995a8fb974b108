"""TLS by Prometheus' web configuration, over real handshakes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.core.clock import ManualClock
from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.limits import HttpLimits
from gpuagent_exporters.http.server import HttpServer
from gpuagent_exporters.http.web_config import WebConfig, WebConfigError
from tests.exporters.certificates import Authority
from tests.exporters.wire import connected, run, serving, until
from tests.fakes.source import METRICS, FakeSource


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Who signed everything that is good."""
    return Authority()


@pytest.fixture
def folder(tmp_path: Path, authority: Authority) -> Path:
    """A folder with a server's certificate and key and the authority's certificate."""
    authority.issue("localhost", "127.0.0.1").write(tmp_path, "server")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    return tmp_path


def configured(folder: Path, *, clock: ManualClock | None = None, **tls: Any) -> WebConfig:
    """A web configuration with these keys besides the server's certificate."""
    section = {"cert_file": "server.crt", "key_file": "server.key", **tls}
    section = {key: value for key, value in section.items() if value is not None}
    path = folder / "web.yml"
    path.write_text(yaml.safe_dump({"tls_server_config": section}))
    return WebConfig(path, clock or ManualClock())


MUTUAL: dict[str, Any] = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}


async def metrics(server: HttpServer, client: ssl.SSLContext) -> bytes:
    """What /metrics says over TLS."""
    async with connected(server, tls=client) as connection:
        return (await connection.get("/metrics")).body


def over_tls(config: WebConfig, client: ssl.SSLContext) -> bytes:
    """What a client gets from a server so configured."""

    async def test() -> bytes:
        async with serving(web_config=config) as server:
            return await metrics(server, client)

    return run(test())


def refused(config: WebConfig, client: ssl.SSLContext) -> bool:
    """Whether a client gets nothing. With TLS 1.3 it learns of it when it reads."""
    try:
        over_tls(config, client)
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
        return True
    return False


def test_a_certificate_in_files(folder: Path, authority: Authority) -> None:
    """cert_file and key_file, relative to the configuration, make an https address."""
    assert over_tls(configured(folder), authority.client()) == METRICS


def test_a_certificate_inline(tmp_path: Path, authority: Authority) -> None:
    """Cert and key may stand in the configuration itself, as PEM."""
    issued = authority.issue("localhost")
    inline: dict[str, Any] = {"cert": issued.cert.decode(), "key": issued.key.decode()}
    config = configured(tmp_path, cert_file=None, key_file=None, **inline)

    assert over_tls(config, authority.client()) == METRICS


def test_a_large_answer_over_tls(folder: Path, authority: Authority) -> None:
    """An answer larger than every buffer on its way arrives whole."""
    body = METRICS * (8 * 1024 * 1024 // len(METRICS))

    async def test() -> bytes:
        app = build_app(FakeSource(metrics=body))
        async with serving(app, web_config=configured(folder)) as server:
            return await metrics(server, authority.client())

    assert run(test()) == body


def test_plain_text_to_https_is_ended(folder: Path) -> None:
    """A client that does not speak TLS is disconnected and gets nothing."""

    async def test() -> bytes:
        async with serving(web_config=configured(folder)) as server, connected(server) as client:
            await client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return await client.rest()

    assert METRICS not in run(test())


def test_a_handshake_that_stalls_is_given_up(folder: Path, authority: Authority) -> None:
    """Who connects and says nothing holds a connection no longer than any other request."""

    async def test() -> None:
        limits = HttpLimits(request_timeout_seconds=0.3, max_connections=1)
        async with serving(web_config=configured(folder), limits=limits) as server:
            async with connected(server) as stalled:
                assert await stalled.rest() == b""
            assert server.connections == 0
            assert await metrics(server, authority.client()) == METRICS

    run(test())


def test_handshakes_count_as_connections(folder: Path) -> None:
    """Connections that are still shaking hands are not beyond the limit: the oldest gives way."""

    async def test() -> bytes:
        limits = HttpLimits(max_connections=1, request_timeout_seconds=1000)
        config = configured(folder)
        async with (
            serving(web_config=config, limits=limits) as server,
            connected(server) as first,
            connected(server),
        ):
            return await first.rest()

    assert run(test()) == b""


def test_a_slow_reader_over_tls_is_cut(folder: Path, authority: Authority) -> None:
    """Who does not read is cut over TLS as well."""

    async def test() -> None:
        app = build_app(FakeSource(metrics=METRICS * (32 * 1024 * 1024 // len(METRICS))))
        limits = HttpLimits(write_timeout_seconds=0.3)
        config = configured(folder)
        async with (
            serving(app, web_config=config, limits=limits) as server,
            connected(server, tls=authority.client()) as slow,
        ):
            await slow.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: not server.connections)

    run(test())


def test_client_certificates(folder: Path, authority: Authority) -> None:
    """RequireAndVerifyClientCert lets in who has a certificate of the authority, and nobody else."""
    config = configured(folder, **MUTUAL)
    theirs, stranger = authority.issue("prometheus.example.org"), Authority("stranger")

    assert config.authenticates
    assert over_tls(config, authority.client(theirs, folder)) == METRICS
    assert refused(config, authority.client())
    assert refused(config, authority.client(stranger.issue("prometheus.example.org"), folder))


def test_client_certificates_if_given(folder: Path, authority: Authority) -> None:
    """VerifyClientCertIfGiven lets in who has none, and refuses a bad one; that is no authentication."""
    config = configured(folder, **{**MUTUAL, "client_auth_type": "VerifyClientCertIfGiven"})

    assert not config.authenticates
    assert over_tls(config, authority.client()) == METRICS
    assert refused(config, authority.client(Authority().issue("x"), folder))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"min_version": "TLS13"}, ssl.TLSVersion.TLSv1_2),
        ({"max_version": "TLS12"}, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_versions(folder: Path, authority: Authority, ours: dict[str, Any], theirs: ssl.TLSVersion) -> None:
    """A version that is not offered is not spoken."""
    client = authority.client()
    client.minimum_version = client.maximum_version = theirs

    assert over_tls(configured(folder), client) == METRICS
    assert refused(configured(folder, **ours), client)


def test_renewed_certificates_are_used(folder: Path, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """New files are noticed without a reload, looked for at most every ten seconds."""
    clock, successor = ManualClock(), Authority("successor")
    config = configured(folder, clock=clock)

    async def test() -> None:
        async with serving(web_config=config) as server:
            successor.issue("localhost").write(folder, "server")
            assert await metrics(server, authority.client()) == METRICS
            clock.advance(11)
            assert await metrics(server, successor.client()) == METRICS

    with caplog.at_level(logging.INFO, "gpuagent_exporters"):
        run(test())
    assert [record.message for record in caplog.records] == ["certificates were renewed"]


def test_half_renewed_certificates_are_not_used(
    folder: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """While a new certificate is there without its key, the old pair serves, with one warning."""
    clock = ManualClock()
    config = configured(folder, clock=clock)

    async def test() -> None:
        async with serving(web_config=config) as server:
            (folder / "server.crt").write_bytes(authority.issue("localhost").cert)
            for _ in range(3):
                clock.advance(11)
                assert await metrics(server, authority.client()) == METRICS

    run(test())
    assert len(caplog.records) == 1
    assert "keeping the old certificates" in caplog.text


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("server.crt", None, r"cert_file: cannot read .*server\.crt: No such file"),
        ("server.key", None, r"key_file: cannot read .*server\.key: No such file"),
        ("server.key", b"nonsense", "cert and key cannot be used together"),
        ("server.crt", b"", "cert and key cannot be used together"),
        ("ca.crt", b"nonsense", "client_ca_file: no certificate in PEM form"),
    ],
)
def test_bad_files_stop_the_start(folder: Path, file: str, content: bytes | None, fault: str) -> None:
    """Certificates that cannot be used are named at the start, not at the first connection."""
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)

    with pytest.raises(WebConfigError, match=fault):
        configured(folder, **MUTUAL)


def test_a_key_of_another_certificate(folder: Path, authority: Authority) -> None:
    """A key that does not belong to its certificate is said to."""
    (folder / "server.key").write_bytes(authority.issue("localhost").key)

    with pytest.raises(WebConfigError, match="KEY_VALUES_MISMATCH"):
        configured(folder)


def test_an_encrypted_key_is_refused(folder: Path) -> None:
    """A key with a pass phrase does not make the agent ask on a terminal that nobody watches."""
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key((folder / "server.key").read_bytes(), None)
    locked = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret"))
    (folder / "server.key").write_bytes(locked)

    with pytest.raises(WebConfigError, match="cert and key cannot be used together"):
        configured(folder)
