# SPDX-License-Identifier: Apache-2.0
"""What protocols give to be embedded, and what embeds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.sets import Images

Embeddings = npt.NDArray[np.float32]


class Pictures(Protocol):
    """Encoded pictures, each with the way to make a network's input of it."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def read(self, index: int) -> tuple[bytes, str]:
        """Return picture ``index``, encoded, and the text that names its file and record."""
        ...

    def recipe(self, index: int) -> bytes:
        """Return what, besides the encoded bytes, decides the pixels, such as its five points; empty if nothing."""
        ...

    def pixels(self, data: bytes, index: int, size: int, where: str) -> Images:
        """Return uint8 RGB of shape (3, size, size) made of what :meth:`read` gave; DataError if bad."""
        ...


class Backbone(Protocol):
    """Weights that embed faces, wherever they came from.

    Attributes
    ----------
    title : str
        For a report's heading.
    digest : str
        Of all that decides its embeddings (weights, preprocessing, precision): a part of cached embeddings' key.
    input_size : int
        Side of its square input, in pixels.
    dim : int
        Dimensions of an embedding.
    """

    title: str
    digest: str
    input_size: int
    dim: int

    def embed(self, images: Images) -> Embeddings:
        """Return embeddings (n, dim), not normalised, of uint8 RGB images (n, 3, input_size, input_size)."""
        ...


@dataclass(frozen=True)
class Embedded:
    """Embeddings of pictures and, where asked for, of their mirror images; both (n, dim), not normalised."""

    plain: Embeddings
    mirrored: Embeddings | None = None

    @property
    def combined(self) -> Embeddings:
        """The sum of both, as the field adds them in a flip test, or the plain ones."""
        return self.plain if self.mirrored is None else self.plain + self.mirrored


class Embedder(Protocol):
    """Embeds pictures by one backbone, equal ones once, whichever protocols they come from."""

    def __call__(self, pictures: Pictures, *, flip: bool, what: str) -> Embedded:
        """Return the embeddings in the pictures' order; ``what`` names them in progress and errors."""
        ...
