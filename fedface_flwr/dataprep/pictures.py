# SPDX-License-Identifier: Apache-2.0
"""What an encoded picture is, and encoding one anew."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fedface_flwr.data.images import decode, undecodable
from fedface_flwr.data.sets import Images

QUALITY = 95
"""Quality of a JPEG that has to be encoded, where nothing else is asked for."""


@dataclass(frozen=True)
class Encoding:
    """How pictures go into a set.

    Attributes
    ----------
    size : int or None
        Side in pixels that every picture gets; None: they keep theirs.
    quality : int or None
        JPEG quality by which every picture is encoded anew; None: only those that must be, at 95.
    exchange : bool
        Exchange red and blue, which mends pictures that were encoded in the wrong order.
    """

    size: int | None = None
    quality: int | None = None
    exchange: bool = False


@dataclass(frozen=True)
class Look:
    """A picture's format (``JPEG``, ``PNG``), width and height in pixels, and Pillow's name of its kind of pixels."""

    format: str
    width: int
    height: int
    mode: str


@dataclass(frozen=True)
class Prepared:
    """A picture as it goes into a set, and its side in pixels."""

    data: bytes
    side: int


def look(data: bytes, where: str) -> Look:
    """Read a picture's head.

    Raises
    ------
    DataError
        If it is no JPEG or PNG picture.
    """
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as picture:
            return Look(str(picture.format), picture.width, picture.height, picture.mode)
    # Pillow documents no list of what a damaged file makes it raise.
    except Exception as error:
        raise undecodable(where, error) from error


def prepare(data: bytes, where: str, encoding: Encoding) -> Prepared:
    """Decode an aligned picture, to know that it can be, and encode it anew only if it must be.

    Raises
    ------
    DataError
        If it cannot be decoded, is not square, or has more than 8 bits a channel.
    """
    seen = look(data, where)
    side = encoding.size or seen.width
    pixels = decode(data, side, where)
    if side == seen.width and encoding.quality is None and not encoding.exchange:
        return Prepared(data, side)
    if encoding.exchange:
        pixels = pixels[::-1]
    return Prepared(jpeg(pixels, encoding.quality or QUALITY), side)


def jpeg(pixels: Images, quality: int) -> bytes:
    """Encode RGB pixels (3, height, width) as JPEG, the colours at full resolution."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(
        file, "JPEG", quality=quality, subsampling="4:4:4"
    )
    return file.getvalue()
