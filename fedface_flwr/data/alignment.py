# SPDX-License-Identifier: Apache-2.0
"""Alignment of a face by five points: the similarity that brings them nearest to where every aligned face has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.sets import Images
from fedface_flwr.errors import ConfigError, DataError

TEMPLATE_SIZE = 112
TEMPLATE = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""Where an aligned face of 112x112 pixels has its points: (x, y) of the eyes, the nose tip and the mouth's corners,
the one at the picture's left first. insightface's ``face_align.py`` (``arcface_dst``) and its IJB scripts have these:
the older points of 96x112 pixels, 8 pixels further right."""

_LARGEST = 1e7
# Points nearer to each other than this, relative to their distance from the origin, are rounding.
_COINCIDENT = 1e-6


def similarity(points: npt.NDArray[np.floating[Any]], target: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Fit a similarity transform, which rotates, scales and shifts, but never mirrors, by least squares.

    In the plane the solution of Umeyama (Least-squares estimation of transformation parameters between two point
    patterns, PAMI 1991, eq. 40-42), which needs a singular value decomposition in general, is one complex quotient:
    with points z and targets w as centred complex numbers, the sum of ``conj(z) w`` over that of ``|z|^2``.

    Parameters
    ----------
    points, target : ndarray of float, shape (n, 2)
        Matching points (x, y).

    Returns
    -------
    ndarray of float64, shape (2, 3)
        The matrix A with ``A @ (x, y, 1)`` nearest to the target.

    Raises
    ------
    DataError
        If the points are not of this shape, not finite, all the same, or determine no similarity.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.shape != np.shape(target) or points.ndim != 2 or points.shape[1] != 2:
        raise DataError(f"points of shape {points.shape} do not match targets of shape {np.shape(target)}")
    if not (np.abs(points) < _LARGEST).all():
        raise DataError(f"the points {points.tolist()} are not finite, or beyond any picture")
    z, w = points @ (1, 1j), np.asarray(target, dtype=np.float64) @ (1, 1j)
    centre, goal = z.mean(), w.mean()
    spread = np.square(np.abs(z - centre)).sum()
    if spread <= (_COINCIDENT * np.abs(z).max()) ** 2:
        raise DataError(f"the points {points.tolist()} are all the same")
    turn = (np.conj(z - centre) * (w - goal)).sum() / spread
    if abs(turn) * np.sqrt(spread) <= _COINCIDENT * np.linalg.norm(w - goal):
        raise DataError(f"the points {points.tolist()} are mirrored or otherwise unlike a face: they fix no similarity")
    shift = goal - turn * centre
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def align(image: Images, points: npt.NDArray[np.floating[Any]], size: int) -> Images:
    """Cut a face out of a picture so that its five points lie as in :data:`TEMPLATE`.

    As the field does: bilinear (``cv2.warpAffine``, which rounds a position to 1/32 pixel), black beyond the picture.

    Parameters
    ----------
    image : ndarray of uint8, shape (height, width, 3)
        RGB pixels.
    points : ndarray of float, shape (5, 2)
        (x, y) in pixels, in the template's order.
    size : int
        Side of the result; the template is scaled by ``size / 112``.

    Returns
    -------
    ndarray of uint8, shape (3, size, size)
        RGB pixels.

    Raises
    ------
    DataError
        If the points fix no similarity (:func:`similarity`).
    ConfigError
        If OpenCV is not installed.
    """
    try:
        import cv2
    except ImportError as error:
        raise ConfigError("aligning faces needs opencv-python-headless; install fedface-flwr[tools]") from error
    matrix = similarity(points, TEMPLATE * (size / TEMPLATE_SIZE))
    face = cv2.warpAffine(image, matrix, (size, size), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT)
    return np.ascontiguousarray(face.transpose(2, 0, 1))
