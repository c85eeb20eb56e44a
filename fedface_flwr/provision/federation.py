# SPDX-License-Identifier: Apache-2.0
"""FEDERATION.yaml, validated once at the door."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clients.policy import SiloPolicy
from fedface_flwr.errors import ConfigError
from fedface_flwr.yaml_file import parse_yaml

ROLES = ("trainer", "validator")
RESERVED = ("server", "global", "authority")
"""Names that mean something else: kits' folders, and the model that no single party owns."""

PARTY_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
LONGEST_NAME = 40
LINK_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
HOST_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}$){HOST_LABEL}(?:\.{HOST_LABEL})*")
# Quotes and backslashes end up in a shell script and in Flower's node configuration, which has no escape for them.
UNSAFE_IN_PATH = re.compile(r"""["'\\\x00-\x1f\x7f]""")


@dataclass(frozen=True)
class Server:
    """Where the server is reached.

    Parameters
    ----------
    address : str
        Host name or IP address by which the parties know the server.
    port : int
        Public port, of the door.
    control_port : int
        Port of the SuperLink, on the loopback interface.
    """

    address: str
    port: int = 9443
    control_port: int = 8000

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The address as an IP address, or None if it is a host name."""
        try:
            return ipaddress.ip_address(self.address)
        except ValueError:
            return None

    @property
    def endpoint(self) -> str:
        """Host and port as Flower wants them."""
        host = f"[{self.address}]" if isinstance(self.ip, ipaddress.IPv6Address) else self.address
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Party:
    """One party: its name is that of its data in a run's configuration; without GPUs it computes on the CPU."""

    name: str
    role: str
    data: str
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Federation:
    """A federation; ``name`` is also that of Flower's connection to its SuperLink."""

    name: str
    server: Server
    parties: tuple[Party, ...]
    policy: SiloPolicy


def read_federation(path: Path) -> Federation:
    """Read and validate a FEDERATION.yaml.

    Raises
    ------
    ConfigError
        If the file cannot be read, or does not describe a federation that can work.
    """
    loaded = parse_yaml(path)[0] or {}
    try:
        # Texts and numbers OmegaConf would take for YAML once more.
        content = OmegaConf.to_container(OmegaConf.create(loaded), resolve=True) if isinstance(loaded, dict) else loaded
    except (OmegaConfBaseException, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable YAML file: {' '.join(str(error).split())}") from error
    try:
        return _federation(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _federation(content: Any) -> Federation:
    top = _mapping(content, "the file", ("name", "server", "parties"), ("policy",))
    name = _matching(top["name"], "name", LINK_NAME)
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"name={name!r}: must have at most {LONGEST_NAME} characters, for certificates hold it")
    if name == "default":
        raise ConfigError("name='default': means something else to Flower; choose another")
    policy = _mapping(top.get("policy") or {}, "policy", (), None)
    entries = top["parties"]
    if not isinstance(entries, list) or not entries:
        raise ConfigError("parties: must be a list of at least one party")
    parties = tuple(_party(entry, f"parties[{index}]") for index, entry in enumerate(entries))
    _unique(party.name for party in parties)
    return Federation(name, _server(top["server"]), parties, SiloPolicy.read(policy, "policy"))


def _server(content: Any) -> Server:
    values = _mapping(content, "server", ("address",), ("port", "control_port"))
    server = Server(
        _text(values["address"], "server.address"),
        _port(values.get("port", Server.port), "server.port"),
        _port(values.get("control_port", Server.control_port), "server.control_port"),
    )
    if "%" in server.address:
        raise ConfigError(f"server.address={server.address!r}: must be without a zone, which holds on one machine only")
    if server.ip is None and not HOST_NAME.fullmatch(server.address):
        raise ConfigError(f"server.address={server.address!r}: must be a host name or an IP address, without a port")
    if server.ip is not None and server.ip.is_unspecified:
        raise ConfigError(f"server.address={server.address!r}: must be an address that the parties can reach")
    if server.port == server.control_port:
        raise ConfigError(f"server.control_port={server.control_port}: must differ from server.port")
    return server


def _party(content: Any, where: str) -> Party:
    values = _mapping(content, where, ("name", "role", "data"), ("gpus",))
    name = _matching(values["name"], f"{where}.name", PARTY_NAME)
    if name in RESERVED:
        raise ConfigError(f"{where}.name={name!r}: is reserved; choose another")
    if values["role"] not in ROLES:
        raise ConfigError(f"{where}.role={values['role']!r}: must be one of {', '.join(ROLES)}")
    data = _text(values["data"], f"{where}.data")
    if not PurePosixPath(data).is_absolute() or UNSAFE_IN_PATH.search(data):
        raise ConfigError(f"{where}.data={data!r}: must be an absolute path without quotes or backslashes")
    return Party(name, values["role"], data, _gpus(values.get("gpus"), f"{where}.gpus"))


def _gpus(value: Any, where: str) -> tuple[int, ...]:
    if value in (None, "none"):
        return ()
    numbers = value if isinstance(value, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(set(numbers)) != len(numbers):
        raise ConfigError(f"{where}={value!r}: must be none or a list of different GPU numbers such as [0, 1]")
    return tuple(numbers)


def _unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"parties: two are named {name!r}; names must be unique")
        seen.add(name)


def _mapping(content: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] | None) -> dict[str, Any]:
    """Return a mapping with the required keys and no others than the optional; None allows any."""
    if not isinstance(content, Mapping):
        raise ConfigError(f"{where}: must be a mapping with {', '.join(required) or 'keys'}")
    missing = [key for key in required if content.get(key) is None]
    unknown = [] if optional is None else sorted(str(key) for key in set(content) - {*required, *optional})
    if missing or unknown:
        complaints = [f"{' and '.join(missing)} missing"] * bool(missing)
        complaints += [f"no such key: {', '.join(unknown)}"] * bool(unknown)
        raise ConfigError(f"{where}: {'; '.join(complaints)}")
    return {str(key): value for key, value in content.items()}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}={value!r}: must be text (quote it if YAML takes it for something else)")
    return value


def _matching(value: Any, where: str, pattern: re.Pattern[str]) -> str:
    text = _text(value, where)
    if not pattern.fullmatch(text):
        raise ConfigError(f"{where}={text!r}: must match {pattern.pattern}")
    return text


def _port(value: Any, where: str) -> int:
    if type(value) is not int or not 1 <= value <= 65535:
        raise ConfigError(f"{where}={value!r}: must be a port from 1 to 65535")
    return value
