# SPDX-License-Identifier: Apache-2.0
"""The server's state on disk, written while the next round trains."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedface_flwr.federation.run_state import save_state

if TYPE_CHECKING:
    from strategies.round_loop import RoundLoop


class Checkpoints(Protocol):
    """Where a loop's state goes after each round."""

    def save(self, loop: RoundLoop) -> None:
        """Begin to write the state; the loop's arrays must not change until :meth:`settle` returns."""

    def settle(self) -> None:
        """Wait until what was begun is on the disk."""

    def oldest_round(self, trainer: str, last: int) -> int:
        """Return the earliest round of a trainer that the run may come back to; ``last`` is the latest."""
        ...


class NoCheckpoints:
    """For a run that is not to be resumed."""

    def save(self, loop: RoundLoop) -> None:
        """Write nothing."""

    def settle(self) -> None:
        """Wait for nothing."""

    def oldest_round(self, trainer: str, last: int) -> int:
        """Return the latest round: the run never goes back."""
        return last


class FileCheckpoints:
    """One file, replaced after each round by a thread of its own.

    Parameters
    ----------
    path : Path
        The file.
    extra : callable
        Returns what else is to be kept with the loop's values, as it is at the end of the round.
    """

    def __init__(self, path: Path, extra: Callable[[], dict[str, Any]]) -> None:
        self._path, self._extra = path, extra
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._rounds: dict[str, int] = {}
        self._written: dict[str, int] = {}

    def save(self, loop: RoundLoop) -> None:
        """Begin to write the state of a loop between two rounds."""
        self.settle()
        values = {**loop.saved_values(), **self._extra()}
        self._rounds = values["last_round"]
        self._writing = self._pool.submit(save_state, self._path, loop.saved_arrays(), values)

    def settle(self) -> None:
        """Wait for the disk.

        Raises
        ------
        StateError
            If it did not take the state; the one before is intact.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
            self._written = self._rounds

    def oldest_round(self, trainer: str, last: int) -> int:
        """Return the trainer's round in the state that is surely on the disk."""
        return self._written.get(trainer, 0)
