# SPDX-License-Identifier: Apache-2.0
"""Draws cartoon faces with NumPy: one batch of parameters in, one batch of RGB images out.

Every shape is a signed distance (negative inside, in units of half the image) turned into a coverage with an
edge of about one pixel, and painted back to front. Face coordinates have their origin between eyes and nose,
x to the right and y down; an unscaled image spans [-1, 1] in both. All arithmetic is element by element in
float32, so that an image does not depend on the batch that it is drawn in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedface_flwr.data.sets import Images
from fedface_flwr.data.traits import Style

# NumPy's stubs see float64 in some products of float32 arrays and Python numbers, hence the wider type.
Field = npt.NDArray[np.floating[Any]]
"""float32: parameters of shape (n, 1, 1), planes (n, size, size), colours with 3 channels before either."""
Traits = dict[str, Field]

_SKIN = ((1.0, 0.87, 0.77), (0.94, 0.75, 0.6), (0.78, 0.56, 0.41), (0.52, 0.34, 0.24), (0.34, 0.22, 0.16))
_HAIR = ((0.09, 0.07, 0.07), (0.3, 0.18, 0.1), (0.5, 0.28, 0.13), (0.85, 0.68, 0.38), (0.72, 0.7, 0.68))
_IRIS = ((0.2, 0.11, 0.06), (0.45, 0.28, 0.12), (0.35, 0.48, 0.25), (0.3, 0.5, 0.72))
_LIP = (1.0, 0.5, 0.55)
_LOWER_FACE = (0.45, -0.25, 0.9)
_UPPER_FACE = (0.62, -0.68, 0.22)
"""Half width, top and bottom of boxes that hold the features whatever their parameters."""
_CHUNK = 8
"""Images drawn at once: so few that their planes stay in the processor's second-level cache."""
_GRAIN_SHIFTS = 64
"""Places along each axis where an image's noise may be cut from the tile."""


@dataclass(frozen=True)
class _Plane:
    """Coordinates of pixels, and the size of a pixel in them."""

    x: Field
    y: Field
    pixel: Field

    def inside(self, distance: Field, softness: float = 1.0) -> Field:
        """Coverage in [0, 1] of a signed distance, with an edge ``softness`` pixels wide."""
        coverage = distance * (-1.0 / (softness * self.pixel))
        coverage += np.float32(0.5)
        return np.clip(coverage, 0.0, 1.0, out=coverage)


class _Spread(dict[str, Field]):
    """Traits repeated for each of the pixels listed of an image, when first asked for."""

    def __init__(self, traits: Traits, pixels_of_image: npt.NDArray[np.intp]) -> None:
        super().__init__()
        self._traits = traits
        self._counts = pixels_of_image

    def __missing__(self, key: str) -> Field:
        value = self._traits[key]
        self[key] = np.repeat(value.reshape(*value.shape[:-3], -1), self._counts, axis=-1)
        return self[key]


def draw(traits: Traits, style: Style, size: int) -> Images:
    """Draw a batch of faces.

    Parameters
    ----------
    traits : dict of str to ndarray of float32, shape (n, 1, 1)
        Values of the keys of ``FACE_RANGES`` and ``SHOT_RANGES``.
    style : Style
        The silo's domain.
    size : int
        Height and width in pixels.

    Returns
    -------
    ndarray of uint8, shape (n, 3, size, size)
        RGB images.
    """
    count = len(traits["skin"])
    images = np.empty((count, 3, size, size), np.uint8)
    for start in range(0, count, _CHUNK):
        rows = slice(start, start + _CHUNK)
        chunk = _coloured({key: value[rows] for key, value in traits.items()})
        images[rows] = np.moveaxis(_draw_chunk(chunk, style, size), 0, 1)
    return images


def _draw_chunk(traits: Traits, style: Style, size: int) -> Field:
    outline, front = _pose(traits, style, size)
    rgb = _backdrop(outline, traits, style)
    _surroundings(rgb, outline, traits)
    head = _head(rgb, outline, traits)
    _beard(rgb, front, traits, head)
    _paint_within(rgb, _LOWER_FACE, front, traits, (_skin_marks, _nose, _mouth))
    _paint_within(rgb, _UPPER_FACE, front, traits, (_eyes, _brows, _glasses))
    _fringe(rgb, front, traits, head)
    _cover(rgb, traits)
    return _photograph(rgb, traits, style)


