# SPDX-License-Identifier: Apache-2.0
"""The run's configuration: validated once, at the door, into frozen dataclasses.

Hydra composes ``conf/``; :func:`from_container` turns the result into :class:`Config`. Nothing behind the door sees a
raw configuration, and everything behind it may rely on what is checked here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from fedface_flwr.errors import ConfigError
from fedface_flwr.typed import build, require


@dataclass(frozen=True)
class ModelConfig:
    """The backbone: IR-18, IR-34 or IR-50."""

    depth: Literal[18, 34, 50]
    width: int
    input_size: int
    embedding: int
    dropout: float

    def __post_init__(self) -> None:
        require(self.width >= 1, "model.width", self.width, "the first stage needs at least one channel")
        require(self.input_size >= 16, "model.input_size", self.input_size, "must be at least 16")
        require(self.embedding >= 1, "model.embedding", self.embedding, "must be at least 1")
        require(0 <= self.dropout < 1, "model.dropout", self.dropout, "must be in [0, 1)")


@dataclass(frozen=True)
class HeadConfig:
    """The private margin classifier of a silo."""

    kind: Literal["arcface", "cosface"]
    scale: float
    margin: float

    def __post_init__(self) -> None:
        require(self.scale > 0, "head.scale", self.scale, "must be positive")
        require(0 <= self.margin < math.pi, "head.margin", self.margin, "must be in [0, pi)")


@dataclass(frozen=True)
class OptimizerConfig:
    """Rate, its drops, and what SGD adds to the gradient.

    ``milestones`` are fractions of the run at whose round the rate is multiplied by ``factor``.
    """

    rate: float
    milestones: tuple[float, ...]
    factor: float
    momentum: float
    weight_decay: float

    def __post_init__(self) -> None:
        require(self.rate > 0, "optimizer.rate", self.rate, "must be positive")
        rising = all(a < b for a, b in pairwise((0.0, *self.milestones, 1.0)))
        require(rising, "optimizer.milestones", list(self.milestones), "must rise strictly within (0, 1)")
        require(0 < self.factor <= 1, "optimizer.factor", self.factor, "must be in (0, 1]")
        require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "must be in [0, 1)")
        require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "must not be negative")


@dataclass(frozen=True)
class TrainingConfig:
    """Length of the run and of a round, batch, and precision of the backbone (the head is always float32)."""

    rounds: int
    steps_per_round: int
    batch_size: int
    flip: float
    precision: Literal["float32", "bfloat16", "float16"]
    loss_smoothing: float

    def __post_init__(self) -> None:
        require(self.rounds >= 1, "training.rounds", self.rounds, "must be at least 1")
        require(self.steps_per_round >= 1, "training.steps_per_round", self.steps_per_round, "must be at least 1")
        require(self.batch_size >= 2, "training.batch_size", self.batch_size, "BatchNorm needs at least 2 images")
        require(0 <= self.flip <= 1, "training.flip", self.flip, "is a probability")
        require(0 <= self.loss_smoothing < 1, "training.loss_smoothing", self.loss_smoothing, "must be in [0, 1)")


@dataclass(frozen=True)
class SyntheticConfig:
    """Size of the synthetic sets."""

    identities: int
    images_per_identity: int
    pairs: int
    pair_identities: int

    def __post_init__(self) -> None:
        require(self.identities >= 2, "data.synthetic.identities", self.identities, "must be at least 2")
        require(
            self.images_per_identity >= 1,
            "data.synthetic.images_per_identity",
            self.images_per_identity,
            "must be at least 1",
        )
        require(
            self.pairs >= 20 and self.pairs % 20 == 0,
            "data.synthetic.pairs",
            self.pairs,
            "must be a multiple of 20: ten folds, half of each positive",
        )
        require(
            self.pair_identities >= 20,
            "data.synthetic.pair_identities",
            self.pair_identities,
            "must be at least 20: ten folds of at least two identities",
        )


@dataclass(frozen=True)
class DataConfig:
    """Who owns what: silos' training sets, validators' packs, and the packs that only the end sees."""

    kind: Literal["files", "synthetic"]
    root: str
    silos: tuple[str, ...]
    validators: tuple[str, ...]
    tests: tuple[str, ...]
    fold_half: Literal["first", "second", "both"]
    cache: str
    synthetic: SyntheticConfig

    def __post_init__(self) -> None:
        require(len(self.silos) >= 1, "data.silos", list(self.silos), "at least one silo must train")
        require(bool(self.root) or self.kind != "files", "data.root", self.root, "must be the folder of the data")
        for key, names in (("silos", self.silos), ("validators", self.validators), ("tests", self.tests)):
            own = [Path(n).name if key == "silos" else _stem(n) for n in names]
            require(len(set(own)) == len(names), f"data.{key}", list(names), "names must differ")
            require(all(own), f"data.{key}", list(names), "names must not be empty")
        moved = [n for n in self.validators if self.packs[_stem(n)] != n]
        require(not moved, "data.tests", list(self.tests), f"has the name, but not the file, of validator {moved}")

    @property
    def trainers(self) -> tuple[str, ...]:
        """Names of the training parties, in the order of ``silos``."""
        return tuple(Path(name).name for name in self.silos)

    @property
    def packs(self) -> dict[str, str]:
        """The pack that each evaluating party owns, by the party's name.

        A validator owns both halves of its pack; a pack that only the end sees belongs to a party of its own.
        """
        return {_stem(name): name for name in (*self.validators, *self.tests)}

    @property
    def scorers(self) -> tuple[str, ...]:
        """Names of the parties that score candidates for Federated Validation."""
        return tuple(_stem(name) for name in self.validators)

    @property
    def testers(self) -> tuple[str, ...]:
        """Names of the parties that report at the end, in the order of ``tests``."""
        return tuple(_stem(name) for name in self.tests)


def _stem(name: str) -> str:
    return Path(name).stem if name.endswith(".bin") else Path(name).name


@dataclass(frozen=True)
class StrategyConfig:
    """The method, and what the paper leaves open about it.

    Parameters
    ----------
    name : str
        One of the six methods.
    keep_momentum : bool
        Whether a party's own classical momentum of the backbone outlives the round. PFM has none.
    branch_weights : tuple of float
        Weight of each set's loss in the pooled backbone's gradient, in the order of ``data.silos``; empty: 1/n each.
    weights : str
        First averaging weights: ``uniform`` or by number of ``samples``.
    """

    name: Literal["central", "solo", "fedavg", "fedavg_fv", "pfm", "fedface"]
    keep_momentum: bool
    branch_weights: tuple[float, ...]
    weights: Literal["uniform", "samples"]

    def __post_init__(self) -> None:
        require(
            not (self.keep_momentum and self.server_momentum),
            "strategy.keep_momentum",
            self.keep_momentum,
            f"{self.name} has one momentum, the server's",
        )

    @property
    def pooled(self) -> bool:
        """Whether all sets lie with one party that trains one head a set."""
        return self.name == "central"

    @property
    def federated_validation(self) -> bool:
        """Whether validators move the averaging weights."""
        return self.name in ("fedavg_fv", "fedface")

    @property
    def server_momentum(self) -> bool:
        """Whether silos apply the server's momentum in their steps."""
        return self.name in ("pfm", "fedface")

    @property
    def shares_model(self) -> bool:
        """Whether several parties train one global model, of which differences can travel."""
        return self.name not in ("central", "solo")


