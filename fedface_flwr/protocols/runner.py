# SPDX-License-Identifier: Apache-2.0
"""Running the benchmarks of a suite on one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from fedface_flwr.errors import FedFaceError
from fedface_flwr.evaluation.figures import FEATURES, Curve, Figure
from fedface_flwr.evaluation.pictures import Embedder
from fedface_flwr.protocols.protocol import Benchmark
from fedface_flwr.protocols.steering import noted
from fedface_flwr.wording import numbered


@dataclass(frozen=True)
class Evaluation:
    """What a suite's benchmarks found out.

    Attributes
    ----------
    figures, curves
        Of all benchmarks, in the suite's order.
    failures : dict of str to str
        Benchmarks, or parts of them, that could not be run, and why.
    seconds : dict of str to float
        How long each benchmark took.
    """

    figures: tuple[Figure, ...]
    curves: tuple[Curve, ...]
    failures: dict[str, str]
    seconds: dict[str, float]


def evaluate(
    benchmarks: Sequence[Benchmark],
    embed: Embedder | None,
    say: Callable[[str], None],
    notes: Mapping[str, str] | None = None,
) -> Evaluation:
    """Run benchmarks one after the other; one that fails does not take the others' figures with it.

    Figures of feature files say so by a condition that names them.

    Parameters
    ----------
    benchmarks : sequence of Benchmark
        Of one suite.
    embed : Embedder or None
        None where there is no model.
    say : callable
        Takes a line for the user when a benchmark is over.
    notes : mapping of str to str, optional
        By benchmark, that its packs steered the model, which all its figures' notes are to say.
    """
    notes = notes or {}
    figures: list[Figure] = []
    curves: list[Curve] = []
    failures: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for benchmark in benchmarks:
        began = perf_counter()
        try:
            outcome = benchmark.run(embed)
        except FedFaceError as error:
            _fail(benchmark.name, benchmark.name, str(error), failures, say)
            continue
        finally:
            seconds[benchmark.name] = perf_counter() - began
        figures += _told(outcome.figures, benchmark.feature_files, notes)
        curves += outcome.curves
        for part, reason in outcome.failures.items():
            _fail(f"{benchmark.name} {part}", benchmark.name, reason, failures, say)
        say(f"{benchmark.name}: {numbered(len(outcome.figures), 'figure')} in {seconds[benchmark.name]:.1f} s")
    return Evaluation(tuple(figures), tuple(curves), failures, seconds)


def _fail(what: str, benchmark: str, reason: str, failures: dict[str, str], say: Callable[[str], None]) -> None:
    failures[what] = reason.removeprefix(f"{benchmark}: ")
    say(f"{what}: failed: {failures[what]}")


def _told(figures: Sequence[Figure], feature_files: str, notes: Mapping[str, str]) -> Iterator[Figure]:
    source = {FEATURES: feature_files} if feature_files else {}
    for figure in figures:
        yield noted(replace(figure, conditions=figure.conditions | source), notes)
