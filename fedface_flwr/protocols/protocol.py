# SPDX-License-Identifier: Apache-2.0
"""What every benchmark of a suite is to the command that runs it."""

from __future__ import annotations

from typing import Protocol

from fedface_flwr.evaluation.figures import Outcome
from fedface_flwr.evaluation.pictures import Embedder


class Benchmark(Protocol):
    """One entry of a suite, its files found and its options checked.

    Attributes
    ----------
    name : str
        As the suite names it.
    """

    name: str

    def run(self, embed: Embedder | None) -> Outcome:
        """Embed what is needed and measure; ``embed`` is None where the suite brings feature files and no model.

        Raises
        ------
        DataError
            If a file is damaged or the protocol cannot be run on it, naming file and record.
        """
        ...
