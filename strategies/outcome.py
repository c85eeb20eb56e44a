# SPDX-License-Identifier: Apache-2.0
"""What a finished loop has to show."""

from __future__ import annotations

from fedface_flwr.reporting.outcome import make_account, make_figures, mean_tests
from fedface_flwr.reporting.summary import Summary
from strategies.fedavg import GLOBAL
from strategies.round_loop import RoundLoop


def summarise(loop: RoundLoop, *, launched: float, ready: float, ended: float) -> Summary:
    """Return the summary of a finished loop.

    Parameters
    ----------
    loop : RoundLoop
        All rounds and tests done.
    launched, ready, ended : float
        When the run was launched, when every party had a node, and when the tests were done, in seconds of one clock.
    """
    config = loop.config
    # In the configured order, whoever answered first.
    tests = {name: {pack: packs[pack] for pack in config.data.testers} for name, packs in loop.tests.items()}
    summary = Summary(
        method=config.strategy.name,
        seed=config.seed,
        rounds=config.training.rounds,
        steps_per_round=config.training.steps_per_round,
        seconds=ended - launched,
        loss_ema=dict(sorted(loop.loss_ema.items())),
        bytes_sent=dict(sorted(loop.bytes_sent.items())),
        tests=mean_tests(tests.values()),
        account=make_account(loop.seconds, ready - launched, ended - launched),
        weights=loop.weights_by_name,
        fold_half=loop.half,
    )
    if loop.rejected:
        summary["rejected"] = dict(sorted(loop.rejected.items()))
    if set(tests) - {GLOBAL}:
        summary["tests_by_silo"] = {
            silo: {pack: make_figures(figures) for pack, figures in packs.items()} for silo, packs in tests.items()
        }
    return summary
