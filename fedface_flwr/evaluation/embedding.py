# SPDX-License-Identifier: Apache-2.0
"""Embeddings of face images, and the score of a backbone on verification pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedface_flwr.data.images import flip as mirror
from fedface_flwr.data.images import normalise
from fedface_flwr.data.sets import Images, PairSet
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.verification import FOLDS, Verification, fold_slices, pair_distances, verify


@contextmanager
def _evaluating(backbone: nn.Module) -> Iterator[None]:
    """Switch to eval mode, and give each module back its own mode, which need not be its parent's."""
    modes = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def embed(
    backbone: nn.Module,
    images: Images,
    *,
    batch_size: int = 256,
    flip: bool = True,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> npt.NDArray[np.float32]:
    """Embed images with a backbone that is already on ``device``; its mode is restored afterwards.

    Parameters
    ----------
    backbone : nn.Module
        Maps float32 images of shape (n, 3, size, size) to embeddings of shape (n, dim).
    images : ndarray of uint8, shape (n, 3, size, size)
        At least one RGB image.
    batch_size : int
        Images in one forward pass.
    flip : bool
        Add the embedding of the mirrored image, as the field does in verification.
    device : torch.device
        Where to compute.
    precision : torch.dtype
        float32, or a lower precision for autocast; the sum of both embeddings is in float32.

    Returns
    -------
    ndarray of float32, shape (n, dim)
        Embeddings, not normalised.
    """

    def forward(batch: Tensor) -> Tensor:
        embedded: Tensor = backbone(batch)
        return embedded.float()

    parts = []
    autocast = torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32)
    with _evaluating(backbone), torch.inference_mode(), autocast:
        for start in range(0, len(images), batch_size):
            # torch.tensor copies: an image array may be read-only, which torch.from_numpy warns of.
            pixels = torch.tensor(images[start : start + batch_size], device=device)
            # Channels last: convolutions of the narrow backbones run 1.1 to 1.5 times as fast on a CPU.
            batch = normalise(pixels.to(memory_format=torch.channels_last))
            parts.append((forward(batch) + forward(mirror(batch)) if flip else forward(batch)).cpu())
    embeddings: npt.NDArray[np.float32] = torch.cat(parts).numpy()
    return embeddings


def score_pairs(
    backbone: nn.Module,
    pairs: PairSet,
    *,
    test_folds: Sequence[int] = range(FOLDS),
    threshold_folds: Sequence[int] = range(FOLDS),
    batch_size: int = 256,
    flip: bool = True,
    device: torch.device,
    precision: torch.dtype = torch.float32,
) -> Verification:
    """Verify a backbone on ten folds of pairs, embedding only those that are tested or choose a threshold.

    Parameters are those of :func:`embed` and :func:`~fedface_flwr.evaluation.verification.verify`.

    Raises
    ------
    DataError, ConfigError
        As ``verify`` and ``pair_distances`` do; a DataError names the pack.
    """
    needed = sorted({*test_folds, *threshold_folds})
    try:
        slices = fold_slices(len(pairs))
        parts = [slices[fold] for fold in needed]
        embeddings = [
            embed(
                backbone,
                pairs.images[2 * part.start : 2 * part.stop],
                batch_size=batch_size,
                flip=flip,
                device=device,
                precision=precision,
            )
            for part in parts
        ]
        # The needed folds joined are a smaller pack whose own folds they are (see fold_slices).
        return verify(
            pair_distances(np.concatenate(embeddings)),
            np.concatenate([pairs.same[part] for part in parts]),
            folds=len(needed),
            test_folds=[needed.index(fold) for fold in test_folds],
            threshold_folds=[needed.index(fold) for fold in threshold_folds],
        )
    except DataError as error:
        raise DataError(f"verification pack {pairs.name}: {error}") from error