def _paint_within(
    rgb: Field, box: tuple[float, float, float], plane: _Plane, traits: Traits, parts: tuple[_Part, ...]
) -> None:
    """Paint parts on the pixels of a box alone: features are small, and time goes by the pixel."""
    half_width, top, bottom = box
    where = (abs(plane.x) < half_width) & (plane.y > top) & (plane.y < bottom)
    pixels = np.flatnonzero(where)
    spread = _Spread(traits | {"pixel": plane.pixel}, np.count_nonzero(where, axis=(1, 2)))
    near = _Plane(plane.x.ravel()[pixels], plane.y.ravel()[pixels], spread["pixel"])
    canvas = rgb.reshape(3, -1)
    near_rgb = canvas.take(pixels, axis=1)
    for part in parts:
        part(near_rgb, near, spread)
    # One channel at a time is several times faster in NumPy than all three at once.
    for channel, values in zip(canvas, near_rgb, strict=True):
        channel[pixels] = values


def _coloured(traits: Traits) -> Traits:
    """Add the colours that the traits stand for, each of shape (3, n, 1, 1)."""
    skin = _ramp(_SKIN, traits["skin"])
    tint = traits["lip_tint"]
    lip = (1.0 - tint) * 0.8 * skin + tint * skin * np.asarray(_LIP, np.float32)[:, None, None, None]
    colours = {"skin_rgb": skin, "lip_rgb": lip}
    colours |= {"hair_rgb": _ramp(_HAIR, traits["hair"]), "iris_rgb": _ramp(_IRIS, traits["iris"])}
    for thing in ("backdrop", "cloth", "cover"):
        colours[f"{thing}_rgb"] = np.stack([traits[f"{thing}_{channel}"] for channel in "rgb"])
    return traits | colours


def _ramp(stops: tuple[tuple[float, float, float], ...], position: Field) -> Field:
    """Colour at ``position`` in [0, 1] along evenly spaced stops."""
    places = np.linspace(0.0, 1.0, len(stops))
    return np.stack([np.interp(position, places, channel) for channel in zip(*stops, strict=True)]).astype(np.float32)


def _paint(rgb: Field, coverage: Field, colour: Field | float) -> None:
    layer = colour - rgb
    layer *= coverage
    rgb += layer


def _pose(traits: Traits, style: Style, size: int) -> tuple[_Plane, _Plane]:
    """Coordinates on the head's outline and on its front."""
    axis = _axis(size)
    across, down = axis - traits["shift_x"], axis[:, None] - traits["shift_y"]
    zoom = traits["zoom"] * np.float32(style.zoom)
    cos, sin = np.cos(traits["roll"]) / zoom, np.sin(traits["roll"]) / zoom
    u, v = cos * across + sin * down, cos * down - sin * across
    # A turned head moves what lies in its middle, nearest to the camera, and leaves the outline where it is.
    x = u - traits["yaw"] * np.maximum(1.0 - u * u, 0.0)
    y = v - traits["pitch"] * np.maximum(1.0 - v * v, 0.0)
    pixel = (2.0 / size) / zoom
    return _Plane(u, v, pixel), _Plane(x, y, pixel)


