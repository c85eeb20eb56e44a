# SPDX-License-Identifier: Apache-2.0
"""Guesses whether pictures were encoded with red and blue exchanged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedface_flwr.data.sets import Images

SAMPLE = 256
"""Pictures that are looked at."""

_COLOURED = 4.0  # levels of mean difference between red and blue below which a picture counts as grey
_FEWEST = 20  # coloured pictures below which nothing is said


@dataclass(frozen=True)
class ColourGuess:
    """A guess by skin, which of whatever tone reflects more red than blue.

    Attributes
    ----------
    order : str
        ``RGB``: the pictures decode to red first, as they should; ``BGR``: red and blue were exchanged before they
        were encoded; ``grey``: nine in ten have no colour; ``unknown``.
    sureness : str
        ``sure`` (at least 90 % of the coloured pictures agree), ``likely`` (75 %), or ``unsure``.
    redder : int
        Coloured pictures in whose middle the decoded red is above the decoded blue.
    coloured, looked_at : int
        Pictures with colour, and all that were looked at.
    """

    order: str
    sureness: str
    redder: int
    coloured: int
    looked_at: int


def red_over_blue(pixels: Images) -> float:
    """Return by how many levels the median red exceeds the median blue in the middle of a face (3, s, s)."""
    side = pixels.shape[-1]
    middle = pixels[:, side // 4 : side - side // 4, side // 4 : side - side // 4].reshape(3, -1)
    return float(np.median(middle[0])) - float(np.median(middle[2]))


def guess(differences: list[float]) -> ColourGuess:
    """Judge by :func:`red_over_blue` of a sample of pictures."""
    looked_at = len(differences)
    coloured = [difference for difference in differences if abs(difference) >= _COLOURED]
    redder = sum(difference > 0 for difference in coloured)
    count = len(coloured)
    if looked_at and count < looked_at / 10:
        return ColourGuess("grey", "sure" if looked_at >= _FEWEST else "unsure", redder, count, looked_at)
    if count < _FEWEST:
        return ColourGuess("unknown", "unsure", redder, count, looked_at)
    agreeing = max(redder, count - redder) / count
    sureness = "sure" if agreeing >= 0.9 else "likely" if agreeing >= 0.75 else "unsure"
    return ColourGuess("RGB" if 2 * redder >= count else "BGR", sureness, redder, count, looked_at)
