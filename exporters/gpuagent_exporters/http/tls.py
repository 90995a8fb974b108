"""The `tls_server_config` of Prometheus' web configuration, as Python's ssl module can do it.

What it cannot do is refused with a sentence: a setting that was silently weakened is worse than
none.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuagent.core.regular_files import read_regular_file

MAX_FILE_BYTES = 1024 * 1024
"""Of a web configuration, and of each file that it names: all authorities of a system are some 200 KiB."""

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CURVES = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
TLS13_CIPHERS = {
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
}
CIPHERS = {  # Go's names, which the format uses (crypto/tls#CipherSuites), and OpenSSL's
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}


class TlsError(Exception):
    """Certificates that cannot be used; `faults` are sentences, each beginning with its key."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))


@dataclass(frozen=True, slots=True)
class TlsServerConfig:
    """The section as it is in the file. Relative paths are relative to the file."""

    enabled: bool = False
    """Whether the section asks for TLS: it does if it has any key."""
    cert: str = ""
    key: str = field(default="", repr=False)
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: str = ""
    client_allowed_sans: Sequence[str] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: Sequence[str] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: Sequence[str] = ()

    def contradictions(self) -> Iterator[str]:
        """Yield what cannot be together, in sentences."""
        for name in ("cert", "key", "client_ca"):
            if getattr(self, name) and getattr(self, f"{name}_file"):
                yield f"{name} and {name}_file exclude each other"
        for name in ("cert", "key"):
            if self.enabled and not getattr(self, name) and not getattr(self, f"{name}_file"):
                yield f"one of {name} and {name}_file is missing"
        has_ca = bool(self.client_ca or self.client_ca_file)
        if self.verifies_clients and not has_ca:
            yield f"client_auth_type {self.client_auth_type} needs client_ca_file"
        if has_ca and not self.verifies_clients:
            yield "client_ca_file without client_auth_type; write RequireAndVerifyClientCert"
        if self.client_allowed_sans is not None and not self.requires_clients:
            yield "client_allowed_sans needs client_auth_type RequireAndVerifyClientCert"
        if self.client_allowed_sans is not None and not self.client_allowed_sans:
            yield "client_allowed_sans is empty: nobody could connect"
        if self.min_version > self.max_version:
            yield "min_version is above max_version"

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
        ciphers = [CIPHERS[name] for name in self.cipher_suites if name in CIPHERS]
        if ciphers:
            context.set_ciphers(":".join(ciphers))
        elif self.cipher_suites:  # only those of 1.3, which cannot be chosen: then 1.2 has none left
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        for curve in self.curve_preferences:
            try:
                context.set_ecdh_curve(_CURVES[curve])
            except (ValueError, ssl.SSLError) as error:  # Python 3.11.2, Debian 12's, cannot choose X25519
                fault = f"curve_preferences: {curve} is not one that this Python can choose; leave it out to offer all"
                raise TlsError([fault]) from error
        if self.requires_clients:
            context.verify_mode = ssl.CERT_REQUIRED
        elif self.verifies_clients:
            context.verify_mode = ssl.CERT_OPTIONAL

    def _read(self, name: str, folder: Path, faults: list[str]) -> str:
        file: str = getattr(self, f"{name}_file")
        if not file:
            return str(getattr(self, name))
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


def allowed_san(certificate: Mapping[str, Any] | None, allowed: Iterable[str]) -> bool:
    """Return whether an alternative name of the certificate (DNS, IP, e-mail, URI) is in `allowed`."""
    names = (certificate or {}).get("subjectAltName", ())
    return not {_as_go_writes(kind, value) for kind, value in names}.isdisjoint(allowed)


def _as_go_writes(kind: str, value: str) -> str:
    """Write an IPv6 address in Go's short form, which the format means; OpenSSL writes it in full."""
    if kind != "IP Address":
        return value
    try:
        return str(ipaddress.ip_address(value.strip()))
    except ValueError:
        return value