def _axis(size: int) -> npt.NDArray[np.float32]:
    """Centres of the pixels of one axis, from -1 to 1."""
    return ((np.arange(size) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)


def _backdrop(outline: _Plane, traits: Traits, style: Style) -> Field:
    colour = 0.5 * (traits["backdrop_rgb"] + style.backdrop[:, None, None, None])
    return colour + traits["backdrop_slope"] * (outline.x + outline.y)


def _surroundings(rgb: Field, outline: _Plane, traits: Traits) -> None:
    """Hair behind the head, neck and ears, clothes."""
    side, v = abs(outline.x), outline.y
    width = traits["head_width"]
    below = np.maximum(v - traits["hair_length"], 0.0) * 4.0
    above = np.minimum(v, 0.0) / (traits["head_height"] + 0.7 * traits["hair_volume"])
    around = side / (width + traits["hair_volume"])
    mane = np.sqrt(around * around + above * above + below * below)
    _paint(rgb, outline.inside((mane - 1.0) * width), 0.85 * traits["hair_rgb"])
    neck = np.maximum(side - 0.55 * width, 0.4 - v)
    beside, along = side - width, 0.6 * (v - 0.02)
    ear = np.sqrt(beside * beside + along * along) - 0.1
    _paint(rgb, outline.inside(np.minimum(neck, ear)), 0.8 * traits["skin_rgb"])
    _paint(rgb, outline.inside(1.08 - v), traits["cloth_rgb"])


def _head(rgb: Field, outline: _Plane, traits: Traits) -> Field:
    """Paint the head and return its coverage."""
    width = traits["head_width"]
    chin = np.maximum(outline.y, 0.0)
    across = outline.x / (width * (1.0 - traits["jaw"] * chin))
    across *= across
    along = outline.y / traits["head_height"]
    along *= along
    # The last term, zero on both axes, swells the outline between them: a square face.
    radius = across + along - traits["square"] * across * along
    head = outline.inside((np.sqrt(np.maximum(radius, 0.0)) - 1.0) * width)
    _paint(rgb, head, traits["skin_rgb"] * (1.06 - 0.2 * radius))
    return head


def _beard(rgb: Field, front: _Plane, traits: Traits, head: Field) -> None:
    below = front.inside(traits["mouth_y"] - 0.13 - front.y - 0.35 * abs(front.x), 4.0)
    below *= head * np.clip(traits["beard"], 0.0, 0.85)
    _paint(rgb, below, traits["hair_rgb"])


def _fringe(rgb: Field, front: _Plane, traits: Traits, head: Field) -> None:
    hairline = traits["hairline"] + front.x * (traits["hair_part"] + traits["hairline_arch"] * front.x)
    _paint(rgb, head * front.inside(front.y - hairline, 2.0), traits["hair_rgb"])


def _skin_marks(rgb: Field, front: _Plane, traits: Traits) -> None:
    """Folds from the nose to the corners of the mouth, and a mole."""
    low, high = traits["nose_y"], traits["mouth_y"]
    fold = abs(abs(front.x) - traits["nose_width"] - 0.05 - 0.4 * (front.y - low)) - 0.012
    fold = np.maximum(fold, abs(front.y - 0.5 * (low + high)) - 0.5 * (high - low))
    _paint(rgb, front.inside(fold, 1.5) * np.clip(traits["folds"], 0.0, 1.0), 0.6 * traits["skin_rgb"])
    across, down = front.x - traits["mole_x"], front.y - traits["mole_y"]
    mole = front.inside(np.sqrt(across * across + down * down) - 0.035)
    _paint(rgb, mole * np.clip(3.0 * traits["mole"], 0.0, 1.0), 0.4 * traits["skin_rgb"])


def _nose(rgb: Field, front: _Plane, traits: Traits) -> None:
    width, eye, shade = traits["nose_width"], traits["eye_y"], traits["nose_shade"]
    skin = traits["skin_rgb"]
    # The nose stands out from the face, so that turning moves it further.
    x = front.x - 0.5 * traits["yaw"]
    y = front.y - traits["nose_y"]
    down = 1.0 + y / (traits["nose_y"] - eye)
    unlit = np.sign(traits["light_x"])
    flank = abs(x + unlit * width * (0.35 + 0.5 * down * down)) - 0.02
    flank = np.maximum(flank, 0.36 * abs(down - 0.6) - 0.16)
    _paint(rgb, front.inside(flank, 2.5) * shade, 0.6 * skin)
    tip = np.sqrt(x * x + 4.0 * y * y) - width
    _paint(rgb, front.inside(tip, 2.0) * (0.6 * shade), 0.72 * skin)
    hole_x, hole_y = abs(x) - 0.5 * width, 1.6 * y
    hole = np.sqrt(hole_x * hole_x + hole_y * hole_y) - 0.3 * width
    _paint(rgb, front.inside(hole), 0.35 * skin)


def _mouth(rgb: Field, front: _Plane, traits: Traits) -> None:
    smile = traits["smile"]
    width = traits["mouth_width"] + 0.3 * smile
    across = front.x / width
    bow = 1.0 - across * across
    gap = np.maximum(traits["mouth_open"], 0.0) * bow
    y = front.y - traits["mouth_y"] - smile * (bow - 0.5)
    lips = np.maximum(-y - traits["upper_lip"] * bow, y - gap - traits["lower_lip"] * bow)
    _paint(rgb, front.inside(lips), traits["lip_rgb"])
    slit = np.maximum(abs(y - 0.5 * gap) - 0.5 * gap - 0.014, abs(front.x) - width - 0.01)
    opening = front.inside(slit)
    _paint(rgb, opening, 0.25 * traits["skin_rgb"])
    teeth = np.maximum(abs(y - 0.3 * gap) - 0.3 * gap, 0.02 - gap)
    _paint(rgb, opening * front.inside(teeth), 0.92)


def _eyes(rgb: Field, front: _Plane, traits: Traits) -> None:
    width, iris_radius = traits["eye_width"], traits["iris_radius"]
    across = abs(front.x) - traits["eye_x"]
    up = front.y - traits["eye_y"] + traits["eye_tilt"] * across
    lid = traits["eye_height"] * traits["eye_open"] * (1.0 - (across / width) ** 2)
    white = front.inside(abs(up) - lid)
    _paint(rgb, white, 0.95)
    radius = np.sqrt(across * across + up * up)
    _paint(rgb, white * front.inside(radius - iris_radius), traits["iris_rgb"])
    _paint(rgb, white * front.inside(radius - 0.5 * iris_radius), 0.03)
    lash = np.maximum(abs(up + lid) - 0.018, abs(across) - width)
    _paint(rgb, front.inside(lash), 0.22 * traits["skin_rgb"])


def _brows(rgb: Field, front: _Plane, traits: Traits) -> None:
    width = traits["brow_width"]
    across = abs(front.x) - traits["eye_x"] - 0.01
    bow = 1.0 - (across / width) ** 2
    y = front.y - traits["eye_y"] + traits["brow_height"] + traits["brow_raise"]
    y += traits["brow_arch"] * bow + traits["brow_slope"] * across
    brow = np.maximum(abs(y) - traits["brow_thickness"] * (0.6 + 0.4 * bow), abs(across) - width)
    _paint(rgb, front.inside(brow), 0.7 * traits["hair_rgb"])


def _glasses(rgb: Field, front: _Plane, traits: Traits) -> None:
    across, up = abs(front.x) - traits["eye_x"], 1.2 * (front.y - traits["eye_y"])
    radius = 0.45 * traits["eye_x"] + 0.07
    ring = abs(np.sqrt(across * across + up * up) - radius) - 0.022
    bridge = np.maximum(abs(up + 0.03) - 0.02, across + radius)
    coverage = front.inside(np.minimum(ring, bridge))
    _paint(rgb, coverage * np.clip(3.0 * traits["glasses"], 0.0, 1.0), 0.1)


def _cover(rgb: Field, traits: Traits) -> None:
    """Put a block of one colour in front of the face."""
    size = rgb.shape[-1]
    axis, slope, half = _axis(size), np.float32(0.25 * size), traits["cover_size"]
    across = np.clip((half - abs(axis - traits["cover_x"])) * slope + 0.5, 0.0, 1.0)
    down = np.clip((1.2 * half - abs(axis[:, None] - traits["cover_y"])) * slope + 0.5, 0.0, 1.0)
    across *= np.clip(2.0 * traits["cover"], 0.0, 1.0)
    _paint(rgb, across * down, traits["cover_rgb"])


def _photograph(rgb: Field, traits: Traits, style: Style) -> Field:
    """Light, tone, colour, blur, grain and border of the finished drawing, ready to be truncated to uint8."""
    axis = _axis(rgb.shape[-1])
    rgb *= traits["gain"] * (1.0 + traits["light_x"] * axis + traits["light_y"] * axis[:, None])
    np.clip(rgb, 0.0, 1.0, out=rgb)
    # A parabola through (0, 0) and (1, 1) in place of a power: the same effect at a tenth of the cost.
    rgb *= 1.0 + traits["gamma"] * (1.0 - rgb)
    grey = np.clip(traits["grey"], 0.0, 0.9)
    _paint(rgb, grey, rgb.sum(axis=0) * np.float32(1 / 3))
    warmth = traits["warmth"]
    balance = np.stack([1.0 + warmth, np.ones_like(warmth), 1.0 - warmth])
    rgb *= balance * style.cast[:, None, None, None] * np.float32(255.0 * style.contrast)
    rgb += np.float32(255.0 * (0.5 - 0.5 * style.contrast + style.lift) + 0.5)
    _blur(rgb, traits["blur"] * np.float32(style.blur))
    rgb += _grain(traits, rgb.shape[-1]) * (traits["noise"] * np.float32(255.0 * style.noise))
    np.clip(rgb, 0.0, 255.0, out=rgb)
    if style.border > 0.0:
        edge = (abs(axis) < 1.0 - style.border).astype(np.float32)
        rgb *= edge[:, None] * edge
    return rgb


def _blur(rgb: Field, weight: Field) -> None:
    """Diffuse one step along each axis, in place: each pixel gives ``weight`` of itself to each neighbour."""
    for first, second in ((rgb[..., :-1, :], rgb[..., 1:, :]), (rgb[..., :-1], rgb[..., 1:])):
        flow = second - first
        flow *= weight
        first += flow
        second -= flow


@cache
def _grain_windows(size: int) -> npt.NDArray[np.float32]:
    """Every window of one tile of noise, shape (3, shifts, shifts, size, size), as a view."""
    side = size + _GRAIN_SHIFTS - 1
    tile = np.random.Generator(np.random.Philox(key=0)).standard_normal((3, side, side), np.float32)
    return np.lib.stride_tricks.sliding_window_view(tile, (size, size), axis=(1, 2))


def _grain(traits: Traits, size: int) -> Field:
    """Noise of unit variance cut from one tile: fresh noise for each image would cost as much as its face."""
    down, across = ((traits[key].ravel() * _GRAIN_SHIFTS).astype(np.intp) for key in ("grain_y", "grain_x"))
    return _grain_windows(size)[:, down, across]


_Part = Callable[[Field, _Plane, Traits], None]
