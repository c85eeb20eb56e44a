# SPDX-License-Identifier: Apache-2.0
"""What a node was started with: for whom it acts, and where that party keeps its things."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.policy import SiloPolicy
from fedface_flwr.config import Config
from fedface_flwr.errors import ConfigError, ProtocolError

POLICY = "policy.toml"


@dataclass(frozen=True)
class Node:
    """One party on one node.

    Parameters
    ----------
    party : str
        Its name in the run's configuration.
    role : str
        ``trainer`` or ``validator``.
    silo_dir : Path
        The party's private folder, absolute.
    data : str
        Path of the party's own set or pack; empty where the run's configuration says where it lies.
    service : bool
        Whether a long-lived process of the silo answers, instead of the process that gets the message.
    cache : Path or None
        Where decoded images may be kept; None: in the private folder.
    policy : SiloPolicy or None
        What the party lets itself be asked; None in a simulation, where server and silos have one owner.
    policy_file : Path or None
        Where the policy was read, if there is one.
    """

    party: str
    role: str
    silo_dir: Path
    data: str = ""
    service: bool = False
    cache: Path | None = None
    policy: SiloPolicy | None = None
    policy_file: Path | None = None

    @property
    def cache_dir(self) -> Path:
        """Where decoded images may be kept."""
        return self.cache or self.silo_dir / "cache"

    def private_dir(self, config: Config) -> Path:
        """Return the party's folder of one run."""
        return self.silo_dir / config.run.token


def deployed(node: Mapping[str, Any]) -> Node | None:
    """Return the party that a SuperNode was started for by its node configuration, or None in a simulation.

    Raises
    ------
    ConfigError
        If the node configuration lacks a key or has a wrong one.
    """
    if "party" not in node:
        return None
    party, role, folder = (str(node.get(key, "")) for key in ("party", "role", "silo-dir"))
    if role not in ("trainer", "validator"):
        raise ConfigError(f"node configuration: role={role!r}: must be trainer or validator")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", party):
        raise ConfigError(f"node configuration: party={party!r}: must be a name of letters, digits, '_', '-' and '.'")
    if not Path(folder).is_absolute():
        raise ConfigError(f"node configuration: silo-dir={folder!r}: must be an absolute path")
    policy_file = Path(str(node.get("policy", Path(folder, POLICY))))
    if ("policy" in node or policy_file.is_symlink()) and not policy_file.exists():
        raise ConfigError(f"{policy_file}: no such file; a party's policy must not be lost, put it back")
    return Node(
        party=party,
        role=role,
        silo_dir=Path(folder),
        data=str(node.get("data", "")),
        service=bool(node.get("service", True)),
        policy=SiloPolicy.load(policy_file),
        policy_file=policy_file if policy_file.exists() else None,
    )


def simulated(node: Mapping[str, Any], config: Config) -> dict[str, Node]:
    """Return the parties of a simulation's node by name.

    A simulation may have fewer nodes than the federation has parties, Flower's default being two: they are dealt out.
    """
    folder = Path(config.run.dir).absolute()
    names = config.parties[int(node["partition-id"]) :: int(node["num-partitions"])]
    cache = Path(config.data.cache or folder / "cache")
    return {name: Node(name, config.roles[name], folder / "silos" / name, cache=cache) for name in names}


def parties_of(node: Mapping[str, Any], config: Config) -> dict[str, Node]:
    """Return the parties that a node acts for, by name; errors as :func:`deployed`."""
    own = deployed(node)
    return simulated(node, config) if own is None else {own.party: own}


def check_agreed(node: Node, config: Config) -> None:
    """Find out whether a party may take part in a run of this configuration.

    Raises
    ------
    ProtocolError
        If the run has another role for it, or asks for more than its policy allows.
    """
    if node.party not in config.parties:
        raise ProtocolError(f"{node.party} is no party of this run, which has {', '.join(config.parties)}")
    if node.role != config.roles[node.party]:
        raise ProtocolError(f"{node.party} is a {node.role}, the run wants it as {config.roles[node.party]}")
    policy = node.policy
    if policy is None:
        return
    bounds: list[tuple[str, float, float]] = [("training.rounds", config.training.rounds, policy.max_rounds)]
    if node.role == "trainer":
        bounds.append(("optimizer.rate", config.optimizer.rate, policy.max_rate))
        images = config.training.batch_size * config.training.steps_per_round
        if images < policy.min_images:
            raise ProtocolError(
                f"a round over {images} images: {node.party} gives no figures over fewer than {policy.min_images}"
            )
    else:
        bounds.append(("fv.candidates", config.fv.candidates, policy.max_candidates))
        if 0 < config.fv.pairs < policy.min_pairs:
            raise ProtocolError(
                f"fv.pairs={config.fv.pairs}: {node.party} gives no score over fewer than {policy.min_pairs} pairs"
            )
    for key, value, limit in bounds:
        if value > limit:
            raise ProtocolError(f"{key}={value}: above the {limit} that {node.party} has agreed to")
