# SPDX-License-Identifier: Apache-2.0
"""What varies between synthetic faces: from person to person, between photographs, from silo to silo.

Lengths are in units of half the image, angles in radians, colours in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FACE_RANGES: dict[str, tuple[float, float]] = {
    "head_width": (0.58, 0.76),
    "head_height": (0.84, 0.98),
    "jaw": (0.02, 0.34),
    "square": (0.0, 0.5),
    "skin": (0.1, 0.8),
    "eye_x": (0.22, 0.34),
    "eye_y": (-0.2, -0.04),
    "eye_width": (0.1, 0.165),
    "eye_height": (0.045, 0.1),
    "eye_tilt": (-0.25, 0.2),
    "iris": (0.0, 1.0),
    "iris_radius": (0.05, 0.075),
    "brow_height": (0.13, 0.24),
    "brow_width": (0.12, 0.2),
    "brow_thickness": (0.012, 0.045),
    "brow_arch": (0.0, 0.08),
    "brow_slope": (-0.25, 0.25),
    "nose_width": (0.07, 0.17),
    "nose_y": (0.16, 0.32),
    "nose_shade": (0.15, 0.5),
    "mouth_y": (0.43, 0.58),
    "mouth_width": (0.16, 0.31),
    "upper_lip": (0.015, 0.07),
    "lower_lip": (0.03, 0.1),
    "lip_tint": (0.1, 0.8),
    "hair": (0.0, 1.0),
    "hairline": (-0.8, -0.38),
    "hairline_arch": (-0.5, 1.1),
    "hair_part": (-0.5, 0.5),
    "hair_volume": (-0.02, 0.2),
    "hair_length": (-0.3, 1.0),
    "beard": (-2.0, 0.9),
    "folds": (-0.3, 0.5),
    "glasses": (-6.0, 1.5),
    "mole_x": (-0.3, 0.3),
    "mole_y": (-0.06, 0.65),
    "mole": (-1.5, 1.0),
}
"""What belongs to a person. Beard, folds, glasses and mole are opacities, clipped at 0: most have none."""

SHOT_RANGES: dict[str, tuple[float, float]] = {
    "roll": (-0.22, 0.22),
    "yaw": (-0.17, 0.17),
    "pitch": (-0.1, 0.1),
    "shift_x": (-0.1, 0.1),
    "shift_y": (-0.1, 0.1),
    "zoom": (0.9, 1.12),
    "light_x": (-0.45, 0.45),
    "light_y": (-0.35, 0.35),
    "gain": (0.7, 1.15),
    "gamma": (-0.45, 0.45),
    "warmth": (-0.1, 0.1),
    "grey": (-4.0, 1.5),
    "smile": (-0.05, 0.13),
    "mouth_open": (-0.12, 0.12),
    "brow_raise": (-0.03, 0.05),
    "eye_open": (0.45, 1.2),
    "backdrop_r": (0.05, 0.95),
    "backdrop_g": (0.05, 0.95),
    "backdrop_b": (0.05, 0.95),
    "backdrop_slope": (-0.3, 0.3),
    "cloth_r": (0.05, 0.95),
    "cloth_g": (0.05, 0.95),
    "cloth_b": (0.05, 0.95),
    "cover": (-4.0, 2.0),
    "cover_r": (0.05, 0.95),
    "cover_g": (0.05, 0.95),
    "cover_b": (0.05, 0.95),
    "cover_x": (-0.9, 0.9),
    "cover_y": (-0.9, 1.0),
    "cover_size": (0.2, 0.4),
    "blur": (0.0, 1.0),
    "noise": (0.3, 1.0),
    "grain_x": (0.0, 1.0),
    "grain_y": (0.0, 1.0),
}
"""What belongs to one photograph: pose, light, expression, surroundings, an object in the way, sensor."""


@dataclass(frozen=True)
class Style:
    """How one silo's photographs differ from another's: the domain shift.

    Attributes
    ----------
    cast : ndarray of float32, shape (3,)
        Multiplies R, G and B.
    contrast, lift : float
        Pixels become ``(pixel - 0.5) * contrast + 0.5 + lift``.
    blur, noise : float
        Largest weight of a neighbouring pixel, and largest standard deviation of the grain (of a range of 1).
    backdrop : ndarray of float32, shape (3,)
        The colour towards which backgrounds tend.
    zoom : float
        Size of the face in the crop.
    border : float
        Width of the black margin as a fraction of half the image; 0 has none.
    """

    cast: npt.NDArray[np.float32]
    contrast: float
    lift: float
    blur: float
    noise: float
    backdrop: npt.NDArray[np.float32]
    zoom: float
    border: float


def silo_style(domain: int) -> Style:
    """Return the domain's style.

    The styles follow a Kronecker sequence, which keeps consecutive domains apart: independent draws would now
    and then make two silos alike. Every third domain has the tight crops with black margins of some public
    sets.
    """
    # Steps of Roberts' R-sequence in 11 dimensions: powers of the root of x^12 = x + 1.
    unit = (0.5 + (domain + 1) * 1.062169167864255 ** -np.arange(1.0, 12.0)) % 1.0
    tight = domain % 3 == 1
    return Style(
        cast=(0.84 + 0.26 * unit[:3]).astype(np.float32),
        contrast=0.7 + 0.45 * float(unit[3]),
        lift=-0.08 + 0.16 * float(unit[4]),
        blur=0.05 + 0.28 * float(unit[5]),
        noise=0.02 + 0.08 * float(unit[6]),
        backdrop=unit[7:10].astype(np.float32),
        zoom=1.12 if tight else 0.86 + 0.2 * float(unit[10]),
        border=0.14 if tight else 0.0,
    )
