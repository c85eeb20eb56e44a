# SPDX-License-Identifier: Apache-2.0
"""What each kit holds, but for keys and certificates: text, computed from the federation alone."""

from __future__ import annotations

import ipaddress
import shlex
from pathlib import Path

from fedface_flwr.provision.federation import Federation, Party, Server
from fedface_flwr.provision.templates import fill

Texts = dict[str, str]
"""Texts by their path inside a kit."""


def party_texts(federation: Federation, party: Party) -> Texts:
    """Return the texts of a party's kit."""
    unit = f"fedface-{party.name}.service"
    trainer = party.role == "trainer"
    values = {
        "FEDERATION": federation.name,
        "ENDPOINT": federation.server.endpoint,
        "PARTY": party.name,
        "ROLE": party.role,
        "KIT": party.name,
        "UNIT": unit,
        "WHAT": f"{party.role} {party.name}",
        "PRIVATE": "classifier, its momentum, place in the data" if trainer else "results kept between messages",
        "DEVICES": f"GPU {', '.join(map(str, party.gpus))}" if party.gpus else "the CPU",
        "GPUS": ",".join(map(str, party.gpus)) or '""',
    }
    return {
        "start.sh": fill("party_start.sh", values | {"DATA": shlex.quote(party.data)}),
        "policy.toml": federation.policy.to_toml(),
        "README.md": fill("party_readme.md", values | {"DATA": f"`{party.data}`"}),
        unit: fill("service.unit", values),
    }


def server_texts(federation: Federation, kit: Path) -> Texts:
    """Return the texts of the server's kit; ``kit`` is its folder."""
    server = federation.server
    unit = "fedface-server.service"
    values = {
        "FEDERATION": federation.name,
        "LINK": federation.name,
        "ADDRESS": server.address,
        "PORT": str(server.port),
        "ENDPOINT": server.endpoint,
        "CONTROL": f"127.0.0.1:{server.control_port}",
        "LISTEN": _listen(server),
        "DOOR_HOST": server.address if _is_loopback(server) else "127.0.0.1",
        "KIT": "server",
        "UNIT": unit,
        "WHAT": "server",
    }
    return {
        "start.sh": fill("server_start.sh", values),
        "register.sh": fill("server_register.sh", values),
        "nginx.conf": fill("nginx.conf", values),
        "README.md": fill("server_readme.md", values),
        "flwr/config.toml": _link(federation, kit),
        unit: fill("service.unit", values),
    }


def _link(federation: Federation, kit: Path) -> str:
    """Return the configuration by which Flower's command line finds the SuperLink."""
    name, port = federation.name, federation.server.control_port
    return (
        f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "127.0.0.1:{port}"\n'
        f'root-certificates = "{kit.absolute()}/tls/ca.pem"\n'
    )


def _is_loopback(server: Server) -> bool:
    return server.ip is not None and server.ip.is_loopback


def _listen(server: Server) -> str:
    """Return nginx's listen lines: a loopback address alone, else every address of the machine.

    IPv6 only where the server's address is one: a machine without it could not start the door.
    """
    if _is_loopback(server):
        hosts = [server.endpoint.removesuffix(f":{server.port}")]
    else:
        hosts = ["0.0.0.0"] + ["[::]"] * isinstance(server.ip, ipaddress.IPv6Address)
    return "\n".join(f"        listen {host}:{server.port} ssl;" for host in hosts)
