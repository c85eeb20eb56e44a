# SPDX-License-Identifier: Apache-2.0
"""From what a run's loop knows at its end to the run's summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, cast

from fedface_flwr.reporting.summary import Account, Summary, TestFigures

Tests = Mapping[str, Mapping[str, float]]


def make_account(seconds: Mapping[str, float], startup: float, total: float) -> Account:
    """Return where a run's wall time went; ``other`` is what is left of ``total``.

    Parameters
    ----------
    seconds : mapping of str to float
        ``training``, ``validation`` and ``testing``.
    startup : float
        From the launch until every party had a node.
    total : float
        From the launch until the tests were done.
    """
    training, validation, testing = (seconds[name] for name in ("training", "validation", "testing"))
    return Account(
        flower_startup=startup,
        training=training,
        validation=validation,
        testing=testing,
        other=total - startup - training - validation - testing,
        total=total,
    )


def make_figures(figures: Mapping[str, float]) -> TestFigures:
    """Return a pack's figures as the summary holds them."""
    return cast(TestFigures, {**figures, "pairs": int(figures["pairs"])})


def mean_tests(models: Iterable[Tests]) -> dict[str, TestFigures]:
    """Return each pack's figures averaged over several models."""
    listed = list(models)
    return {
        pack: make_figures({name: fmean(model[pack][name] for model in listed) for name in listed[0][pack]})
        for pack in listed[0]
    }


def merge_halves(halves: Sequence[Summary]) -> Summary:
    """Return one summary of the same run made with each half of the folds: figures averaged, costs added.

    Raises
    ------
    ValueError
        If the halves are not of one method.
    """
    if len({half["method"] for half in halves}) != 1:
        raise ValueError("halves of different methods cannot be merged")
    merged: dict[str, Any] = {
        **halves[0],
        "fold_half": "both",
        "seconds": sum(half["seconds"] for half in halves),
        "account": _by_name([half["account"] for half in halves], sum),
        "bytes_sent": _by_name([half["bytes_sent"] for half in halves], sum),
        "loss_ema": _by_name([half["loss_ema"] for half in halves], fmean),
        "weights": _by_name([half["weights"] for half in halves], fmean),
        "tests": mean_tests(cast(Any, [half["tests"] for half in halves])),
    }
    if "tests_by_silo" in halves[0]:
        silos = halves[0]["tests_by_silo"]
        merged["tests_by_silo"] = {
            silo: mean_tests(cast(Any, [half["tests_by_silo"][silo] for half in halves])) for silo in silos
        }
    return cast(Summary, merged)


def _by_name(parts: Sequence[Any], combine: Callable[[Iterable[Any]], Any]) -> dict[str, Any]:
    return {name: combine([part[name] for part in parts]) for name in parts[0]}
