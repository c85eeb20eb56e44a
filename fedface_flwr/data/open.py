# SPDX-License-Identifier: Apache-2.0
"""Open a silo's faces, whichever format they are in."""

from __future__ import annotations

from pathlib import Path

from fedface_flwr.data.cache import cached
from fedface_flwr.data.decoding import EncodedSet, StreamedSet
from fedface_flwr.data.folder import FolderSet
from fedface_flwr.data.packs import EncodedPack
from fedface_flwr.data.recordio import INDEX, RECORDS, RecordIOSet
from fedface_flwr.data.sets import ImageSet, PairSet
from fedface_flwr.errors import DataError

_LARGEST_CACHE = 2 << 30  # bytes of decoded pixels


def open_image_set(path: Path, size: int, *, cache_dir: Path | None) -> ImageSet:
    """Open a folder of RecordIO (``train.rec``) or of one folder per identity.

    Parameters
    ----------
    path : Path
        The silo's folder; its name becomes the set's.
    size : int
        Side of the images, in pixels.
    cache_dir : Path or None
        Where decoded pixels may be kept. A set of at most 2 GiB decoded is then decoded whole now; a larger
        one, or any set when None, is decoded as its images are asked for.

    Returns
    -------
    ImageSet
        The labelled images.

    Raises
    ------
    DataError
        If the set is damaged or empty; without the cache, an undecodable image is only found when it is
        asked for.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such folder of faces")
    is_recordio = (path / RECORDS).exists() or (path / INDEX).exists()
    encoded: EncodedSet = RecordIOSet.open(path) if is_recordio else FolderSet.open(path)
    if cache_dir is None or len(encoded.labels) * 3 * size * size > _LARGEST_CACHE:
        return StreamedSet(encoded, size)
    return cached(encoded, size, cache_dir)


def open_pack(path: Path, size: int, *, cache_dir: Path) -> PairSet:
    """Open a whole verification pack with its images decoded, from the cache if they are there.

    Parameters are those of :func:`open_image_set`, errors those of ``read_pack``.
    """
    encoded = EncodedPack.open(path)
    return PairSet(encoded.name, cached(encoded, size, cache_dir).pixels, encoded.labels[::2] == 1)
