# SPDX-License-Identifier: Apache-2.0
"""What every source of faces looks like to the rest of the project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
"""uint8 RGB images, shape (n, 3, size, size)."""


class LabelledSet(Protocol):
    """What is known of a silo's faces before any picture is looked at.

    Attributes
    ----------
    name : str
        The silo's name.
    num_identities : int
        Number of classes; every label lies in ``[0, num_identities)``.
    labels : ndarray of int64, shape (n,)
        Identity of each image.
    """

    name: str
    num_identities: int
    labels: npt.NDArray[np.int64]


class ImageSet(LabelledSet, Protocol):
    """Labelled training faces of one silo."""

    def images(self, indices: npt.NDArray[np.int64]) -> Images:
        """Return the images at ``indices`` as uint8 RGB of shape (len(indices), 3, size, size)."""
        ...


@dataclass(frozen=True)
class PairSet:
    """Verification pairs: images ``2i`` and ``2i + 1`` are pair ``i``.

    Attributes
    ----------
    name : str
        The pack's name, such as ``lfw``.
    images : ndarray of uint8, shape (2 * pairs, 3, size, size)
        RGB images.
    same : ndarray of bool, shape (pairs,)
        True where both images show one person.
    """

    name: str
    images: Images
    same: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.same)
