# SPDX-License-Identifier: Apache-2.0
"""MegaFace challenge 1 on feature files or pictures, raw and refined, with any number of distractors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation import roc
from fedface_flwr.evaluation.figures import NOTE_SEPARATOR, Curve, Figure, Outcome
from fedface_flwr.evaluation.megaface import DEPTH, Distractors, Finding, Noise, evaluate
from fedface_flwr.evaluation.megaface_probes import Probes
from fedface_flwr.evaluation.pictures import Embedder
from fedface_flwr.protocols.megaface_features import FeatureFiles, Floats, load_matrix, unit_matrix
from fedface_flwr.protocols.megaface_lists import (
    FaceList,
    Mask,
    distractor_noise,
    identities_of,
    probe_noise,
    read_list,
    rows_of,
)
from fedface_flwr.protocols.pairs_options import Options
from fedface_flwr.protocols.pairs_set import FilePictures
from fedface_flwr.reporting.bars import Reporter
from fedface_flwr.wording import numbered

_OPTIONS = (
    "probes",
    "probe_features",
    "probe_images",
    "probe_noise",
    "distractors",
    "distractor_features",
    "distractor_images",
    "distractor_noise",
    "distractor_lists",
    "sizes",
    "subset_seed",
    "ending",
    "feature_cache",
    "flip",
    "noise_seed",
)
_RANKS = range(1, 11)
_SIZES = (1000, 10_000, 100_000, 1_000_000)
_FLIP = {False: "none", True: "added"}
_STORED = "as in the features"
_MOST_SETS = 60
_FLATTERS = "flatters: noisy probes became sums of clean ones"

Load = Callable[[Embedder | None, bool], Floats]
"""Returns unit rows, one for each face of a list, with mirror images or without."""


@dataclass(frozen=True)
class MegaFaceBenchmark:
    """Identification and verification of MegaFace; a :class:`~fedface_flwr.protocols.protocol.Benchmark`.

    Attributes
    ----------
    name : str
        As the suite names it.
    probes, distractors : callable
        Load the features.
    identities : ndarray of int64
        The probes' persons.
    probe_noise, distractor_noise : ndarray of bool or None
        Faces on the noise lists; None if no list was given.
    sets : mapping of str to ndarray of int64
        Rows of the distractors of each set.
    flips : tuple of bool
        Which of without and with mirror images are measured; empty for features, which have what they have.
    noise_seed : int
        Of what replaces noisy probes.
    feature_files : str
        Names of the probes' and the distractors' features; empty where pictures are embedded.
    """

    name: str
    probes: Load
    distractors: Load
    identities: npt.NDArray[np.int64]
    probe_noise: Mask | None
    distractor_noise: Mask | None
    sets: Mapping[str, int | npt.NDArray[np.int64]]
    flips: tuple[bool, ...]
    noise_seed: int
    feature_files: str

    packs = ()

    def run(self, embed: Embedder | None) -> Outcome:
        """Take every figure; ConfigError where pictures need a model, DataError if a file is damaged."""
        if self.flips and embed is None:
            raise ConfigError(f"{self.name}: pictures need a model to embed them")
        figures: list[Figure] = []
        curves: list[Curve] = []
        for flip in self.flips or (False,):
            told = _FLIP[flip] if self.flips else _STORED
            for found in self._evaluate(embed, flip):
                figures += self._figures(found, told)
                label = f"{found.distractors} distractors, {found.noise.value}, flip {told}"
                curves.append(Curve(self.name, "cmc", label, np.arange(1.0, len(found.cmc) + 1), found.cmc))
        return Outcome(tuple(figures), tuple(curves))

    def _evaluate(self, embed: Embedder | None, flip: bool) -> list[Finding]:
        try:
            probes = Probes(self.probes(embed, flip), self.identities, self.probe_noise)
            distractors = Distractors(self.distractors(embed, flip), self.sets, self.distractor_noise)
            dims = probes.features.shape[1], distractors.features.shape[1]
            if dims[0] != dims[1]:
                raise DataError(f"probes have {dims[0]} dimensions and distractors {dims[1]}: not of one network")
            with Reporter().bar(f"{self.name}: searching", len(distractors.features)) as advance:
                return evaluate(probes, distractors, seed=self.noise_seed, depth=DEPTH, progress=advance)
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from error

    def _figures(self, found: Finding, flip: str) -> Iterator[Figure]:
        conditions = {"distractors": found.distractors, "noise": found.noise.value, "flip": flip}
        warning = _FLATTERS if found.noise is Noise.REPLACED else ""
        for rank in _RANKS:
            note = NOTE_SEPARATOR.join(filter(None, [warning, self._listed(found.noise) if rank == 1 else ""]))
            value = float(found.cmc[rank - 1])
            yield Figure(self.name, "MegaFace identification", f"rank {rank}", value, conditions, note=note)
        for point in found.verification:
            doubt, decided = roc.doubt(point.target, found.impostors)
            value = point.tar if decided else float("nan")
            note = NOTE_SEPARATOR.join(filter(None, [doubt, warning]))
            metric, ruled = f"TAR at FAR {point.target:.0e}", conditions | {"FAR rule": "at most"}
            yield Figure(self.name, "MegaFace verification", metric, value, ruled, note=note)

    def _listed(self, noise: Noise) -> str:
        if noise is Noise.RAW:
            return ""
        masks = (self.probe_noise, self.distractor_noise)
        probes, distractors = (0 if mask is None else int(np.count_nonzero(mask)) for mask in masks)
        return f"on the noise lists: {numbered(probes, 'probe')} and {numbered(distractors, 'distractor')} in all"


def from_options(name: str, options: Mapping[str, object], root: Path) -> MegaFaceBenchmark:
    """Return the benchmark that a suite describes; lists are read here, and every face of them is looked for.

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
        If a list is damaged, or a feature or a picture that it names is not there.
    """
    read = Options(name, options, root, _OPTIONS)
    pictured = read.given("probe_images")
    for of in ("probe", "distractor"):
        if read.given(f"{of}_images") == read.given(f"{of}_features") or read.given(f"{of}_images") != pictured:
            raise ConfigError(f"{name}: give either probe_images and distractor_images, or the _features of both")
    if read.given("flip") and not pictured:
        raise read.wrong("flip", "features have what they have; only pictures can be mirrored")
    try:
        probes, distractors = read_list(read.file("probes")), read_list(read.file("distractors"))
        identities = identities_of(probes)
        if np.bincount(identities).max() < 2:
            raise DataError(f"{probes.source}: no person has two faces, so no probe has a mate")
        return MegaFaceBenchmark(
            name,
            _loader(read, "probe", probes, name, root),
            _loader(read, "distractor", distractors, name, root),
            identities,
            probe_noise(read.file("probe_noise"), probes) if read.given("probe_noise") else None,
            distractor_noise(read.file("distractor_noise"), distractors) if read.given("distractor_noise") else None,
            _sets(read, options, distractors, root),
            read.flips() if pictured else (),
            read.whole_number("noise_seed", 0, 0, 2**32 - 1),
            "" if pictured else " and ".join(Path(read.text(f"{of}_features")).name for of in ("probe", "distractor")),
        )
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def _loader(read: Options, of: str, faces: FaceList, name: str, root: Path) -> Load:
    if read.given(f"{of}_images"):
        return _from_pictures(read.folder(f"{of}_images"), faces, f"{name} {of}s")
    if read.text(f"{of}_features").endswith(".npy"):
        path = read.file(f"{of}_features")
        return lambda embed, flip: load_matrix(path, faces)
    files = FeatureFiles(read.folder(f"{of}_features"), read.text("ending"), faces)
    cache = root / read.text("feature_cache") if read.given("feature_cache") else None
    return lambda embed, flip: files.load(cache)


def _from_pictures(folder: Path, faces: FaceList, what: str) -> Load:
    files = [folder / face for face in faces.names]
    for index, file in enumerate(files):
        if not os.path.isfile(file):
            raise DataError(f"{faces.where(index)}: there is no picture {file}")

    def load(embed: Embedder | None, flip: bool) -> Floats:
        assert embed is not None
        found = embed(FilePictures(files), flip=flip, what=what)

        def rows(part: slice) -> npt.NDArray[np.floating]:
            own = found.plain[part].astype(np.float64)
            return own if found.mirrored is None else own + found.mirrored[part]

        return unit_matrix(found.plain.shape, rows, lambda row: f"embedding of {files[row]}")

    return load


def _sets(
    read: Options, options: Mapping[str, object], distractors: FaceList, root: Path
) -> dict[str, int | npt.NDArray[np.int64]]:
    """Return the sets of distractors to search: listed ones, or the first or a random choice of each size."""
    if read.given("distractor_lists"):
        return _listed_sets(read, options["distractor_lists"], distractors, root)
    count = len(distractors.names)
    default = [*(size for size in _SIZES if size < count), count]
    sizes = options["sizes"] if read.given("sizes") else default
    if not isinstance(sizes, list) or not 0 < len(sizes) <= _MOST_SETS or any(type(size) is not int for size in sizes):
        raise read.wrong("sizes", f"must be a list of 1 to {_MOST_SETS} whole numbers")
    if len(set(sizes)) < len(sizes) or not all(1 <= size <= count for size in sizes):
        raise read.wrong("sizes", f"must be different numbers from 1 to {count}, the number of distractors")
    if not read.given("subset_seed"):
        return {str(size): size for size in sizes}
    order = np.random.default_rng(read.whole_number("subset_seed", 0, 0, 2**32 - 1)).permutation(count)
    return {str(size): np.sort(order[:size]) for size in sizes}


def _listed_sets(
    read: Options, listed: object, distractors: FaceList, root: Path
) -> dict[str, int | npt.NDArray[np.int64]]:
    if read.given("sizes") or read.given("subset_seed"):
        raise read.wrong("distractor_lists", "says which distractors; sizes and subset_seed would too")
    if (
        not isinstance(listed, list)
        or not 0 < len(listed) <= _MOST_SETS
        or not all(isinstance(at, str) for at in listed)
    ):
        raise read.wrong("distractor_lists", f"must be a list of 1 to {_MOST_SETS} files")
    sets: dict[str, int | npt.NDArray[np.int64]] = {}
    for path in (root / str(at) for at in listed):
        if not path.is_file():
            raise read.wrong("distractor_lists", f"{path} is no file")
        rows = rows_of(read_list(path), distractors)
        sets[f"{len(rows)} ({path.name})"] = rows
    if len(sets) < len(listed):
        raise read.wrong("distractor_lists", "two files have one name and number of faces; rename one")
    return sets
