# SPDX-License-Identifier: Apache-2.0
"""Which images make each training batch, as a pure function of the step number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError


class EpochSampler:
    """Batches cut from the endless row of each epoch's permutation, one after another.

    Batches run on across the border of two epochs: every batch is full, no image is dropped, and every
    image comes once an epoch. The only state to save is the step number.

    Parameters
    ----------
    num_images : int
        Size of the set, at least 1; it may be smaller than a batch.
    batch_size : int
        Images a batch, at least 1.
    seed : int
        Non-negative; with the epoch's number it decides that epoch's permutation.

    Raises
    ------
    ConfigError
        If a number is out of its range.
    """

    def __init__(self, num_images: int, batch_size: int, seed: int) -> None:
        if num_images < 1 or batch_size < 1 or seed < 0:
            raise ConfigError(
                f"sampler: needs images >= 1, batch size >= 1 and seed >= 0, not {num_images}, {batch_size} and {seed}"
            )
        self.num_images = num_images
        self.batch_size = batch_size
        self.seed = seed
        self._permutations: dict[int, npt.NDArray[np.int64]] = {}

    def batch(self, step: int) -> npt.NDArray[np.int64]:
        """Return the image indices of batch ``step`` (0 is the first), shape (batch_size,)."""
        if step < 0:
            raise ConfigError(f"sampler: step {step} is negative; steps count from 0")
        start = step * self.batch_size
        stop = start + self.batch_size
        epochs = range(start // self.num_images, (stop - 1) // self.num_images + 1)
        known = self._permutations
        self._permutations = {e: known[e] if e in known else self._permutation(e) for e in epochs}
        row = np.concatenate([self._permutations[e] for e in epochs]) if len(epochs) > 1 else None
        first = start - epochs.start * self.num_images
        source = self._permutations[epochs.start] if row is None else row
        return source[first : first + self.batch_size].copy()

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_images)
