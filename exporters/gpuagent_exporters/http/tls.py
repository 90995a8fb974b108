"""The `tls_server_config` of Prometheus' web configuration, as Python's ssl module can do it.

What it cannot do is refused with a sentence: a setting that was silently weakened is worse than
none.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from gpuagent.core.problems import Problem, kind_of, listed, shown
from gpuagent.core.regular_files import read_regular_file
from gpuagent.core.sections import ReadContext, SecretText, Section, ValueType
from gpuagent.core.sections import key as setting  # a key is called so here

MAX_FILE_BYTES = 1024 * 1024
"""The largest web configuration, and the largest file that it names: all authorities of a system are some 200 KiB."""

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_UNVERIFIED = frozenset({"RequestClientCert", "RequireAnyClientCert", "RequireClientCert"})
_CLIENT_AUTH_TYPES = ("NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert")


class TlsError(Exception):
    """Certificates that cannot be used; `faults` are sentences, each beginning with its key."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))


def _client_auth_type(value: object, _: ReadContext) -> str:
    if value in _UNVERIFIED:
        raise ValueError(
            f"{value} asks for certificates without verifying them, which Python cannot; "
            "RequireAndVerifyClientCert is what protects"
        )
    if value not in {"", *_CLIENT_AUTH_TYPES}:
        raise ValueError(f"{shown(str(value))} is unknown")
    return str(value)


def _version(value: object, _: ReadContext) -> str:
    if value in {"TLS10", "TLS11"}:
        raise ValueError(f"{value} is no longer offered (RFC 8996); write TLS12 or TLS13")
    if value not in _VERSIONS:
        raise ValueError(f"{shown(str(value))} is unknown")
    return str(value)


def _secret(value: object, _: ReadContext) -> SecretText:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {kind_of(value)}")
    return SecretText(value)


def _refused(why: str) -> ValueType:
    """Return the type of a key of Prometheus' that is not taken here."""

    def refuse(_: object, __: ReadContext) -> None:
        raise ValueError(why)

    return ValueType("leave it out", refuse)


_Version = Annotated[str, ValueType("TLS12 or TLS13", _version)]


