# SPDX-License-Identifier: Apache-2.0
"""The model card, with what a run's folder and an evaluation know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from small_model import SIZE, failing, write_checkpoint

from fedface_flwr.compose import compose_config
from fedface_flwr.evaluation.backbones import open_backbone
from fedface_flwr.evaluation.figures import Figure
from fedface_flwr.export.command import main
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.reporting.evaluation import Header, write_results
from fedface_flwr.reporting.metrics import MetricsLog
from fedface_flwr.reporting.run_folder import RunFolder
from fedface_flwr.reporting.summary import write_summary

FIGURES = {
    "accuracy": 0.75,
    "accuracy_std": 0.0125,
    "tar_at_far_1e-3": 0.12,
    "tar_at_far_1e-4": None,
    "auc": 0.85,
    "pairs": 300,
}


def write_run(folder: Path, *overrides: str) -> None:
    own = {"run.dir": "/secret/place/run", "run.token": "t", "run.launched": 0.0}
    config = compose_config(overrides, own)
    run = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(OmegaConf.create(json.loads(config.to_json())), run.config)


def summary(method: str, **fields: object) -> dict[str, object]:
    account = dict.fromkeys(("flower_startup", "training", "validation", "testing", "other", "total"), 1.0)
    return {
        "method": method,
        "seed": 7,
        "rounds": 3,
        "steps_per_round": 10,
        "seconds": 6.0,
        "loss_ema": {"bank": 5.0},
        "bytes_sent": {"bank": 10},
        "tests": {"gate": FIGURES},
        "account": account,
        "weights": {"bank": 0.4, "school": 0.6},
        "fold_half": "second",
    } | fields


def test_the_card_tells_what_the_run_knows_and_no_path(module: IRBackbone, tmp_path: Path) -> None:
    run = tmp_path / "my-run"
    silos = "data.silos=[/secret/place/bank,school]"
    write_run(
        run,
        "data=faces",
        "data.root=/secret/place",
        silos,
        "data.validators=[/secret/gate.bin]",
        "data.tests=[/secret/gate.bin]",
    )
    tests = {"gate": FIGURES, "large": FIGURES | {"pairs": 3000, "tar_at_far_1e-4": 0.05}}
    write_summary(run / "summary.json", summary("fedface", tests=tests))  # type: ignore[arg-type]
    write_checkpoint(module, run / "checkpoint.safetensors")
    opened = open_backbone(run, device="cpu", precision="bfloat16")
    header = Header(
        "my-run (bfloat16)",
        opened.digest,
        "suite.yaml",
        "0",
        (),
        {},
        "2030-01-02T03:04:05+00:00",
        opened.weights,
    )
    found = [
        Figure(
            "lfw",
            "verification, 10 folds",
            "accuracy",
            0.99783,
            {"flip": "on", "rule": "a|b"},
            (0.99, 0.999),
            0.002,
            "<n>",
        ),
        Figure("lfw", "verification, 10 folds", "TAR at FAR 1e-06", float("nan"), note="too few negatives"),
    ]
    write_results(tmp_path / "results.json", header, found, {}, {})
    main(
        [
            str(run),
            str(tmp_path / "face.pth"),
            "--format",
            "insightface",
            "--results",
            str(tmp_path / "results.json"),
            "--licence",
            "CC0",
        ]
    )
    card = (tmp_path / "face.pth.md").read_text()
    assert "secret" not in card
    assert str(tmp_path) not in card
    for line in (
        "# face",
        "| Method | fedface |",
        "| Rounds | 3 of 10 local steps |",
        "| Silos | 2 training (bank, school) |",
        "| Data trained on | bank, school |",
        "| Data validated on | gate |",
        "| Data tested on | gate |",
        "| Kind of data | faces of real people |",
        "| Averaging weights at the end | bank 0.4000, school 0.6000 |",
        "| optimizer.momentum | 0.9 |",
        "| gate | accuracy | verification, folds 1 to 5 of 10; flip on; pairs 300; threshold best on the nine other "
        "folds | 0.75000 ± 0.01250 over folds |  |",
        "| gate | TAR at FAR 1e-03 | verification, folds 1 to 5 of 10; flip on; pairs 300; folds pooled "
        "| not decided | not decided: at most 300 impostor pairs cannot show a FAR of 1e-03 |",
        # Of 3,000 pairs at most 3 may be accepted at 1e-3, and none at 1e-4.
        "| large | TAR at FAR 1e-03 | verification, folds 1 to 5 of 10; flip on; pairs 3000; folds pooled "
        "| 0.12000 | uncertain: it rests on the at most 3 nearest of at most 3000 impostor pairs |",
        "| large | TAR at FAR 1e-04 | verification, folds 1 to 5 of 10; flip on; pairs 3000; folds pooled "
        "| not decided | not decided: at most 3000 impostor pairs cannot show a FAR of 1e-04 |",
        "By fedface-eval: my-run (bfloat16) on suite.yaml, 2030-01-02T03:04:05+00:00.",
        "| lfw | accuracy | verification, 10 folds; flip on; rule a\\|b "
        "| 0.99783 ± 0.00200 over folds (95 %: 0.99000 to 0.99900) | &lt;n> |",
        "| lfw | TAR at FAR 1e-06 | verification, 10 folds | not decided | too few negatives |",
        "## Licence\n\nCC0",
        "their own classes build only width 64",
    ):
        assert line in card, line


def test_a_silos_own_model_has_its_own_figures_data_and_trainer(module: IRBackbone, tmp_path: Path) -> None:
    write_run(tmp_path, "strategy=solo", "data.silos=[bank,school,shop]", "data.validators=[]", "data.tests=[gate]")
    own = {"bank": {"gate": FIGURES}, "school": {"gate": FIGURES | {"accuracy": 0.875}}}
    write_summary(tmp_path / "summary.json", summary("solo", tests_by_silo=own, weights={}))  # type: ignore[arg-type]
    for silo in own:
        write_checkpoint(module, tmp_path / f"checkpoint-{silo}.safetensors")
    main([str(tmp_path), str(tmp_path / "out.safetensors"), "--which", "school"])
    card = (tmp_path / "out.safetensors.md").read_text()
    assert "0.87500 ±" in card
    assert "0.75000" not in card
    assert "synthetic faces, nobody's" in card
    told = "1 training (school); school's own model, in which no other of the run's 3 silos has a part"
    assert f"| Silos | {told} |" in card
    assert "| Data trained on | school |" in card
    assert "bank" not in card


def test_what_the_silos_of_a_deployed_run_had_is_known_to_them_alone(module: IRBackbone, tmp_path: Path) -> None:
    parties = ("data.silos=[bank]", "data.validators=[gate]", "data.tests=[gate]")
    write_run(tmp_path, "federation=deploy", "superlink=faces", *parties)
    write_summary(tmp_path / "summary.json", summary("fedface"))  # type: ignore[arg-type]
    write_checkpoint(module, tmp_path / "checkpoint.safetensors")
    main([str(tmp_path), str(tmp_path / "out.safetensors")])
    card = (tmp_path / "out.safetensors.md").read_text()
    assert "| Kind of data | known to the silos alone: each had its own, on a machine of its own |" in card
    assert "synthetic" not in card.partition("## Check of the export")[0]


def results_of(
    model: Path,
    path: Path,
    figures: Sequence[Figure] = (),
    packs: Mapping[str, Mapping[str, str]] | None = None,
    **options: int,
) -> Path:
    """Write what an evaluation of a model leaves."""
    opened = open_backbone(model, device="cpu", **options)
    found = figures or [Figure("lfw", "p", "accuracy", 0.5)]
    header = Header(model.name, opened.digest, "s.yaml", "0", (), {}, "now", opened.weights, packs=packs or {})
    write_results(path, header, found, {}, {})
    return path


BY_CONTENT = "folds 6 to 10 of 10 of faces.bin steered the averaging weights of this model"
BY_NAME = "folds 6 to 10 of 10 of validator gate, by its name this pack, steered the averaging weights of this model"


@pytest.mark.parametrize(
    ("content", "benchmark", "packs", "note"),
    [
        (b"pack", "pairs", {"pairs": {"faces.bin": hashlib.sha256(b"pack").hexdigest()}}, BY_CONTENT),
        # Of the validator's name, but another pack.
        (b"pack", "gate", {"gate": {"gate.bin": hashlib.sha256(b"other").hexdigest()}}, ""),
        (b"", "pairs", {"pairs": {"gate.bin": hashlib.sha256(b"pack").hexdigest()}}, BY_NAME),
        # The same pairs in another format.
        (b"pack", "gate", {}, ""),
        # Results that do not tell their packs have the benchmark's name alone.
        (b"pack", "gate", None, BY_NAME),
        (b"pack", "pairs", None, ""),
    ],
)
def test_the_card_tells_what_steered_the_model_where_an_export_of_it_was_evaluated(
    module: IRBackbone,
    tmp_path: Path,
    content: bytes,
    benchmark: str,
    packs: dict[str, dict[str, str]] | None,
    note: str,
) -> None:
    run = tmp_path / "run"
    parties = ("data.silos=[bank,school]", "data.validators=[gate.bin]", "data.tests=[]", "data.fold_half=second")
    write_run(run, "data=faces", f"data.root={tmp_path}", *parties)
    with MetricsLog(run / "metrics.jsonl") as log:
        log.write({"event": "validation", "round": 1, "training_round": 2})
    if content:
        (tmp_path / "gate.bin").write_bytes(content)
    write_summary(run / "summary.json", summary("fedface", tests={}))  # type: ignore[arg-type]
    write_checkpoint(module, run / "checkpoint.safetensors")
    main([str(run), str(tmp_path / "face.onnx")])
    found = [Figure(benchmark, "p", "accuracy", 0.5, note="few"), Figure(benchmark, "p", "AUC", float("nan"))]
    path = results_of(tmp_path / "face.onnx", tmp_path / "results.json", found, packs)
    if packs is None:
        told = json.loads(path.read_text())
        del told["packs"]
        path.write_text(json.dumps(told))
    # Of the run itself, so that they have the note.
    noted = [replace(figure, note="; ".join(filter(None, (figure.note, note)))) for figure in found]
    own = results_of(run, tmp_path / "own.json", noted, packs)
    main([str(run), str(tmp_path / "again.onnx"), "--results", str(path), "--results", str(own)])
    card = (tmp_path / "again.onnx.md").read_text()
    rows = [line for line in card.splitlines() if line.startswith(f"| {benchmark} |")]
    said = "; ".join(filter(None, ("few", note)))
    assert rows == [
        f"| {benchmark} | accuracy | p | 0.50000 | {said} |",
        f"| {benchmark} | AUC | p | not decided | {note} |",
    ]
    assert "By fedface-eval: run on s.yaml, now. Found again, as above: 2 figures." in card


def test_results_of_any_export_of_the_model_are_the_models(checkpoint: Path, tmp_path: Path) -> None:
    kinds = {
        "in.onnx": (),
        "out.onnx": ("--preprocessing", "outside", "--opset", "19"),
        "r18.pth": ("--format", "insightface"),
        "ir18.safetensors": ("--format", "tface"),
        "own.safetensors": (),
    }
    written = []
    for name, options in kinds.items():
        main([str(checkpoint), str(tmp_path / name), *options])
        size = {} if "onnx" in name or "own" in name else {"input_size": SIZE}
        written += ["--results", str(results_of(tmp_path / name, tmp_path / f"{name}.json", **size))]
    digests = {json.loads((tmp_path / f"{name}.json").read_text())["model"]["digest"] for name in kinds}
    assert len(digests) == 4  # both of TFace's and our own names are the same weights
    for name, options in kinds.items():
        main([str(checkpoint), str(tmp_path / f"again-{name}"), *options, *written])
        card = (tmp_path / f"again-{name}.md").read_text()
        assert [f"By fedface-eval: {other} " in card for other in kinds] == [True] * 5


def test_figures_of_feature_files_stay_off_the_card(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = Figure("lfw", "p", "accuracy", 0.5)
    foreign = [Figure("ijbc", "1:1", f"TAR at FAR {far}", 0.9, {"features": "theirs.npy"}) for far in ("1e-1", "1e-2")]
    path = results_of(checkpoint, tmp_path / "results.json", [own, *foreign])
    main([str(checkpoint), str(tmp_path / "m.safetensors"), "--results", str(path)])
    printed = capsys.readouterr().out.splitlines()
    assert "not on the card, for feature files may be any model's: ijbc (theirs.npy)" in printed
    card = (tmp_path / "m.safetensors.md").read_text()
    assert "| lfw | accuracy |" in card
    assert "ijbc" not in card
    results_of(checkpoint, path, foreign)
    error = failing([str(checkpoint), str(tmp_path / "n.safetensors"), "--results", str(path)], capsys)
    assert "results.json: holds figures of feature files alone (ijbc (theirs.npy))" in error
    assert not (tmp_path / "n.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"title": "another", "digest": "0", "weights": "0"}}, "holds figures of another model (another)"),
        ({"model": {"title": "another", "digest": "0", "weights": ""}}, "holds figures of another model (another)"),
        ({"model": {"title": "another", "digest": "0"}}, "not an evaluation's results"),
        ({"format": "other"}, "its format is 'other', not 'fedface-evaluation-2'; evaluate again"),
        ({"format": 7}, "its fields are of other types"),
        ({"figures": 3}, "its fields are of other types"),
        ({"suite": None}, "not an evaluation's results"),
        (
            {"figures": [{"benchmark": "lfw"}]},
            "figure 0: missing or of another type: protocol, metric, note, conditions",
        ),
        ({"figures": ["x"]}, "figure 0: is str, not an object"),
        ({"packs": []}, "packs is of another type"),
        ({"packs": {"lfw": "lfw.bin"}}, "packs is of another type"),
        ({"packs": {"lfw": {"lfw.bin": 1}}}, "packs is of another type"),
    ],
)
def test_results_that_are_not_its_own_are_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], said: str
) -> None:
    path = results_of(checkpoint, tmp_path / "results.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    arguments = [str(checkpoint), str(tmp_path / "m.safetensors"), "--results", str(path)]
    assert said in failing(arguments, capsys)
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_whose_configuration_is_not_understood_says_how_to_go_on(
    module: IRBackbone, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    write_checkpoint(module, tmp_path / "checkpoint.safetensors")
    error = failing([str(tmp_path), str(tmp_path / "m.safetensors")], capsys)
    assert "not the configuration of a run" in error
    assert "a copy of the checkpoint in another folder is exported without its history" in error
