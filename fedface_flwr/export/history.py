# SPDX-License-Identifier: Apache-2.0
"""What a run's folder tells of how its model came to be, without any path of the machine that it ran on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from fedface_flwr.config import Config
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.stored import run_config
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import Summary, read_summary

_GROUPS = ("strategy", "head", "optimizer", "training")


@dataclass(frozen=True)
class History:
    """A run in what a stranger may know of it.

    Attributes
    ----------
    config : Config
        Its configuration; names paths, so nothing of it is shown as a whole.
    summary : Summary
        Its figures.
    """

    config: Config
    summary: Summary

    @classmethod
    def read(cls, folder: Path) -> History:
        """Read a finished run's folder.

        Raises
        ------
        DataError
            If the summary is missing or damaged, or the configuration cannot be read.
        """
        try:
            config = run_config(folder)
        except DataError as error:
            raise DataError(
                f"{error}; a copy of the checkpoint in another folder is exported without its history"
            ) from error
        return cls(config, read_summary(RunFolder(folder).summary))

    def trainers(self, silo: str) -> tuple[str, ...]:
        """Names of those that trained a model: a silo's own, or, where it is empty, the one of all."""
        return (silo,) if silo else self.config.trainers

    def parties(self, silo: str) -> dict[str, tuple[str, ...]]:
        """Names of whose data a model was trained, validated and tested on; ``silo`` as in :meth:`trainers`."""
        data = self.config.data
        trained = self.config.sets_of(silo) if silo else data.trainers
        validators = data.scorers if self.config.strategy.federated_validation else ()
        return {"trained on": trained, "validated on": validators, "tested on": data.testers}

    @property
    def hyper_parameters(self) -> dict[str, str]:
        """Every option of method, head, optimiser and training, by its key."""
        groups = [*_GROUPS, *(["fv"] if self.config.strategy.federated_validation else [])]
        found = {}
        for group in groups:
            for key, value in dataclasses.asdict(getattr(self.config, group)).items():
                shown = list(value) if isinstance(value, tuple) else value
                found[f"{group}.{key}"] = str(shown)
        differences = f", differences in {self.config.wire.dtype}" if self.config.sends_differences else ""
        return found | {"model.dropout": str(self.config.model.dropout), "wire": f"float32 weights{differences}"}
