"""A certificate authority trusted by these tests only."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

_DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates of servers on 127.0.0.1; `certificate` is its own, a PEM file.

    Needs the package `cryptography`, a dependency of azure-identity.
    """

    def __init__(self, folder: Path, name: str = "of tests") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key, self._name = _new_key(), _named(f"an authority {name}")
        self.certificate = folder / "authority.pem"
        self.certificate.write_bytes(_pem(self._signed(self._name, self._key, is_authority=True)))

    def issue(self, name: str = "127.0.0.1") -> tuple[Path, Path]:
        """Certificate and key of the server `name`, an address or a host: PEM files."""
        from cryptography.hazmat.primitives import serialization

        key = _new_key()
        certificate = self._folder / f"{name}.pem"
        certificate.write_bytes(_pem(self._signed(_named(name), key, host=name)))
        private = self._folder / f"{name}.key"
        none = serialization.NoEncryption()
        kind = serialization.PrivateFormat.PKCS8
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, none))
        return certificate, private

    def _signed(self, name: Any, key: Any, *, is_authority: bool = False, host: str = "") -> Any:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )
        if host:
            try:
                address: Any = x509.IPAddress(ipaddress.ip_address(host))
            except ValueError:
                address = x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        if is_authority:
            others = ["content_commitment", "key_encipherment", "data_encipherment"]
            others += ["key_agreement", "encipher_only", "decipher_only"]
            signs = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True)
            usage = x509.KeyUsage(**dict.fromkeys(others, False), **signs)
            builder = builder.add_extension(usage, critical=True)
        return builder.sign(self._key, hashes.SHA256())


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    made: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return made
