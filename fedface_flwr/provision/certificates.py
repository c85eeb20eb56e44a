# SPDX-License-Identifier: Apache-2.0
"""The federation's own certificate authority, the server's certificate, and the parties' keys.

All keys are of the curve P-384: Flower's SuperNode reads its private key, and its command line a public one, in
OpenSSH's format and from a NIST curve only.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedface_flwr.errors import StateError
from fedface_flwr.provision.federation import Server

AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=1095)
RENEW_BEFORE = timedelta(days=60)
# A party's clock may be a little behind the operator's.
BACKDATED = timedelta(hours=1)


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its certificate, which everybody may have, and its key, which nobody may."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, federation: str) -> Authority:
        """Return a new authority for a federation."""
        key = new_key()
        name = _name(f"{federation} authority")
        certificate = (
            _builder(name, name, key.public_key(), key, AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA384())
        )
        return cls(certificate, key)

    def issue(self, server: Server, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        """Return a certificate for the server under its address, and under the loopback interface's."""
        return (
            _builder(_name(server.address[:64]), self.certificate.subject, key.public_key(), self.key, SERVER_LIFE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(server_names(server)), critical=False)
            .sign(self.key, hashes.SHA384())
        )

    def vouches_for(self, certificate: x509.Certificate, server: Server, key: ec.EllipticCurvePrivateKey) -> bool:
        """Return whether a certificate is this authority's, of this server and key, and valid for some time to come."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except Exception:  # whatever is wrong with it, a new one is right
            return False
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return (
            list(names) == server_names(server)
            and certificate.public_key() == key.public_key()
            and certificate.not_valid_after_utc - RENEW_BEFORE > datetime.now(UTC)
        )


def server_names(server: Server) -> list[x509.GeneralName]:
    """Return the names that the server's certificate holds."""
    own: x509.GeneralName = x509.DNSName(server.address) if server.ip is None else x509.IPAddress(server.ip)
    names = [own, x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return list(dict.fromkeys(names))


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP384R1())


def tls_key_text(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a private key as TLS programs read it."""
    return _private_text(key, serialization.PrivateFormat.PKCS8)


def node_key_text(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a private key as a SuperNode reads it."""
    return _private_text(key, serialization.PrivateFormat.OpenSSH)


def public_key_text(key: ec.EllipticCurvePrivateKey, comment: str) -> str:
    """Return the public half of a key on one line, as Flower's command line reads it."""
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{line.decode()} {comment}\n"


def certificate_text(certificate: x509.Certificate) -> str:
    """Return a certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; errors as :func:`read_tls_key`."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: not a readable certificate ({error}); restore it from a copy") from error


def read_tls_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key.

    Raises
    ------
    StateError
        If the file does not hold one.
    """
    try:
        return _elliptic(serialization.load_pem_private_key(path.read_bytes(), password=None))
    except (OSError, ValueError, TypeError) as error:
        raise StateError(f"{path}: not a readable private key ({error}); restore it from a copy") from error


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a party's private key; errors as :func:`read_tls_key`."""
    try:
        return _elliptic(serialization.load_ssh_private_key(path.read_bytes(), password=None))
    except (OSError, ValueError, TypeError) as error:
        raise StateError(f"{path}: not a readable private key ({error}); restore it from a copy") from error


def _elliptic(key: object) -> ec.EllipticCurvePrivateKey:
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not of an elliptic curve")
    return key


def _private_text(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> str:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "FedFace"), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    life: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
