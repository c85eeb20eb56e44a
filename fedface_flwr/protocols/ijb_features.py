# SPDX-License-Identifier: Apache-2.0
"""Features of IJB's faces: from a matrix file, or embedded from the loose crops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from fedface_flwr.data.matrices import map_matrix
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.templates import Features
from fedface_flwr.protocols.ijb_files import FaceList, Floats
from fedface_flwr.protocols.pairs_landmarks import PhotoPictures
from fedface_flwr.wording import numbered

PLAIN, BOTH = "plain", "plain and mirrored"


def open_matrix(path: Path, layout: str) -> tuple[Features, Features | None]:
    """Map a ``.npy`` matrix of features into memory, without reading it.

    Parameters
    ----------
    path : Path
        float16, float32 or float64 of shape (faces, dim), in the order of the list of faces.
    layout : {'plain', 'plain and mirrored'}
        Whether a row is a face's features, or those followed by the features of its mirror image.

    Returns
    -------
    plain, mirrored : ndarray
        Memory maps; the latter None if there is none.

    Raises
    ------
    DataError
        If the file is no such matrix, or shorter than its header says.
    """
    matrix = map_matrix(path)
    if layout == PLAIN:
        return matrix, None
    if matrix.shape[1] % 2:
        raise DataError(
            f"{path}: {numbered(matrix.shape[1], 'column')} cannot be plain and mirrored features, equally many"
        )
    half = matrix.shape[1] // 2
    return matrix[:, :half], matrix[:, half:]


@dataclass(frozen=True)
class _Crops(Sequence[Path]):
    """Paths of loose crops; as objects of their own, half a million of them would take more than the points."""

    folder: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | Sequence[Path]:
        if isinstance(index, slice):
            return [self.folder / name for name in self.names[index]]
        return self.folder / self.names[index]


def loose_crops(images: Path, listed: FaceList) -> PhotoPictures:
    """Return the faces as pictures, cut out of the loose crops by their five points."""
    points: Sequence[Floats] = listed.points  # type: ignore[assignment]
    return PhotoPictures(_Crops(images, listed.names), points)
