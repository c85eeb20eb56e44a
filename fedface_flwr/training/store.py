# SPDX-License-Identifier: Apache-2.0
"""What a silo keeps between rounds, on its own disk: the head, its momentum, the smoothed loss; the global model.

A round reads the state after the trainer's round before and writes its own under its own number, so that a round which
is repeated starts from the same state and writes the same bits. All are kept that the server may come back to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from fedface_flwr.errors import StateError
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.federation.run_state import UNREADABLE, digest_of
from fedface_flwr.files import replacing

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class SiloStore:
    """The folder in which one silo keeps the state of one run.

    Parameters
    ----------
    folder : Path
        Created when first written to.
    """

    folder: Path

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}.safetensors"

    def load(self, number: int) -> Arrays:
        """Return the state after round ``number``.

        Raises
        ------
        StateError
            If that round's state is not there or damaged.
        """
        path = self._path(number)
        try:
            return dict(load_file(path))
        except FileNotFoundError as error:
            kept = ", ".join(str(n) for n in self.rounds()) or "none"
            raise StateError(
                f"{self.folder}: no state of round {number} (kept: {kept}); the silo cannot go on from there, "
                "resume the run at a kept round or start a new one"
            ) from error
        except UNREADABLE as error:
            raise StateError(f"{path}: cannot be read ({error}); remove it and resume at an earlier round") from error

    def save(self, number: int, state: Mapping[str, npt.NDArray[np.generic]], oldest: int) -> None:
        """Write the state after round ``number``, then drop what is older than round ``oldest``.

        Raises
        ------
        StateError
            If the disk does not take it; what was there stays.
        """
        path = self._path(number)
        try:
            with replacing(path) as temporary:
                save_file(dict(state), temporary)
        except (SafetensorError, OSError) as error:
            raise StateError(f"{path}: cannot be written ({error}); free some space and run the round again") from error
        for old in self.rounds():
            if old < oldest:
                self._path(old).unlink(missing_ok=True)

    def save_global(self, version: str, model: ModelState) -> None:
        """Write the global model that the silo holds, in the place of the one before; errors as :meth:`save`."""
        try:
            # Not worth waiting for the disk: a damaged one has another digest, and is sent anew.
            with replacing(self._global, durable=False) as temporary:
                arrays: Arrays = {"values": model.values, "counters": model.counters}
                save_file(arrays, temporary, {"version": version, "digest": digest_of(arrays)})
        except (SafetensorError, OSError) as error:
            raise StateError(f"{self._global}: cannot be written ({error}); free some space") from error

    def load_global(self, version: str) -> ModelState | None:
        """Return the global model of that version, or None if the silo holds another, or none that can be read."""
        try:
            with safe_open(self._global, framework="numpy") as file:
                about = file.metadata() or {}
                if about.get("version") != version:
                    return None
                arrays = {name: file.get_tensor(name) for name in ("values", "counters")}
                if about.get("digest") != digest_of(arrays):
                    return None
                return ModelState(arrays["values"], arrays["counters"])
        except UNREADABLE:
            # The server sends the whole model to a silo that does not hold it.
            return None

    @property
    def _global(self) -> Path:
        return self.folder / "global.safetensors"

    def rounds(self) -> list[int]:
        """Numbers of the rounds whose state is kept, ascending."""
        names = (re.fullmatch(r"round-(\d+)\.safetensors", p.name) for p in self.folder.glob("round-*"))
        return sorted(int(m[1]) for m in names if m)
