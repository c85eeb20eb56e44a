# SPDX-License-Identifier: Apache-2.0
"""Pairs of a verification pack, ``lfw.bin`` and its kin."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedface_flwr.data.images import decode
from fedface_flwr.data.packs import EncodedPack
from fedface_flwr.data.sets import Images
from fedface_flwr.protocols.pairs_set import CONSECUTIVE, Pairs, consecutive


class PackPictures:
    """Pictures of a pack; a :class:`~fedface_flwr.evaluation.pictures.Pictures`."""

    def __init__(self, pack: EncodedPack) -> None:
        self._pack = pack

    def __len__(self) -> int:
        return len(self._pack.images)

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``, encoded, and the text that names it."""
        return self._pack.read(index)

    def recipe(self, index: int) -> bytes:
        """Return nothing: the encoded bytes alone decide the pixels."""
        return b""

    def pixels(self, data: bytes, index: int, size: int, where: str) -> Images:
        """Return uint8 RGB of shape (3, size, size); DataError if the picture is damaged or not square."""
        return decode(data, size, where)


def read_pack_pairs(path: Path, folds: int) -> Pairs:
    """Read a pack: pictures 2i and 2i + 1 are pair i, folds are consecutive.

    Raises
    ------
    DataError
        If the file is damaged or no pack, its pairs are all of one kind, or fewer than folds.
    """
    pack = EncodedPack.open(path)
    same = pack.labels[::2].astype(np.bool_)
    left = np.arange(0, len(pack.images), 2, dtype=np.int64)
    return Pairs(PackPictures(pack), left, left + 1, same, consecutive(path, len(same), folds), CONSECUTIVE)
