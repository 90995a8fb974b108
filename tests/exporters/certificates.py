"""Certificates for tests, made on the spot: an authority, servers, clients."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = dt.timedelta(days=1)


class Issued(NamedTuple):
    """A certificate with its key, as PEM."""

    cert: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        """As `name.crt` and `name.key`."""
        (folder / f"{name}.crt").write_bytes(self.cert)
        (folder / f"{name}.key").write_bytes(self.key)


class Authority:
    """A certificate authority of one's own."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, *names: str) -> Issued:
        """A certificate for DNS names, IP addresses and URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        signed = self._sign(subject, key, alternatives)
        return Issued(
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def client(self, issued: Issued | None = None, folder: Path | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority, with a certificate of its own if given."""
        context = ssl.create_default_context(cadata=self.pem.decode())
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # key identifiers are not the point here
        if issued is not None and folder is not None:
            issued.write(folder, "client")
            context.load_cert_chain(folder / "client.crt", folder / "client.key")
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - LIFETIME)
            .not_valid_after(now + LIFETIME)
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
