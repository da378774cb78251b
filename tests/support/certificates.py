"""A certificate authority of one test, and what servers are given of it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """`file` has its own certificate, which a client has to trust."""

    def __init__(self, folder: Path, name: str = "throw-away") -> None:
        self._folder = folder
        self._key = generate_private_key(SECP256R1())
        self._name = _make_name(name)
        own = _begin(self._name, self._name, self._key, days=1).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def make_context(self, *names: str, days: int = 1) -> ssl.SSLContext:
        """What a server of these names needs; one of negative `days` has expired."""
        key = generate_private_key(SECP256R1())
        names_given = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        made = _begin(_make_name(names[0]), self._name, key, days=days).add_extension(names_given, critical=False)
        file = self._folder / f"{names[0]}{days}.pem"
        file.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + made.sign(self._key, SHA256()).public_bytes(Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _make_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begin(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    until = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - timedelta(days=1))
        .not_valid_after(until)
    )
