# SPDX-License-Identifier: Apache-2.0
"""IJB-B and IJB-C, 1:1 and 1:N, from the public meta files and loose crops or a feature matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import Outcome
from fedface_flwr.evaluation.pictures import Embedder
from fedface_flwr.evaluation.templates import ALL_FLAGS, Features, Flags, Floats, template_features
from fedface_flwr.protocols.ijb_features import BOTH, PLAIN, loose_crops, open_matrix
from fedface_flwr.protocols.ijb_files import (
    GALLERIES,
    FaceList,
    Ints,
    read_faces,
    read_gallery,
    read_pairs,
    required_files,
)
from fedface_flwr.protocols.ijb_identification import Identification, identify_templates
from fedface_flwr.protocols.ijb_verification import FAR_RULES, verify_templates
from fedface_flwr.protocols.pairs_options import Options
from fedface_flwr.wording import numbered

TASKS = ("1:1", "1:N")

_OPTIONS = ("protocol", "meta", "images", "features", "layout", "tasks", "flags", "far_rules")


@dataclass(frozen=True)
class IjbBenchmark:
    """IJB-B or IJB-C; a :class:`~fedface_flwr.protocols.protocol.Benchmark`.

    Attributes
    ----------
    name : str
        As the suite names it.
    protocol : str
        ``B`` or ``C``.
    meta : Path
        Folder of the meta files.
    images, features : Path or None
        Folder of the loose crops, or the feature matrix; one of both.
    layout : str
        Of the feature matrix, see :func:`~fedface_flwr.protocols.ijb_features.open_matrix`.
    tasks : tuple of str
        Of ``1:1`` and ``1:N``.
    flags : tuple of Flags
        The combinations to measure.
    far_rules : tuple of str
        Rules by which TAR at FAR is taken.
    """

    name: str
    protocol: str
    meta: Path
    images: Path | None
    features: Path | None
    layout: str
    tasks: tuple[str, ...]
    flags: tuple[Flags, ...]
    far_rules: tuple[str, ...]

    packs = ()

    @property
    def feature_files(self) -> str:
        """Name of the feature matrix; empty where loose crops are embedded."""
        return "" if self.features is None else self.features.name

    def run(self, embed: Embedder | None) -> Outcome:
        """Take every figure of the tasks; ConfigError without model or matrix, DataError if a file is damaged.

        Of two tasks, one whose lists cannot be used does not take the other's figures with it.
        """
        listed = read_faces(self.meta, self.protocol)
        plain, mirrored = self._features(listed, embed)
        templates, pooled = template_features(plain, mirrored, listed.faces, self.flags)
        del plain, mirrored
        outcomes: list[Outcome] = []
        failures: dict[str, str] = {}
        for task in self.tasks:
            try:
                outcomes.append(self._measure(task, templates, pooled))
            except DataError as error:
                failures[task] = str(error)
        if not outcomes:
            raise DataError("; ".join(failures.values()))
        return Outcome(
            tuple(figure for outcome in outcomes for figure in outcome.figures),
            tuple(curve for outcome in outcomes for curve in outcome.curves),
            failures,
        )

    def _measure(self, task: str, templates: Ints, pooled: Mapping[Flags, Floats]) -> Outcome:
        title = f"IJB-{self.protocol}"
        if task == "1:1":
            pairs = read_pairs(self.meta, self.protocol, templates)
            return verify_templates(self.name, title, pooled, pairs, self.far_rules)
        return identify_templates(self.name, title, pooled, self._identification(templates))

    def _features(self, listed: FaceList, embed: Embedder | None) -> tuple[Features, Features | None]:
        if self.features is not None:
            plain, mirrored = open_matrix(self.features, self.layout)
            if len(plain) != len(listed.names):
                raise DataError(
                    f"{self.features}: {numbered(len(plain), 'row')}, but {numbered(len(listed.names), 'face')} listed"
                )
            return plain, mirrored
        if embed is None or self.images is None:
            raise ConfigError(f"{self.name}: loose crops need a model to embed them")
        flip = any(flags.flip for flags in self.flags)
        embedded = embed(loose_crops(self.images, listed), flip=flip, what=self.name)
        return embedded.plain, embedded.mirrored

    def _identification(self, templates: Ints) -> Identification:
        galleries = {name: read_gallery(self.meta, self.protocol, name, templates) for name in GALLERIES[self.protocol]}
        return Identification(templates, galleries, read_gallery(self.meta, self.protocol, "probe_mixed", templates))


def from_options(name: str, options: Mapping[str, object], root: Path) -> IjbBenchmark:
    """Return the benchmark that a suite describes; that its files are there, and a matrix is one, is checked here.

    Parameters
    ----------
    name : str
        As the suite names it.
    options : mapping
        As documented in ``docs/evaluation-ijb.md``.
    root : Path
        Folder that relative paths are against.

    Raises
    ------
    ConfigError
        If an option is unknown, missing or wrong, or a file is not there.
    DataError
        If the feature matrix is none.
    """
    read = Options(name, options, root, _OPTIONS)
    protocol, meta = read.choice("protocol", tuple(GALLERIES)), read.folder("meta")
    if read.given("images") == read.given("features"):
        raise ConfigError(f"{name}: give images, a folder of loose crops, or features, a .npy matrix, and not both")
    images = read.folder("images") if read.given("images") else None
    features = read.file("features") if read.given("features") else None
    if images is not None and read.given("layout"):
        raise read.wrong("layout", "is of a feature matrix; images have none")
    layout = read.choice("layout", (PLAIN, BOTH), BOTH)
    tasks = read.choices("tasks", TASKS, TASKS[:1])
    known = [flags.name for flags in ALL_FLAGS if layout == BOTH or not flags.flip]
    flags = tuple(Flags.parse(flag) for flag in read.choices("flags", known, known))
    rules = read.choices("far_rules", FAR_RULES, FAR_RULES)
    try:
        required_files(meta, protocol, tasks)
        if features is not None:
            open_matrix(features, layout)
    except (ConfigError, DataError) as error:
        raise type(error)(f"{name}: {error}") from error
    return IjbBenchmark(name, protocol, meta, images, features, layout, tasks, flags, rules)
