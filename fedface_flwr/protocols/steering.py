# SPDX-License-Identifier: Apache-2.0
"""Which benchmarks are no independent test of a model, since their packs steered its averaging weights."""

from __future__ import annotations

import filecmp
from collections.abc import Sequence
from pathlib import Path

from fedface_flwr.config import Config
from fedface_flwr.evaluation.figures import NOTE_SEPARATOR
from fedface_flwr.evaluation.stored import run_config
from fedface_flwr.protocols.protocol import Benchmark

_SEEN = {"first": "folds 1 to 5 of 10", "second": "folds 6 to 10 of 10"}


def steered(run: Path, benchmarks: Sequence[Benchmark]) -> dict[str, str]:
    """Tell which benchmarks have packs whose owners validated in a run, and which half of the folds they could see.

    Packs are compared by content where the run's own are still where its configuration says, else by name: a deployed
    run knows no more of them.

    Parameters
    ----------
    run : Path
        The folder of the run, or of the half of it, that left the model.
    benchmarks : sequence of Benchmark
        What it is to be evaluated on.

    Returns
    -------
    dict of str to str
        A note for each benchmark that has one.

    Raises
    ------
    DataError
        If the run's configuration cannot be read.
    """
    config = run_config(run)
    drawn = config.data.kind == "synthetic" and not _deployed(config)
    if drawn or not config.strategy.federated_validation:
        return {}
    notes = {}
    for benchmark in benchmarks:
        if said := [note for pack in benchmark.packs if (note := _note(pack, config))]:
            notes[benchmark.name] = NOTE_SEPARATOR.join(said)
    return notes


def _note(pack: Path, config: Config) -> str:
    seen = _SEEN.get(config.data.fold_half, "half of the folds")
    for party in config.data.scorers:
        own = Path(config.data.root) / config.data.packs[party]
        if not _deployed(config) and own.is_file():
            if _same_content(own, pack):
                return f"{seen} of {pack.name} steered the averaging weights of this model"
        elif party == pack.stem:
            return f"{seen} of validator {party}, by its name this pack, steered the averaging weights of this model"
    return ""


def _deployed(config: Config) -> bool:
    return config.federation.kind == "deploy"


def _same_content(one: Path, other: Path) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False
