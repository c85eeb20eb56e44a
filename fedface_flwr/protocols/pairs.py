# SPDX-License-Identifier: Apache-2.0
"""Face verification on pairs: LFW, CFP-FP, AgeDB-30, CALFW, CPLFW and one's own, in each form that they come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import Outcome
from fedface_flwr.evaluation.pair_figures import FAR_RULES, ScoredPairs, distances_of, measure
from fedface_flwr.evaluation.pictures import Embedded, Embedder
from fedface_flwr.protocols.pairs_calfw import read_calfw_pairs
from fedface_flwr.protocols.pairs_cfp import PROTOCOLS, read_cfp_pairs
from fedface_flwr.protocols.pairs_csv import read_csv_pairs
from fedface_flwr.protocols.pairs_landmarks import with_landmarks, without_landmarks
from fedface_flwr.protocols.pairs_lfw import read_lfw_pairs
from fedface_flwr.protocols.pairs_list import read_list_pairs
from fedface_flwr.protocols.pairs_options import Options
from fedface_flwr.protocols.pairs_pack import read_pack_pairs
from fedface_flwr.protocols.pairs_set import FOLDS, Pairs
from fedface_flwr.wording import numbered

_OF_EVERY_FORMAT = ("format", "flip", "far_rules")
_OF_FORMAT = {
    "pack": ("file", "folds"),
    "lfw": ("file", "images", "extension", "folds", "landmarks"),
    "cfp": ("folder", "protocol", "images", "landmarks"),
    "calfw": ("file", "images", "folds", "landmarks"),
    "list": ("file", "images", "folds", "landmarks"),
    "csv": ("file", "images", "folds", "landmarks"),
}
_FLIP = {False: "none", True: "added"}


@dataclass(frozen=True)
class PairsBenchmark:
    """Verification on one set of pairs; a :class:`~fedface_flwr.protocols.protocol.Benchmark`.

    Attributes
    ----------
    name : str
        As the suite names it.
    load : callable
        Reads the pairs; called when they are needed, so that a suite does not hold all of its sets at once.
    flips : tuple of bool
        Which of without and with mirror images are measured.
    far_rules : tuple of str
        Rules by which TAR at FAR is taken.
    packs : tuple of Path
        The pack, where the pairs are one.
    """

    name: str
    load: Callable[[], Pairs]
    flips: tuple[bool, ...]
    far_rules: tuple[str, ...]
    packs: tuple[Path, ...]

    feature_files = ""

    def run(self, embed: Embedder | None) -> Outcome:
        """Embed the pictures and take every figure; ConfigError without a model, DataError if a file is damaged."""
        if embed is None:
            raise ConfigError(f"{self.name}: pairs of pictures need a model to embed them")
        pairs = self.load()
        embedded = embed(pairs.pictures, flip=any(self.flips), what=self.name)
        try:
            outcomes = [self._measure(pairs, embedded, flip) for flip in self.flips]
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from error
        return Outcome(
            tuple(figure for outcome in outcomes for figure in outcome.figures),
            tuple(curve for outcome in outcomes for curve in outcome.curves),
        )

    def _measure(self, pairs: Pairs, embedded: Embedded, flip: bool) -> Outcome:
        distances = distances_of(embedded if flip else replace(embedded, mirrored=None), pairs.left, pairs.right)
        scored = ScoredPairs(distances, pairs.same, pairs.fold, pairs.folds, pairs.folding)
        return measure(self.name, scored, flip=_FLIP[flip], far_rules=self.far_rules)


def from_options(name: str, options: Mapping[str, object], root: Path) -> PairsBenchmark:
    """Return the benchmark that a suite describes; its files are read once here.

    Parameters
    ----------
    name : str
        As the suite names it.
    options : mapping
        As documented in ``docs/evaluation.md``.
    root : Path
        Folder that relative paths are against.

    Raises
    ------
    ConfigError
        If an option is unknown, missing or wrong.
    DataError
        If a file is damaged, or a picture that it names is not there.
    """
    every = {*_OF_EVERY_FORMAT, *(key for keys in _OF_FORMAT.values() for key in keys)}
    kind = Options(name, options, root, sorted(every)).choice("format", tuple(_OF_FORMAT))
    read = Options(name, options, root, (*_OF_EVERY_FORMAT, *_OF_FORMAT[kind]))
    load = _loader(kind, read)
    if read.given("landmarks"):
        load = with_landmarks(load, read.file("landmarks"), read.folder("images"))
    elif "landmarks" in _OF_FORMAT[kind]:
        load = without_landmarks(load)
    packs = (read.file("file"),) if kind == "pack" else ()
    benchmark = PairsBenchmark(name, load, read.flips(), read.choices("far_rules", FAR_RULES, FAR_RULES[:1]), packs)
    try:
        _check(load(), read.text("folder" if kind == "cfp" else "file"))
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    return benchmark


def _loader(kind: str, read: Options) -> Callable[[], Pairs]:
    folds = read.whole_number("folds", FOLDS, 2, 10_000)
    # Files that have folds of their own refuse a number that is asked for.
    asked = folds if read.given("folds") else None
    if kind == "cfp":
        images = read.folder("images") if read.given("images") else None
        folder, protocol = read.folder("folder"), read.choice("protocol", PROTOCOLS)
        return lambda: read_cfp_pairs(folder, protocol, images)
    file = read.file("file")
    if kind == "pack":
        return lambda: read_pack_pairs(file, folds)
    images = read.folder("images")
    if kind == "lfw":
        extension = read.text("extension", "jpg").removeprefix(".")
        return lambda: read_lfw_pairs(file, images, extension, asked)
    if kind == "csv":
        return lambda: read_csv_pairs(file, images, asked)
    if kind == "calfw":
        return lambda: read_calfw_pairs(file, images, asked)
    return lambda: read_list_pairs(file, images, folds)


def _check(pairs: Pairs, source: str) -> None:
    if pairs.same.all() or not pairs.same.any():
        raise DataError(f"{source}: {numbered(len(pairs.same), 'pair')}, all of one kind, so nothing can be verified")