@dataclass(frozen=True)
class FvConfig:
    """Federated Validation (section 3.3): candidates, norm, step, and how much a validator computes."""

    mode: Literal["async", "sync"]
    every: int
    candidates: int
    phi: float
    norm: Literal["local", "moving", "none"]
    epsilon: float
    gamma: float
    pairs: int
    flip: bool

    def __post_init__(self) -> None:
        require(self.every >= 1, "fv.every", self.every, "must be at least 1")
        require(self.candidates >= 1, "fv.candidates", self.candidates, "must be at least 1")
        require(0 <= self.phi <= 1, "fv.phi", self.phi, "must be in [0, 1]")
        require(self.epsilon > 0, "fv.epsilon", self.epsilon, "must be positive")
        require(0 <= self.gamma <= 1, "fv.gamma", self.gamma, "must be in [0, 1]")
        enough = self.pairs == 0 or self.pairs >= 10
        require(enough, "fv.pairs", self.pairs, "must be 0, for all pairs, or at least 10: two from each of five folds")


@dataclass(frozen=True)
class WireConfig:
    """Whether whole models travel or differences of them, and in which type differences do."""

    differences: bool
    dtype: Literal["float32", "bfloat16", "float16"]

    def __post_init__(self) -> None:
        require(
            self.differences or self.dtype == "float32",
            "wire.dtype",
            self.dtype,
            "weights are never rounded; set wire.differences=true as well",
        )


LONGEST_WAIT = 1e8
"""Seconds, some three years: above what anybody waits, and below what a clock of threads takes."""


