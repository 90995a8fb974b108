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
USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


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
        self._certificate = self._sign(
            self._name,
            self._key,
            x509.BasicConstraints(ca=True, path_length=None),
            x509.KeyUsage(**dict.fromkeys(USAGES, False) | {"key_cert_sign": True}),
        )
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
        if issued is not None and folder is not None:
            issued.write(folder, "client")
            context.load_cert_chain(folder / "client.crt", folder / "client.key")
        return context

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *extensions: x509.ExtensionType,
    ) -> x509.Certificate:
        """With all that Python 3.13 asks of a certificate by default (ssl.VERIFY_X509_STRICT)."""
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - LIFETIME)
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=not isinstance(extension, x509.SubjectAlternativeName))
        return builder.sign(self._key, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
