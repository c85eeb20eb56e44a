# SPDX-License-Identifier: Apache-2.0
"""Verification packs (``lfw.bin`` and its kin): a pickle of encoded images and of which pairs match."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.decoding import decode_many
from fedface_flwr.data.pickles import PickledArray, load_pickle
from fedface_flwr.data.sets import PairSet
from fedface_flwr.errors import DataError


def read_pack(path: Path, size: int, *, pairs: npt.NDArray[np.int64] | None = None) -> PairSet:
    """Read a verification pack and decode its images.

    Parameters
    ----------
    path : Path
        The ``.bin`` file: a pickle of (2n encoded images, n labels), the labels true for one person's pair.
    size : int
        Side of the images, in pixels.
    pairs : ndarray of int64, shape (m,), optional
        The pairs wanted, in order; only these are decoded. By default all.

    Returns
    -------
    PairSet
        Named after the file, without its ending.

    Raises
    ------
    DataError
        If the pickle is damaged or is no such pack, an image cannot be decoded, a pair asked for is not
        there, or the pairs are all of one kind, which leaves nothing to verify.
    """
    images, labels = _load(path)
    same = np.array(labels, dtype=np.bool_)
    chosen = np.arange(len(same)) if pairs is None else np.asarray(pairs)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise DataError(f"{path}: pairs must be a row of whole numbers, not {chosen.dtype} {chosen.shape}")
    outside = chosen[(chosen < 0) | (chosen >= len(same))]
    if len(outside):
        raise DataError(f"{path}: pair {outside[0]} was asked for, but it has pairs 0 to {len(same) - 1}")
    same = same[chosen]
    _check_kinds(path, same)
    wanted = (2 * chosen[:, None] + np.arange(2)).ravel()
    pixels = decode_many(lambda index: _encoded(images[index], f"{path}: image {index}"), wanted, size)
    return PairSet(path.stem, pixels, same)


@dataclass
class EncodedPack:
    """A whole pack still encoded, in the form that the cache of decoded pixels takes; labels are its pairs'."""

    name: str
    num_identities: int
    labels: npt.NDArray[np.int64]
    files: tuple[Path, ...]
    images: list[object]

    @classmethod
    def open(cls, path: Path) -> EncodedPack:
        """Read a pack without decoding it; errors as :func:`read_pack`, but for undecodable images."""
        images, labels = _load(path)
        _check_kinds(path, np.array(labels, dtype=np.bool_))
        return cls(path.stem, 2, np.repeat(np.array(labels, dtype=np.int64), 2), (path,), images)

    def read(self, index: int) -> tuple[bytes, str]:
        """Return image ``index``, encoded, and the text that names its file and record."""
        return _encoded(self.images[index], f"{self.files[0]}: image {index}")


def _check_kinds(path: Path, same: npt.NDArray[np.bool_]) -> None:
    if same.all() or not same.any():
        absent = "differing" if same.any() else "matching"
        raise DataError(f"{path}: none of the {len(same)} pairs is a {absent} one, so nothing can be verified")


def _encoded(image: object, where: str) -> tuple[bytes, str]:
    """Return one image's bytes beside the text that names it."""
    match image:
        case bytes():
            return image, where
        # OpenCV before 4.5 encoded to one column.
        case PickledArray((count,) | (count, 1), data) if count == len(data):
            return data, where
        case PickledArray(shape, _):
            raise DataError(f"{where}: an array of shape {shape} is not an encoded image, which is one row")
        case _:
            raise DataError(f"{where}: {type(image).__name__} is not an encoded image (bytes or uint8 array)")


def _load(path: Path) -> tuple[list[object], list[int]]:
    """Return the pack's images, not yet looked at, and its labels."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    match load_pickle(data, str(path)):
        case (list(images), list(labels)):
            pass
        case _:
            raise DataError(f"{path}: not a verification pack, which is (list of images, list of labels)")
    if len(images) % 2:
        raise DataError(f"{path}: {len(images)} images, an odd number, do not make pairs")
    if len(images) != 2 * len(labels):
        raise DataError(f"{path}: {len(labels)} labels need {2 * len(labels)} images, not {len(images)}")
    if not labels:
        raise DataError(f"{path}: the pack holds no pairs")
    for pair, label in enumerate(labels):
        if not isinstance(label, int) or label not in (0, 1):
            raise DataError(f"{path}: the label of pair {pair} is no true or false")
    return images, labels
