# SPDX-License-Identifier: Apache-2.0
"""A finished run as PNG plots and one HTML page that needs no server and no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.verification import FAR_TARGETS
from fedface_flwr.files import write_text
from fedface_flwr.reporting.history import History
from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.page import page, paragraph, picture, section, table
from fedface_flwr.reporting.plots import run_figures, save_png, to_svg
from fedface_flwr.reporting.progress import number, percent, shown_tar
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import Account, Summary, TestFigures, read_summary
from fedface_flwr.wording import numbered

OTHER_LIMIT = 0.10
"""Share of the wall time that a run may spend outside of its phases and Flower's start-up."""

_FOLDS = {"first": "5 folds", "second": "5 folds", "both": "5 folds, both halves averaged"}
_CAPTIONS = {
    "loss": "Training loss of each silo: every round thin, exponentially smoothed bold.",
    "accuracy": "Accuracy of each silo's classifier on its own training faces, without margin; below it, "
    "where there is Federated Validation, each validator's score of the chosen candidate.",
    "weights": "Weights of the average: lines as used by each round, dots after each validation round.",
}


def write_report(run_dir: Path) -> Path:
    """Write plots and ``report.html`` of a finished run.

    Parameters
    ----------
    run_dir
        The run's folder, with its configuration, event log and summary.

    Returns
    -------
    Path
        The report.

    Raises
    ------
    DataError
        One of the three files is missing or damaged.
    """
    folder = RunFolder(run_dir)
    summary, config = read_summary(folder.summary), _read_config(folder.config)
    history = History(read_metrics(folder.metrics))
    figures = run_figures(history)
    for name, figure in figures.items():
        save_png(figure, folder.plot(name))
    pictures = [
        picture(to_svg(figure, name, f"Line plot of {name} over training rounds."), _CAPTIONS[name])
        for name, figure in figures.items()
    ]
    body = [
        *_head(summary, history),
        *_warnings(history.warnings),
        _tests(summary),
        _silos(summary, history),
        section("Curves", *pictures),
        *_validation(history),
        _account(summary["account"]),
        section("Configuration", f"<details><summary>config.yaml</summary><pre>{escape(config)}</pre></details>"),
    ]
    write_text(folder.report, page(f"{summary['method']}, seed {summary['seed']}", body))
    return folder.report


def megabytes(count: int | float) -> str:
    """Format bytes in MB, 10^6 bytes."""
    return f"{count / 1e6:.1f}"


