# SPDX-License-Identifier: Apache-2.0
"""RFW (Wang et al.: Racial Faces in the Wild, ICCV 2019): verification of four groups, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import Figure, Outcome
from fedface_flwr.evaluation.pair_figures import FAR_RULES, ScoredPairs, distances_of, measure
from fedface_flwr.evaluation.pictures import Embedder
from fedface_flwr.protocols.pairs_options import Options
from fedface_flwr.protocols.pairs_pack import read_pack_pairs
from fedface_flwr.protocols.pairs_set import CONSECUTIVE, Album, Pairs, consecutive, text_lines, whole_number
from fedface_flwr.wording import numbered

RACES = ("African", "Asian", "Caucasian", "Indian")
_FOLDS = 10
_LONGEST = 100
_FLIP = {False: "none", True: "added"}
_OF_FORMAT = {"tree": ("folder", "images", "extension"), "packs": ("folder", "ending")}


@dataclass(frozen=True)
class RfwBenchmark:
    """RFW's four verification sets; a :class:`~fedface_flwr.protocols.protocol.Benchmark`.

    Attributes
    ----------
    name : str
        As the suite names it.
    loads : mapping of str to callable
        Reads the pairs of each race, when they are needed.
    flips : tuple of bool
        Which of without and with mirror images are measured.
    far_rules : tuple of str
        Rules by which TAR at FAR is taken.
    packs : tuple of Path
        The races' packs, where the pairs are such.
    """

    name: str
    loads: Mapping[str, Callable[[], Pairs]]
    flips: tuple[bool, ...]
    far_rules: tuple[str, ...]
    packs: tuple[Path, ...]

    feature_files = ""

    def run(self, embed: Embedder | None) -> Outcome:
        """Take every figure; ConfigError without a model, DataError if a file is damaged."""
        if embed is None:
            raise ConfigError(f"{self.name}: pairs of pictures need a model to embed them")
        outcomes = [outcome for race, load in self.loads.items() for outcome in self._of_race(embed, race, load())]
        figures = [figure for outcome in outcomes for figure in outcome.figures]
        return Outcome(
            (*figures, *between_races(self.name, figures)),
            tuple(curve for outcome in outcomes for curve in outcome.curves),
        )

    def _of_race(self, embed: Embedder, race: str, pairs: Pairs) -> Iterator[Outcome]:
        embedded = embed(pairs.pictures, flip=any(self.flips), what=f"{self.name} {race}")
        for flip in self.flips:
            try:
                distances = distances_of(
                    embedded if flip else replace(embedded, mirrored=None), pairs.left, pairs.right
                )
                scored = ScoredPairs(distances, pairs.same, pairs.fold, pairs.folds, pairs.folding)
                found = measure(self.name, scored, flip=_FLIP[flip], far_rules=self.far_rules)
            except DataError as error:
                raise DataError(f"{self.name}: {race}: {error}") from error
            yield Outcome(
                tuple(replace(figure, conditions={"race": race} | figure.conditions) for figure in found.figures),
                tuple(replace(curve, label=f"{race}, {curve.label}") for curve in found.curves),
            )


def between_races(benchmark: str, figures: Sequence[Figure]) -> Iterator[Figure]:
    """Compare the cross-validated accuracies of the races, for each flip and threshold rule.

    The standard deviation is given over the races as the whole population and, as TFace's ``verification_rfw.py`` and
    the tables of Wang and Deng (CVPR 2020) have it, as a sample of four. Their skewed error ratio is the highest error
    rate divided by the lowest.

    Parameters
    ----------
    benchmark : str
        As the suite names it.
    figures : sequence of Figure
        All figures of all races, with a condition ``race``.
    """
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, float]] = {}
    for figure in figures:
        if figure.metric == "accuracy" and "folds" in figure.conditions:
            rest = tuple(item for item in figure.conditions.items() if item[0] != "race")
            alike.setdefault((figure.protocol, rest), {})[figure.conditions["race"]] = figure.value
    for (protocol, rest), accuracies in alike.items():
        values, conditions = np.array(list(accuracies.values())), {"races": str(len(accuracies))} | dict(rest)
        yield Figure(benchmark, protocol, "mean accuracy of races", float(values.mean()), conditions)
        for kind, freedom in (("population", 0), ("sample", 1)):
            deviated = conditions | {"deviation": kind}
            value = float(values.std(ddof=freedom))
            yield Figure(benchmark, protocol, "standard deviation of accuracy over races", value, deviated)
        yield _skewed_error_ratio(benchmark, protocol, accuracies, conditions)


def _skewed_error_ratio(
    benchmark: str, protocol: str, accuracies: Mapping[str, float], conditions: dict[str, str]
) -> Figure:
    worst, best = min(accuracies, key=accuracies.__getitem__), max(accuracies, key=accuracies.__getitem__)
    least = 1 - accuracies[best]
    if least:
        ratio, note = (1 - accuracies[worst]) / least, f"{worst} over {best}; a ratio, not a share"
    else:
        ratio, note = float("nan"), f"not defined: there is no error on {best}"
    return Figure(benchmark, protocol, "skewed error ratio", ratio, conditions, note=note)


def read_rfw_pairs(path: Path, images: Path, extension: str) -> Pairs:
    """Read ``RACE_pairs.txt`` over a tree ``m.0abc/m.0abc_0001.jpg``.

    ``NAME n1 n2`` is a pair of one person and ``NAME1 n1 NAME2 n2`` one of two, as in LFW's list but without its first
    line; folds are consecutive tenths.

    Raises
    ------
    DataError
        If a line is not of this form, there are fewer pairs than folds, or a picture is not there.
    """
    album = Album(path)
    for number, line in text_lines(path):
        where, fields = f"line {number}", line.split()
        if len(fields) not in (3, 4):
            raise DataError(f"{path}: {where}: {line[:80]!r} is neither NAME n1 n2 nor NAME1 n1 NAME2 n2")
        same = len(fields) == 3
        names, numbers = (fields[:1] * 2, fields[1:]) if same else (fields[::2], fields[1::2])
        for name in names:
            if "/" in name or name.startswith("..") or not name.isprintable() or len(name) > _LONGEST:
                raise DataError(f"{path}: {where}: {name[:80]!r} is no folder's name")
        left, right = (
            images / name / f"{name}_{whole_number(text, 0, f'{path}: {where}'):04d}.{extension}"
            for name, text in zip(names, numbers, strict=True)
        )
        album.add(left, right, same, where)
    return album.pairs(consecutive(path, len(album.same), _FOLDS), CONSECUTIVE)


def from_options(name: str, options: Mapping[str, object], root: Path) -> RfwBenchmark:
    """Return the benchmark that a suite describes; its files are read once here.

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
        If a file is damaged, or a picture that it names is not there.
    """
    every = {"format", "flip", "far_rules", *(key for keys in _OF_FORMAT.values() for key in keys)}
    kind = Options(name, options, root, sorted(every)).choice("format", tuple(_OF_FORMAT), "tree")
    read = Options(name, options, root, ("format", "flip", "far_rules", *_OF_FORMAT[kind]))
    loads = {race: _loader(kind, read, race) for race in RACES}
    for race, load in loads.items():
        try:
            pairs = load()
            if pairs.same.all() or not pairs.same.any():
                told = f"{numbered(len(pairs.same), 'pair')}, all of one kind, so nothing can be verified"
                raise DataError(f"{read.folder('folder')}: {told}")
        except DataError as error:
            raise DataError(f"{name}: {race}: {error}") from error
    packs = tuple(_pack(read, race) for race in RACES) if kind == "packs" else ()
    return RfwBenchmark(name, loads, read.flips(), read.choices("far_rules", FAR_RULES, FAR_RULES[:1]), packs)


def _pack(read: Options, race: str) -> Path:
    return read.folder("folder") / f"{race}{read.text('ending', '_test.bin')}"


def _loader(kind: str, read: Options, race: str) -> Callable[[], Pairs]:
    folder = read.folder("folder")
    if kind == "packs":
        pack = _pack(read, race)
        return lambda: read_pack_pairs(pack, _FOLDS)
    pairs = folder / "txts" / race / f"{race}_pairs.txt"
    images = (read.folder("images") if read.given("images") else folder / "data") / race
    extension = read.text("extension", "jpg").removeprefix(".")
    return lambda: read_rfw_pairs(pairs, images, extension)
