# SPDX-License-Identifier: Apache-2.0
"""The one place that knows how an encoded picture becomes the network's input."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedface_flwr.data.sets import Images
from fedface_flwr.errors import DataError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# A few bytes can declare 65535 x 65535 pixels, which would be 12 GB once decoded.
_LARGEST_SIDE = 4096
_LARGEST_PHOTO = 64_000_000
# OpenCV, which warps photos, counts pixels along a side in 16 bits.
_LONGEST_PHOTO = 32_766
# Grey, RGB, palette, with or without alpha, and CMYK; what is left has more than 8 bits a channel.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK")
# What Pillow only warns about, such as damaged EXIF data, does not change the pixels. Not around each call, since
# pictures are decoded in threads, which have all filters in common.
warnings.filterwarnings("ignore", module=r"PIL\.")


# Where an object lies in memory, which would tell two equal failures apart.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class UnalignedError(DataError):
    """A picture is whole, but not square, so it is no aligned face."""


def undecodable(where: str, error: Exception) -> DataError:
    """Return what to raise for a picture that Pillow fails at; the same picture always gets the same text."""
    unknown = isinstance(error, UnidentifiedImageError)
    reason = "not a whole JPEG or PNG picture" if unknown else _ADDRESS.sub("", str(error))
    return DataError(f"{where}: the image cannot be decoded ({reason}); remove or replace it")


@dataclass(frozen=True)
class Preprocessing:
    """How pixels reach the network: ``(x - mean) / scale`` of uint8 values, as in the ArcFace lineage.

    Attributes
    ----------
    colour_order : str
        Order of the three channels.
    mean, scale : float
        Subtracted from, then divided into, each pixel value.
    layout : str
        Order of a batch's axes.
    """

    colour_order: str = "RGB"
    mean: float = 127.5
    scale: float = 127.5
    layout: str = "NCHW"

    def metadata(self) -> dict[str, str]:
        """Return the fields as strings, the only values that a safetensors file's metadata takes."""
        return {key: str(value) for key, value in asdict(self).items()}


PREPROCESSING = Preprocessing()


def decode(data: bytes, size: int, where: str) -> Images:
    """Decode one JPEG or PNG picture.

    Parameters
    ----------
    data : bytes
        The encoded picture, square; a grey one gets three equal channels.
    size : int
        Side wanted, in pixels; a picture of another side is resized (bilinear, antialiased).
    where : str
        The picture's file and record, for the error's text.

    Returns
    -------
    ndarray of uint8, shape (3, size, size)
        RGB pixels.

    Raises
    ------
    DataError
        If the bytes are no decodable picture; UnalignedError if the picture is not square.
    """
    rgb = _rgb(data, where, _check_aligned)
    if rgb.width != size:
        rgb = rgb.resize((size, size), Image.Resampling.BILINEAR)
    image: Images = np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))
    return image


def decode_photo(data: bytes, where: str) -> Images:
    """Decode one JPEG or PNG picture of any shape, in which a face is still to be aligned.

    Parameters
    ----------
    data : bytes
        The encoded picture, of at most ``_LARGEST_PHOTO`` pixels; a grey one gets three equal channels. It is turned
        upright as its EXIF data says, as by ``cv2.imread``, with which the field's detectors find points.
    where : str
        The picture's file and record, for the error's text.

    Returns
    -------
    ndarray of uint8, shape (height, width, 3)
        RGB pixels.

    Raises
    ------
    DataError
        If the bytes are no decodable picture, or declare too many pixels.
    """
    return np.asarray(_rgb(data, where, _check_photo, ImageOps.exif_transpose))


def _rgb(
    data: bytes,
    where: str,
    check: Callable[[Image.Image, str], None],
    turn: Callable[[Image.Image], Image.Image] = lambda picture: picture,
) -> Image.Image:
    """Decode a picture whose header passes ``check``."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as picture:
            check(picture, where)
            if picture.mode not in _MODES:
                raise DataError(f"{where}: the image has pixels of kind {picture.mode}; convert it to 8 bits a channel")
            return turn(picture.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow does not say what it raises on damaged files
        raise undecodable(where, error) from error


def _check_aligned(picture: Image.Image, where: str) -> None:
    """Refuse, by its header alone, a picture that is no aligned face."""
    shape = f"{picture.width}x{picture.height}"
    if picture.height != picture.width:
        raise UnalignedError(
            f"{where}: the image is {shape}; aligned faces are square, so align it first (fedface-data align)"
        )
    if picture.height > _LARGEST_SIDE:
        raise DataError(f"{where}: the image is {shape}, above {_LARGEST_SIDE}; it is no aligned face")


def _check_photo(picture: Image.Image, where: str) -> None:
    """Refuse, by its header alone, a picture that would not fit."""
    if picture.width * picture.height > _LARGEST_PHOTO or max(picture.size) > _LONGEST_PHOTO:
        shape = f"{picture.width}x{picture.height}"
        raise DataError(
            f"{where}: the image is {shape}, above {_LARGEST_PHOTO} pixels or {_LONGEST_PHOTO} a side; scale it down"
        )


def normalise(batch: Tensor) -> Tensor:
    """Map uint8 pixels (n, 3, s, s) to float32 in [-1, 1] on the same device, by ``PREPROCESSING``."""
    return batch.float().sub_(PREPROCESSING.mean).div_(PREPROCESSING.scale)


def flip(batch: Tensor) -> Tensor:
    """Mirror images (n, 3, s, s) left to right, which is the last axis of NCHW."""
    return batch.flip(-1)


def random_flip(batch: Tensor, generator: torch.Generator, probability: float = 0.5) -> Tensor:
    """Mirror each image of (n, 3, s, s) with the given probability.

    Parameters
    ----------
    batch : Tensor, shape (n, 3, s, s)
        Left unchanged.
    generator : torch.Generator
        Exactly n numbers are drawn from it, whatever the probability.
    probability : float
        Chance of each image to be mirrored.

    Returns
    -------
    Tensor, shape (n, 3, s, s)
        A new batch.
    """
    # Looking at pictures and converting them must not wait for torch.
    import torch

    chosen = torch.rand(len(batch), generator=generator, device=generator.device) < probability
    return torch.where(chosen.to(batch.device)[:, None, None, None], flip(batch), batch)
