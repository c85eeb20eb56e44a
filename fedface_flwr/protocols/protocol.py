# SPDX-License-Identifier: Apache-2.0
"""What every benchmark of a suite is to the command that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fedface_flwr.evaluation.figures import Outcome
from fedface_flwr.evaluation.pictures import Embedder


class Benchmark(Protocol):
    """One entry of a suite, its files found and its options checked.

    Attributes
    ----------
    name : str
        As the suite names it.
    feature_files : str
        Names of the feature files that it takes; empty where it embeds pictures, which needs a model.
    packs : tuple of Path
        The verification packs that it takes, if any.
    """

    name: str
    feature_files: str
    packs: tuple[Path, ...]

    def run(self, embed: Embedder | None) -> Outcome:
        """Embed what is needed and measure; ``embed`` is None where the benchmark brings feature files.

        Raises
        ------
        DataError
            If a file is damaged or the protocol cannot be run on it, naming file and record.
        """
        ...