class TlsServerConfig(Section):
    """The section as it is in the file. Relative paths are relative to the file."""

    cert: str = setting(default="")
    key: Annotated[SecretText, ValueType("a private key in PEM form", _secret)] = setting(default=SecretText(""))
    client_ca: str = setting(default="")
    cert_file: str = setting(default="")
    key_file: str = setting(default="")
    client_ca_file: str = setting(default="")
    client_auth_type: Annotated[str, ValueType(listed(_CLIENT_AUTH_TYPES), _client_auth_type)] = setting(default="")
    min_version: _Version = setting(default="TLS12")
    max_version: _Version = setting(default="TLS13")
    prefer_server_cipher_suites: bool = setting(default=True)
    cipher_suites: (
        Annotated[None, _refused("no list of ciphers is taken: those of OpenSSL's default are offered")] | None
    ) = setting(default=None)
    curve_preferences: (
        Annotated[None, _refused("no list of curves is taken: all that OpenSSL has are offered")] | None
    ) = setting(default=None)
    client_allowed_sans: (
        Annotated[
            None,
            _refused(
                "names in clients' certificates are not compared: have an authority of its own for client_ca_file sign"
                " those that may connect"
            ),
        ]
        | None
    ) = setting(default=None)

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """Return the keys that are taken."""
        return tuple(name for name, each in cls.keys.items() if each.annotation is not type(None))

    @classmethod
    def check(cls, given: Mapping[str, object]) -> Iterator[Problem]:
        """Find what cannot be together."""
        if not given or given.keys() - cls.keys.keys():  # a misspelt key is told
            return
        for name in ("cert", "key", "client_ca"):
            if given.get(name) and given.get(f"{name}_file"):
                yield Problem((name,), f"{name} and {name}_file exclude each other")
            elif name != "client_ca" and not given.get(name) and not given.get(f"{name}_file"):
                yield Problem((), f"one of {name} and {name}_file is missing")
        has_ca = bool(given.get("client_ca") or given.get("client_ca_file"))
        kind = given.get("client_auth_type") or "NoClientCert"
        verifies = kind in _CLIENT_AUTH_TYPES[1:]
        if verifies and not has_ca:
            yield Problem(("client_auth_type",), f"{kind} needs client_ca_file")
        if has_ca and kind == "NoClientCert":
            yield Problem((), "client_ca_file without client_auth_type; write RequireAndVerifyClientCert")
        if given.get("min_version") == "TLS13" and given.get("max_version") == "TLS12":
            yield Problem(("min_version",), "min_version is above max_version")

    @property
    def enabled(self) -> bool:
        """Whether the section asks for TLS: with any key it has a certificate."""
        return bool(self.cert or self.cert_file)

    @property
    def verifies_clients(self) -> bool:
        """Whether a client certificate, where there is one, is verified."""
        return self.client_auth_type not in {"", "NoClientCert"}

    @property
    def requires_clients(self) -> bool:
        """Whether nobody gets in without a verified certificate."""
        return self.client_auth_type == "RequireAndVerifyClientCert"

    def files(self, folder: Path) -> tuple[Path, ...]:
        """Return the files this is made of, to see when one of them changes."""
        named = (self.cert_file, self.key_file, self.client_ca_file)
        return tuple(folder / name for name in named if name)

    def context(self, folder: Path) -> ssl.SSLContext:
        """Return a server context with the certificates as they are now. Raises TlsError."""
        faults: list[str] = []
        cert, key, client_ca = (self._read(name, folder, faults) for name in ("cert", "key", "client_ca"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if not faults:
            faults.extend(_load_certificate(context, cert, key))
        if not faults and self.verifies_clients:
            faults.extend(_load_authorities(context, client_ca))
        if faults:
            raise TlsError(faults)
        self._configure(context)
        return context

    def _configure(self, context: ssl.SSLContext) -> None:
        context.minimum_version = _VERSIONS[self.min_version]
        context.maximum_version = _VERSIONS[self.max_version]
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        if not self.prefer_server_cipher_suites:
            context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        if self.requires_clients:
            context.verify_mode = ssl.CERT_REQUIRED
        elif self.verifies_clients:
            context.verify_mode = ssl.CERT_OPTIONAL

    def _read(self, name: str, folder: Path, faults: list[str]) -> str:
        file: str = getattr(self, f"{name}_file")
        if not file:
            return self.key.get_secret_value() if name == "key" else str(getattr(self, name))
        try:
            content = read_regular_file(folder / file, MAX_FILE_BYTES)
        except OSError as error:
            faults.append(f"{name}_file: cannot read {folder / file}: {error.strerror}")
            return ""
        if len(content) > MAX_FILE_BYTES:
            faults.append(f"{name}_file: {folder / file} is larger than {MAX_FILE_BYTES // 1024} KiB")
        return content[:MAX_FILE_BYTES].decode("ascii", "replace")


def _load_certificate(context: ssl.SSLContext, cert: str, key: str) -> Iterator[str]:
    try:
        with _as_file(cert) as cert_path, _as_file(key) as key_path:
            # The empty password is for an encrypted key: OpenSSL would ask on the terminal.
            context.load_cert_chain(cert_path, key_path, password=lambda: "")
    except ssl.SSLError as error:
        reason = error.reason or "not a PEM certificate with its PEM private key, or the key is encrypted"
        yield f"cert and key cannot be used together: {reason}"


def _load_authorities(context: ssl.SSLContext, client_ca: str) -> Iterator[str]:
    try:
        context.load_verify_locations(cadata=client_ca)
    except ssl.SSLError as error:
        yield f"client_ca_file: no certificate in PEM form: {error.reason or error}"


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield a path for OpenSSL, which takes nothing else, over memory that no other process can open."""
    memory = os.memfd_create("gpuagent-pem", os.MFD_CLOEXEC)
    try:
        os.write(memory, text.encode())
        yield f"/proc/self/fd/{memory}"
    finally:
        os.close(memory)
