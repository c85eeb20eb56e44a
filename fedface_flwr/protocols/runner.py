# SPDX-License-Identifier: Apache-2.0
"""Running the benchmarks of a suite on one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from fedface_flwr.errors import FedFaceError
from fedface_flwr.evaluation.figures import Curve, Figure
from fedface_flwr.evaluation.pictures import Embedder
from fedface_flwr.protocols.protocol import Benchmark


@dataclass(frozen=True)
class Evaluation:
    """What a suite's benchmarks found out.

    Attributes
    ----------
    figures, curves
        Of all benchmarks, in the suite's order.
    failures : dict of str to str
        Benchmarks that could not be run, and why.
    seconds : dict of str to float
        How long each benchmark took.
    """

    figures: tuple[Figure, ...]
    curves: tuple[Curve, ...]
    failures: dict[str, str]
    seconds: dict[str, float]


def evaluate(benchmarks: Sequence[Benchmark], embed: Embedder | None, say: Callable[[str], None]) -> Evaluation:
    """Run benchmarks one after the other; one that fails does not take the others' figures with it.

    Parameters
    ----------
    benchmarks : sequence of Benchmark
        Of one suite.
    embed : Embedder or None
        None where there is no model.
    say : callable
        Takes a line for the user when a benchmark is over.
    """
    figures: list[Figure] = []
    curves: list[Curve] = []
    failures: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for benchmark in benchmarks:
        began = perf_counter()
        try:
            outcome = benchmark.run(embed)
        except FedFaceError as error:
            failures[benchmark.name] = str(error)
            say(f"{benchmark.name}: failed: {error}")
            continue
        finally:
            seconds[benchmark.name] = perf_counter() - began
        figures += outcome.figures
        curves += outcome.curves
        say(f"{benchmark.name}: {len(outcome.figures)} figures in {seconds[benchmark.name]:.1f} s")
    return Evaluation(tuple(figures), tuple(curves), failures, seconds)