@dataclass(frozen=True)
class FederationConfig:
    """Simulated or deployed, how many processes a simulation has, where they compute, and what the server waits for."""

    kind: Literal["simulation", "deploy"]
    superlink: str
    actors: int
    threads: int
    gpus: float
    device: str
    start_timeout: float
    round_timeout: float
    min_trainers: int
    max_update_ratio: float
    depth: int
    poll: float
    lanes: int

    def __post_init__(self) -> None:
        named = bool(self.superlink) == (self.kind == "deploy")
        require(named, "superlink", self.superlink, "names the SuperLink of federation=deploy, and only of that")
        require(self.actors >= 0, "federation.actors", self.actors, "must not be negative; 0 is one a party")
        require(self.threads >= 1, "federation.threads", self.threads, "must be at least 1")
        require(self.gpus >= 0, "federation.gpus", self.gpus, "must not be negative")
        for name, seconds in (("start_timeout", self.start_timeout), ("round_timeout", self.round_timeout)):
            require(
                0 < seconds <= LONGEST_WAIT,
                f"federation.{name}",
                seconds,
                f"must be positive, {LONGEST_WAIT:g} at most",
            )
        require(self.min_trainers >= 0, "federation.min_trainers", self.min_trainers, "must not be negative")
        ratio = self.max_update_ratio
        require(ratio == 0 or ratio > 1, "federation.max_update_ratio", ratio, "must be above 1, or 0 for no limit")
        require(self.depth >= 1, "federation.depth", self.depth, "must be at least 1")
        require(self.poll > 0, "federation.poll", self.poll, "must be positive")
        require(self.lanes >= 1, "federation.lanes", self.lanes, "must be at least 1")


@dataclass(frozen=True)
class RunConfig:
    """What tells this run from others.

    Parameters
    ----------
    dir : str
        The run's folder on the server.
    launched : float
        When it was launched, in seconds since the epoch, for the account of time.
    token : str
        Names the run on the silos, where it is a folder; it outlives Flower's run, which a resumed one has anew.
    resume : bool
        Whether to go on from the folder's checkpoint.
    """

    dir: str
    launched: float
    token: str
    resume: bool

    def __post_init__(self) -> None:
        # It becomes a path on machines that do not trust the sender.
        ok = re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", self.token)
        require(bool(ok), "run.token", self.token, "must be up to 64 lower-case letters, digits and hyphens")


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    seed: int
    strategy: StrategyConfig
    model: ModelConfig
    head: HeadConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    data: DataConfig
    fv: FvConfig
    wire: WireConfig
    federation: FederationConfig
    run: RunConfig

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**32, "seed", self.seed, "must be in [0, 2**32)")
        silos = len(self.data.silos)
        branches = self.strategy.branch_weights
        require(
            len(branches) in (0, silos) and all(w > 0 for w in branches),
            "strategy.branch_weights",
            list(branches),
            f"must be empty or hold one positive weight for each of the {silos} silos",
        )
        require(
            bool(self.data.validators) or not self.strategy.federated_validation,
            "data.validators",
            list(self.data.validators),
            f"strategy {self.strategy.name} needs at least one validator",
        )
        require(
            self.federation.min_trainers <= len(self.trainers),
            "federation.min_trainers",
            self.federation.min_trainers,
            f"only {len(self.trainers)} take part",
        )
        require("global" not in self.trainers, "data.silos", list(self.data.silos), "`global` is the server's model")
        clash = set(self.trainers) & set(self.data.packs)
        require(not clash, "data.silos", sorted(clash), "a party cannot be trainer and validator at once")

    @property
    def trainers(self) -> tuple[str, ...]:
        """Names of the parties that train, sorted: one a silo, or a single pooled one.

        Everything that is summed over silos is summed in this order.
        """
        return ("central",) if self.strategy.pooled else tuple(sorted(self.data.trainers))

    def sets_of(self, trainer: str) -> tuple[str, ...]:
        """Names of the training sets that a trainer owns: its own, or all where they are pooled."""
        return self.data.trainers if self.strategy.pooled else (trainer,)

    @property
    def sends_differences(self) -> bool:
        """Whether parties and server send each other differences; methods without one global model cannot."""
        return self.wire.differences and self.strategy.shares_model

    @property
    def roles(self) -> dict[str, str]:
        """What each party does, by its name: ``trainer`` or ``validator``."""
        return dict.fromkeys(self.trainers, "trainer") | dict.fromkeys(self.data.packs, "validator")

    @property
    def parties(self) -> tuple[str, ...]:
        """Names of all parties: trainers, then evaluators."""
        return (*self.trainers, *self.data.packs)

    def digest(self) -> str:
        """Return a digest of all that a result depends on: not of where data and run lie, nor of how parties meet."""
        fields = dataclasses.asdict(self)
        fields["data"] |= {"root": "", "cache": ""}
        kept = {name: value for name, value in fields.items() if name not in ("run", "federation")}
        return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()

    def to_json(self) -> str:
        """Return the configuration as one JSON string, which :func:`from_json` reads back."""
        return json.dumps(dataclasses.asdict(self))


def from_container(value: Mapping[str, Any]) -> Config:
    """Validate a composed configuration.

    Parameters
    ----------
    value : mapping
        Plain dictionaries, lists and scalars, with every key of :class:`Config`.

    Raises
    ------
    ConfigError
        Naming the first key that is unknown, missing, of the wrong type or out of range.
    """
    return build(Config, value)


def from_json(text: str) -> Config:
    """Read what :meth:`Config.to_json` wrote; errors as :func:`from_container`."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the run's configuration is not JSON ({error}); start runs with `fedface`") from error
    return from_container(value)
