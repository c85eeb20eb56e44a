# SPDX-License-Identifier: Apache-2.0
"""The table of results over several seeds, in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev

from fedface_flwr.reporting.summary import Summary


def results_table(summaries: Sequence[Summary]) -> str:
    """Return one row for each method and number of local steps: mean and standard deviation over seeds.

    Accuracies are in percent, losses are the final smoothed ones. The deviation is the sample's; one seed has none.
    """
    groups: dict[tuple[str, int], list[Summary]] = defaultdict(list)
    for summary in summaries:
        groups[summary["method"], summary["steps_per_round"]].append(summary)
    packs = sorted({pack for summary in summaries for pack in summary["tests"]})
    silos = sorted({silo for summary in summaries for silo in summary["loss_ema"]})
    head = ["method", "K", "seeds", *(f"{pack}, %" for pack in packs), *(f"loss {silo}" for silo in silos)]
    rows = [head, ["---", *("---:" for _ in head[1:])]]
    for (method, steps), group in groups.items():
        accuracies = [[100 * s["tests"][pack]["accuracy"] for s in group if pack in s["tests"]] for pack in packs]
        losses = [[s["loss_ema"].get(silo) for s in group] for silo in silos]
        figures = [*(_spread(a, 1) for a in accuracies), *(_spread(x, 2) for x in losses)]
        rows.append([method, str(steps), str(len(group)), *figures])
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def _spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    mean = f"{fmean(known):.{digits}f}"
    return f"{mean} ± {stdev(known):.{digits}f}" if len(known) > 1 else mean
