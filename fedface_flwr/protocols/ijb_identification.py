# SPDX-License-Identifier: Apache-2.0
"""IJB 1:N: probes searched in two galleries, each by the protocol, and in both merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedface_flwr.evaluation import roc
from fedface_flwr.evaluation.figures import NOTE_SEPARATOR, Curve, Figure, Outcome
from fedface_flwr.evaluation.identification import (
    OpenSet,
    cmc,
    pooled_place,
    tpir_at_fpir,
    tpir_at_fpir_pooled,
    tpir_curve,
)
from fedface_flwr.evaluation.search import Search, search
from fedface_flwr.evaluation.templates import Flags, Floats
from fedface_flwr.protocols.ijb_files import Gallery, Ints

RANKS = (1, 5, 10)
FPIRS = (0.1, 0.01)

_BY_SEARCH = "non-mated searches"
_BY_PAIR = "pairs of strangers, pooled"


@dataclass(frozen=True)
class Identification:
    """The lists of a 1:N protocol.

    Attributes
    ----------
    templates : ndarray of int64, shape (templates,)
        The templates that have features, ascending.
    galleries : dict of str to Gallery
        By name.
    probes : Gallery
        The mixed probes.
    """

    templates: Ints
    galleries: dict[str, Gallery]
    probes: Gallery

    def merged(self) -> Gallery:
        """Return all galleries as one; a template of several is in it once."""
        couples = np.unique(
            np.concatenate([np.stack([part.templates, part.subjects], axis=1) for part in self.galleries.values()]),
            axis=0,
        )
        return Gallery(couples[:, 0], couples[:, 1])


def identify_templates(
    benchmark: str, protocol: str, features: Mapping[Flags, Floats], lists: Identification
) -> Outcome:
    """Measure identification of templates: rank 1, 5, 10 and TPIR at FPIR 0.1 and 0.01.

    Each gallery is searched on its own, as the protocol has it (Maze et al., IARPA Janus Benchmark-C, ICB 2018,
    section 4.2): probes whose subject is in the other gallery are the non-mated searches that FPIR counts. Their mean
    is the protocol's figure. Merged, as in insightface's ``ijb_1n.py``, every probe has a mate and no search is
    non-mated; what that script calls FPIR counts pairs of strangers instead, and is named so.
    """
    figures: list[Figure] = []
    curves: list[Curve] = []
    for flags, vectors in features.items():
        by_gallery = {name: _search(vectors, lists, part, 0) for name, part in lists.galleries.items()}
        most = max(pooled_place(len(lists.probes.templates), target) for target in FPIRS)
        merged = _search(vectors, lists, lists.merged(), most)
        for gallery, one in (*_each(by_gallery), *_merged(merged)):
            conditions = {"N/D/F": flags.name, "gallery": gallery, **one.conditions}
            figures.append(Figure(benchmark, f"{protocol} 1:N", one.metric, one.value, conditions, note=one.note))
        for name, found in (*by_gallery.items(), ("merged", merged)):
            rates = cmc(found, 20)
            curves.append(Curve(benchmark, "cmc", f"{flags.name}, {name}", np.arange(1.0, len(rates) + 1), rates))
            if not found.mated.all():
                curves.append(Curve(benchmark, "tpir", f"{flags.name}, {name}", *tpir_curve(found)))
    return Outcome(tuple(figures), tuple(curves))


def _search(vectors: Floats, lists: Identification, gallery: Gallery, strongest: int) -> Search:
    rows, probes = (np.searchsorted(lists.templates, part.templates) for part in (gallery, lists.probes))
    return search(vectors[probes], lists.probes.subjects, vectors[rows], gallery.subjects, strongest=strongest)


@dataclass(frozen=True)
class _Rate:
    """One figure of a search, before it is named after benchmark and gallery."""

    metric: str
    value: float
    conditions: dict[str, str]
    note: str = ""


def _each(found: Mapping[str, Search]) -> Iterator[tuple[str, _Rate]]:
    """Yield every figure of each gallery, and their means."""
    by_gallery = {
        name: [*_ranks(one), *_open(tpir_at_fpir(one, FPIRS), _BY_SEARCH, int(np.count_nonzero(~one.mated)))]
        for name, one in found.items()
    }
    for name, rates in by_gallery.items():
        for rate in rates:
            yield name, rate
    mean = f"mean of {' and '.join(found)}"
    for same in zip(*by_gallery.values(), strict=True):
        value = sum(rate.value for rate in same) / len(same)
        notes = [f"{name}: {rate.note}" for name, rate in zip(found, same, strict=True) if rate.note]
        yield mean, _Rate(same[0].metric, value, same[0].conditions, NOTE_SEPARATOR.join(notes))


def _merged(found: Search) -> Iterator[tuple[str, _Rate]]:
    if found.mated.all():
        points = _open(tpir_at_fpir_pooled(found, FPIRS), _BY_PAIR, len(found.rank), ("probe", "probes"))
    else:
        points = _open(tpir_at_fpir(found, FPIRS), _BY_SEARCH, int(np.count_nonzero(~found.mated)))
    for rate in (*_ranks(found), *points):
        yield "merged", rate


def _ranks(found: Search) -> Iterator[_Rate]:
    rates = cmc(found, max(RANKS))
    for rank in RANKS:
        yield _Rate(f"rank {rank}", float(rates[rank - 1]), {})


def _open(
    points: Sequence[OpenSet],
    counted: str,
    searches: int,
    of: tuple[str, str] = ("non-mated search", "non-mated searches"),
) -> Iterator[_Rate]:
    for point in points:
        note, decided = roc.doubt(point.target, searches, of, "an FPIR")
        value = point.tpir if decided else float("nan")
        yield _Rate(f"TPIR at FPIR {point.target:g}", value, {"FPIR of": counted}, note)
