# SPDX-License-Identifier: Apache-2.0
"""Which benchmarks are no independent test of a model, since their packs steered its averaging weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedface_flwr.config import Config
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.figures import NOTE_SEPARATOR, Figure
from fedface_flwr.evaluation.stored import run_config
from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.run_folder import RunFolder

Packs = Mapping[str, str]
"""SHA-256 of verification packs by the names of their files; empty where only the name is known."""

_SEEN = {"first": "folds 1 to 5 of 10", "second": "folds 6 to 10 of 10"}
_STEERED = "steered the averaging weights of this model"


def known_packs(paths: Sequence[Path]) -> dict[str, str]:
    """Return packs as their content tells them apart; OSError if one cannot be read."""
    return {path.name: _sha256(path) for path in paths}


def steered(run: Path, packs: Mapping[str, Packs]) -> dict[str, str]:
    """Tell which benchmarks have packs whose owners steered a run's model, and which half of the folds they could see.

    Packs are compared by content where both are known: the run's own if they are still where its configuration says,
    which that of a deployed run does not. Else they are compared by name.

    Parameters
    ----------
    run : Path
        The folder of the run, or of the half of it, that left the model.
    packs : mapping of str to Packs
        What the model is evaluated on, by benchmark.

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
    if drawn or not _moved(run, config):
        return {}
    own = {party: _own_digest(party, config) for party in config.data.scorers}
    seen = _SEEN.get(config.data.fold_half, "half of the folds")
    notes = {}
    for benchmark, known in packs.items():
        if said := [note for name, digest in known.items() if (note := _note(name, digest, own, seen))]:
            notes[benchmark] = NOTE_SEPARATOR.join(said)
    return notes


def noted(figure: Figure, notes: Mapping[str, str]) -> Figure:
    """Return a figure with the note of its benchmark, unless it says as much already."""
    note = notes.get(figure.benchmark, "")
    if not note or _STEERED in figure.note:
        return figure
    return replace(figure, note=NOTE_SEPARATOR.join(filter(None, (figure.note, note))))


def _moved(run: Path, config: Config) -> bool:
    """Whether a validation round moved weights that a later average took."""
    if not config.strategy.federated_validation or len(config.trainers) < 2:
        return False
    try:
        events = read_metrics(RunFolder(run).metrics)
    except DataError:
        # A warning too many does less harm than one that is missing.
        return True
    validations = [event for event in events if event["event"] == "validation"]
    # One between rounds, beside no training round, that follows the last round comes too late for any average.
    return any(event.get("training_round") or event.get("round") != config.training.rounds for event in validations)


def _note(name: str, digest: str, own: Packs, seen: str) -> str:
    for party, held in own.items():
        if digest and held:
            if digest == held:
                return f"{seen} of {name} {_STEERED}"
        elif party == Path(name).stem:
            return f"{seen} of validator {party}, by its name this pack, {_STEERED}"
    return ""


def _own_digest(party: str, config: Config) -> str:
    path = Path(config.data.root) / config.data.packs[party]
    try:
        return "" if _deployed(config) else _sha256(path)
    except OSError:
        return ""


def _deployed(config: Config) -> bool:
    return config.federation.kind == "deploy"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
