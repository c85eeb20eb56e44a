# SPDX-License-Identifier: Apache-2.0
"""The model card, with what a run's folder and an evaluation know."""

from __future__ import annotations

import json
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
    write_summary(run / "summary.json", summary("fedface"))  # type: ignore[arg-type]
    write_checkpoint(module, run / "checkpoint.safetensors")
    digest = open_backbone(run, device="cpu", precision="bfloat16").digest
    header = Header("my-run (bfloat16)", digest, "suite.yaml", "0", (), {}, "2030-01-02T03:04:05+00:00")
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
        "| 0.12000 | too few pairs to tell so low a rate of false accepts |",
        "By fedface-eval: my-run (bfloat16) on suite.yaml, 2030-01-02T03:04:05+00:00.",
        "| lfw | accuracy | verification, 10 folds; flip on; rule a\\|b "
        "| 0.99783 ± 0.00200 over folds (95 %: 0.99000 to 0.99900) | &lt;n> |",
        "| lfw | TAR at FAR 1e-06 | verification, 10 folds | not decided | too few negatives |",
        "## Licence\n\nCC0",
        "their own classes build only width 64",
    ):
        assert line in card, line


def test_a_silos_own_model_has_its_own_figures(module: IRBackbone, tmp_path: Path) -> None:
    write_run(tmp_path, "strategy=solo")
    own = {"bank": {"gate": FIGURES}, "school": {"gate": FIGURES | {"accuracy": 0.875}}}
    write_summary(tmp_path / "summary.json", summary("solo", tests_by_silo=own, weights={}))  # type: ignore[arg-type]
    for silo in own:
        write_checkpoint(module, tmp_path / f"checkpoint-{silo}.safetensors")
    main([str(tmp_path), str(tmp_path / "out.safetensors"), "--which", "school"])
    card = (tmp_path / "out.safetensors.md").read_text()
    assert "0.87500 ±" in card
    assert "0.75000" not in card
    assert "synthetic faces, nobody's" in card


def test_figures_of_what_was_written_are_the_models_too(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "r18.safetensors"
    arguments = [str(checkpoint), str(out), "--format", "insightface"]
    main(arguments)
    digest = open_backbone(out, device="cpu", input_size=SIZE).digest
    assert digest != open_backbone(checkpoint, device="cpu").digest
    header = Header("r18", digest, "suite.yaml", "0", (), {}, "now")
    write_results(tmp_path / "results.json", header, [Figure("lfw", "p", "accuracy", 0.5)], {}, {})
    main([*arguments, "--force", "--results", str(tmp_path / "results.json")])
    assert "By fedface-eval: r18 on suite.yaml, now." in out.with_name("r18.safetensors.md").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"title": "another", "digest": "0"}}, "holds figures of another model (another)"),
        ({"format": "other"}, "its format is 'other', not 'fedface-evaluation-1'"),
        ({"figures": 3}, "its format is"),
        ({"suite": None}, "not an evaluation's results"),
        (
            {"figures": [{"benchmark": "lfw"}]},
            "figure 0: missing or of another type: protocol, metric, note, conditions",
        ),
        ({"figures": ["x"]}, "figure 0: is str, not an object"),
    ],
)
def test_results_that_are_not_its_own_are_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], said: str
) -> None:
    digest = open_backbone(checkpoint, device="cpu").digest
    header = Header("m", digest, "suite.yaml", "0", (), {}, "now")
    path = tmp_path / "results.json"
    write_results(path, header, [Figure("lfw", "p", "accuracy", 0.5)], {}, {})
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
