# SPDX-License-Identifier: Apache-2.0
"""TinyFace (Cheng, Zhu, Gong: Low-Resolution Face Recognition, ACCV 2018): 1:N identification of tiny faces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import Curve, Figure, Outcome
from fedface_flwr.evaluation.identification import cmc, mean_average_precision, rank_rate
from fedface_flwr.evaluation.pictures import Embedded, Embedder
from fedface_flwr.evaluation.search import Search, search
from fedface_flwr.protocols.pairs_options import Options
from fedface_flwr.protocols.pairs_set import FilePictures
from fedface_flwr.wording import numbered

_PARTS = ("Probe", "Gallery_Match", "Gallery_Distractor")
_OFFICIAL = (3728, 4443, 153428)
_ENDINGS = (".jpg", ".jpeg", ".png")
_NAME = re.compile(r"(\d{1,18})_.+", re.ASCII)
_DISTRACTOR = -1
_RANKS = (1, 5, 10, 20, 50)
_CMC = 100
_FLIP = {False: "none", True: "added"}
_PROTOCOL = "TinyFace 1:N identification"


@dataclass(frozen=True)
class TinyFaceBenchmark:
    """TinyFace's test set; a :class:`~fedface_flwr.protocols.protocol.Benchmark`.

    Attributes
    ----------
    name : str
        As the suite names it.
    files : tuple of Path
        All pictures: of the probes, of their mates in the gallery, of the gallery's distractors.
    identities : ndarray of int64
        Of each; -1 for distractors.
    counts : (int, int, int)
        How many there are of the three.
    flips : tuple of bool
        Which of without and with mirror images are measured.
    """

    name: str
    files: tuple[Path, ...]
    identities: npt.NDArray[np.int64]
    counts: tuple[int, int, int]
    flips: tuple[bool, ...]

    feature_files = ""
    packs = ()

    def run(self, embed: Embedder | None) -> Outcome:
        """Take every figure; ConfigError without a model, DataError if a picture is damaged."""
        if embed is None:
            raise ConfigError(f"{self.name}: pictures need a model to embed them")
        embedded = embed(FilePictures(self.files), flip=any(self.flips), what=self.name)
        figures: list[Figure] = []
        curves = []
        for flip in self.flips:
            try:
                found = self._search(embedded if flip else replace(embedded, mirrored=None))
            except DataError as error:
                raise DataError(f"{self.name}: {error}") from error
            figures += self._figures(found, _FLIP[flip])
            curves.append(Curve(self.name, "cmc", f"flip {_FLIP[flip]}", np.arange(1.0, _CMC + 1), cmc(found, _CMC)))
        return Outcome(tuple(figures), tuple(curves))

    def _search(self, embedded: Embedded) -> Search:
        features, probes = embedded.combined, self.counts[0]
        return search(
            features[:probes],
            self.identities[:probes],
            features[probes:],
            self.identities[probes:],
            average_precision=True,
        )

    def _figures(self, found: Search, flip: str) -> Iterator[Figure]:
        probes, mates, distractors = map(numbered, self.counts, ("probe", "mate", "distractor"))
        conditions = {"gallery": f"{mates} and {distractors}", "flip": flip}
        notes = []
        if self.counts != _OFFICIAL:
            notes.append(
                "not the whole test set, which has {:,} probes, {:,} mates, {:,} distractors".format(*_OFFICIAL)
            )
        unmated = int(np.count_nonzero(~found.mated))
        if unmated:
            notes.append(f"left out, for want of a mate: {unmated} of {probes}")
        note = "; ".join(notes)
        for rank in _RANKS:
            yield Figure(self.name, _PROTOCOL, f"rank {rank}", rank_rate(found, rank), conditions, note=note)
        for rule in ("standard", "trapezoidal"):
            ruled = conditions | {"average precision": rule}
            yield Figure(self.name, _PROTOCOL, "mAP", mean_average_precision(found, rule), ruled, note=note)


def from_options(name: str, options: Mapping[str, object], root: Path) -> TinyFaceBenchmark:
    """Return the benchmark that a suite describes; its folders are listed here.

    Parameters
    ----------
    name : str
        As the suite names it.
    options : mapping
        As documented in ``docs/evaluation-identification.md``.
    root : Path
        Folder that relative paths are against.

    Raises
    ------
    ConfigError
        If an option is unknown, missing or wrong.
    DataError
        If a folder is missing or empty, or a picture's name does not begin with its identity.
    """
    read = Options(name, options, root, ("folder", "flip"))
    folder = read.folder("folder")
    try:
        listed = [_pictures(folder / part) for part in _PARTS]
        identities = [_identity(path) for path in [*listed[0], *listed[1]]] + [_DISTRACTOR] * len(listed[2])
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    counts = (len(listed[0]), len(listed[1]), len(listed[2]))
    if not set(identities[: counts[0]]) & set(identities[counts[0] : counts[0] + counts[1]]):
        raise DataError(f"{name}: {folder}: no probe's identity is in Gallery_Match, so nobody could be found")
    return TinyFaceBenchmark(
        name, (*listed[0], *listed[1], *listed[2]), np.array(identities, dtype=np.int64), counts, read.flips()
    )


def _pictures(folder: Path) -> list[Path]:
    """Return the pictures of a folder, sorted by name; what is hidden or no picture is passed over."""
    try:
        named = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS and path.name[0] != ".")
        found = [path for path in named if path.is_file()]
    except OSError as error:
        raise DataError(f"{folder}: not a folder that can be listed ({error.strerror})") from error
    if not found:
        raise DataError(f"{folder}: holds no pictures ({', '.join(_ENDINGS)})")
    return found


def _identity(path: Path) -> int:
    matched = _NAME.fullmatch(path.name)
    if matched is None:
        raise DataError(f"{path}: the name does not begin with a person's number and an underscore, such as 42_1.jpg")
    return int(matched[1])