def enumeration(names: Sequence[str]) -> str:
    """Join names as English does: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _read_config(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such configuration; a run writes it when it starts") from error


def _head(summary: Summary, history: History) -> list[str]:
    results = [f"{percent(figures['accuracy'])} on {pack}" for pack, figures in summary["tests"].items()]
    silos = history.trainers
    plan = f"{numbered(summary['rounds'], 'round')} of {numbered(summary['steps_per_round'], 'step')}"
    sentence = f"{summary['method']} trained on {numbered(len(silos), 'silo')} ({enumeration(silos)}) for {plan}"
    if results:
        mean = " in the mean of the silos' own models" if "tests_by_silo" in summary else ""
        sentence += f" and reaches a verification accuracy of {enumeration(results)}{mean}"
    facts = f"Seed {summary['seed']}; {summary['seconds'] / 60:.1f} minutes."
    return [
        f"<h1>{escape(summary['method'])}</h1>",
        paragraph(f"{sentence}.", "lead"),
        paragraph(facts, "facts"),
    ]


def _warnings(messages: Sequence[str]) -> list[str]:
    if not messages:
        return []
    items = "".join(f"<li>{escape(message)}</li>" for message in messages)
    return [section("Warnings", f"<ul>{items}</ul>")]


def _tests(summary: Summary) -> str:
    folds = _FOLDS.get(summary["fold_half"], f"folds: {summary['fold_half']}")
    head = [
        "Validation set",
        f"Accuracy with flip, mean ± std over {folds}",
        "TAR at FAR 1e-3",
        "TAR at FAR 1e-4",
    ]
    caption = (
        "Verification accuracy: features of image and mirror image added and L2-normalised; threshold the "
        "first best of 0..4 by 0.01 on squared distance, chosen on the other folds. "
        f"Half of the folds kept for validation: {summary['fold_half']}; the test takes the other. "
        "TAR is not decided where not even one pair of two persons may be accepted, and uncertain below ten, if all "
        "pairs were such."
    )
    by_model = {"": summary["tests"]}
    if "tests_by_silo" in summary:
        by_model = {"mean of silos": summary["tests"]} | summary["tests_by_silo"]
    rows = [
        [f"{pack} ({model})" if model else pack, *_test_cells(figures)]
        for model, packs in by_model.items()
        for pack, figures in packs.items()
    ]
    return section("Verification", table([*head, "AUC", "Pairs"], rows, caption))


def _test_cells(figures: TestFigures) -> list[str]:
    return [
        f"{percent(figures['accuracy'], 2)} ± {percent(figures['accuracy_std'], 2)}",
        *(shown_tar(figures, far) for far in FAR_TARGETS),
        number(figures["auc"], 4),
        str(figures["pairs"]),
    ]


def _silos(summary: Summary, history: History) -> str:
    head = [
        "Silo",
        "Final smoothed loss",
        "Sent by the silo (MB)",
        "Received by the silo (MB)",
        "Final weight",
    ]
    rows = [
        [
            silo,
            number(summary["loss_ema"].get(silo), 3),
            megabytes(summary["bytes_sent"].get(silo, 0)),
            megabytes(history.bytes_of(silo, "down")),
            percent(summary["weights"].get(silo)),
        ]
        for silo in history.trainers
    ]
    return section("Silos", table(head, rows, "1 MB is 10^6 bytes; the weight is the silo's share of the average."))


def _validation(history: History) -> list[str]:
    pace = history.pace()
    if pace is None:
        return []
    statement = (
        f"{pace.maximum} validation rounds finished inside training round {pace.busiest}, the busiest, which "
        f"took {pace.seconds:.1f} s; {pace.begun_inside} of them also began in it."
        if pace.maximum
        else f"{pace.total} validation rounds, each between two training rounds."
    )
    seconds = sum(event["seconds"] for event in history.validations) / pace.total
    head = [
        "Validation rounds",
        "Per training round, median",
        "Per training round, maximum",
        "Seconds each, mean",
    ]
    row = [str(pace.total), f"{pace.median:g}", str(pace.maximum), f"{seconds:.2f}"]
    return [section("Federated Validation", paragraph(statement, ""), table(head, [row]))]


def _account(account: Account) -> str:
    names = {
        "flower_startup": "Flower's start-up",
        "training": "Training",
        "validation": "Validation",
        "testing": "Testing",
        "other": "Other",
        "total": "Whole run",
    }
    seconds = {name: float(account[key]) for key, name in names.items()}  # type: ignore[literal-required]
    total = seconds["Whole run"]
    rows = []
    for name, value in seconds.items():
        share = value / total if total > 0 else 0.0
        verdict = "" if name != "Other" else "good" if share <= OTHER_LIMIT else "bad"
        note = {"": "", "good": f" ≤ {OTHER_LIMIT:.0%}", "bad": f" > {OTHER_LIMIT:.0%}, too much"}[verdict]
        bar = f'<span class="bar" style="width:{min(100 * share, 100):.1f}%"></span>'
        rows.append(
            f'<tr class="{verdict}"><th scope="row">{name}</th><td>{value:.1f}</td>'
            f"<td>{percent(share)}{note}</td><td>{bar}</td></tr>"
        )
    head = '<tr><th scope="col">Phase</th><th scope="col">Seconds</th><th scope="col">Share</th><th></th></tr>'
    caption = f"<caption>Other is time that no phase explains; it should stay within {OTHER_LIMIT:.0%}.</caption>"
    body = f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody>"
    return section("Where the time went", f'<div class="scroll"><table class="bars">{caption}{body}</table></div>')
