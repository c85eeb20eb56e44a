# SPDX-License-Identifier: Apache-2.0
"""``fedface-provision``: writes, and brings up to date, the kits of a federation's server and parties."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedface_flwr.errors import FedFaceError, StateError
from fedface_flwr.provision import certificates
from fedface_flwr.provision.certificates import Authority
from fedface_flwr.provision.federation import Federation, Party, read_federation
from fedface_flwr.provision.folder import KitFolder
from fedface_flwr.provision.kits import party_texts, server_texts

RETIRED = "authority/retired"
"""Public keys of the parties that have left, by which the operator's folder knows them should they return."""


def provision(federation: Federation, root: Path) -> list[str]:
    """Write a federation's kits below a folder; return what was done, a line for each file or party.

    What is there already stays: keys always, certificates while they fit, other files while the federation asks for
    the same content.

    Raises
    ------
    StateError
        If the folder is in use, cannot be written, or holds keys that cannot be read.
    """
    with KitFolder(root).locked() as folder:
        _write_certificates(folder, federation)
        _write_keys(folder, federation)
        for path, text in server_texts(federation, root / "server").items():
            folder.write(f"server/{path}", text)
        for party in federation.parties:
            for path, text in party_texts(federation, party).items():
                folder.write(f"{party.name}/{path}", text)
        return folder.changes


def _write_certificates(folder: KitFolder, federation: Federation) -> None:
    """Write the authority, which stays with the operator, the server's certificate, and everybody's copy of the CA."""
    authority = _authority(folder, federation)
    ca = certificates.certificate_text(authority.certificate)
    key_path, path = folder.root / "server/tls/server.key", folder.root / "server/tls/server.pem"
    if folder.holds("server/tls/server.key"):
        key = certificates.read_tls_key(key_path)
    else:
        key = certificates.new_key()
        folder.write("server/tls/server.key", certificates.tls_key_text(key))
    kept = path.exists() and authority.vouches_for(certificates.read_certificate(path), federation.server, key)
    if not kept:
        folder.write("server/tls/server.pem", certificates.certificate_text(authority.issue(federation.server, key)))
    for place in ("server/tls", *(party.name for party in federation.parties)):
        folder.write(f"{place}/ca.pem", ca)


def _authority(folder: KitFolder, federation: Federation) -> Authority:
    key_path, path = folder.root / "authority/ca.key", folder.root / "authority/ca.pem"
    if folder.holds("authority/ca.key") and folder.holds("authority/ca.pem"):
        authority = Authority(certificates.read_certificate(path), certificates.read_tls_key(key_path))
        if authority.certificate.public_key() != authority.key.public_key():
            raise StateError(f"{path}: is not of the key in {key_path}; restore the two from one copy")
        return authority
    if (folder.root / "server").exists():
        raise StateError(
            f"{key_path.parent}: the authority of these kits is not there; put ca.key and ca.pem back, "
            "or choose another folder for a federation with new keys"
        )
    authority = Authority.create(federation.name)
    folder.write("authority/ca.key", certificates.tls_key_text(authority.key))
    folder.write("authority/ca.pem", certificates.certificate_text(authority.certificate))
    return authority


def _write_keys(folder: KitFolder, federation: Federation) -> None:
    """Give every party that has none a key, and the server the public keys of the parties there are."""
    for party in federation.parties:
        if (text := _public_key(folder, party)) is not None:
            folder.write(f"server/keys/{party.name}.pub", text)
    names = {party.name for party in federation.parties}
    for public in sorted((folder.root / "server/keys").glob("*.pub")):
        if (name := public.name.removesuffix(".pub")) not in names:
            folder.write(f"{RETIRED}/{public.name}", public.read_text(encoding="utf-8"))
            folder.remove(f"server/keys/{public.name}")
            folder.note(f"left: {name}; its kit stays, its key is refused once the server has run register.sh")


def _public_key(folder: KitFolder, party: Party) -> str | None:
    """Return the public half of a party's key, making the key if need be; None if it is with the party alone."""
    private = folder.root / party.name / "party.key"
    if folder.holds(f"{party.name}/party.key"):
        text = certificates.public_key_text(certificates.read_node_key(private), party.name)
        retired = folder.root / RETIRED / f"{party.name}.pub"
        if not retired.exists() or retired.read_text(encoding="utf-8") != text:
            return text
        # Flower never again accepts a key that was once unregistered.
        folder.note(f"back: {party.name}; its former key stays refused, so it gets a new one")
    elif (folder.root / f"server/keys/{party.name}.pub").exists():
        # Handed over and, as it should be, not kept here: a new one would shut the party out.
        folder.note(f"kept: the key of {party.name}, which only the party holds")
        return None
    key = certificates.new_key()
    folder.write(f"{party.name}/party.key", certificates.node_key_text(key))
    return certificates.public_key_text(key, party.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; errors end it with one line."""
    parser = argparse.ArgumentParser(prog="fedface-provision", description=__doc__)
    parser.add_argument("federation", type=Path, metavar="FEDERATION.yaml", help="describes server and parties")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="KITS", help="folder of the kits")
    options = parser.parse_args(arguments)
    # Whatever is written is the operator's alone from its first byte.
    os.umask(0o077)
    try:
        federation = read_federation(options.federation)
        changes = provision(federation, options.output)
    except FedFaceError as error:
        print(f"fedface-provision: {error}", file=sys.stderr)
        return 1
    for line in changes or ["nothing to change"]:
        print(line)
    print(f"{options.output}: kits of federation {federation.name}; keep authority/ to yourself, hand out the others")
    return 0


if __name__ == "__main__":
    sys.exit(main())
