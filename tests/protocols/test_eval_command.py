# SPDX-License-Identifier: Apache-2.0
"""``fedface-eval`` from a saved backbone and a suite to the files that it leaves."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ijb_folder import write_small
from matplotlib.image import imread
from omegaconf import OmegaConf
from PIL import Image
from safetensors.torch import save_file

from fedface_flwr.compose import compose_config
from fedface_flwr.data.packs import read_pack
from fedface_flwr.data.synthetic import SyntheticFaces
from fedface_flwr.evaluation.embedding import score_pairs
from fedface_flwr.models import IRBackbone
from fedface_flwr.protocols import command
from fedface_flwr.reporting.metrics import MetricsLog

SIZE = 16


def backbone(seed: int = 0) -> IRBackbone:
    torch.manual_seed(seed)
    return IRBackbone(18, width=2, input_size=SIZE, embedding=8).eval()


def save(path: Path, seed: int = 0) -> Path:
    metadata = {
        "format": "fedface-backbone-1",
        "architecture": "IR-18",
        "width": "2",
        "input_size": str(SIZE),
        "embedding": "8",
        "colour_order": "RGB",
        "mean": "127.5",
        "scale": "127.5",
        "layout": "NCHW",
        "method": "fedavg",
        "rounds": "1",
        "seed": str(seed),
    }
    tensors = {name: tensor.contiguous() for name, tensor in backbone(seed).state_dict().items()}
    save_file(tensors, path, metadata=metadata)
    return path


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(file, "PNG")
    return file.getvalue()


def faces() -> tuple[list[bytes], list[bool]]:
    """Pictures of 20 pairs of drawn faces, of one person and of two in turns."""
    drawn = SyntheticFaces("toy", identities=20, images_per_identity=2, size=SIZE, seed=1, domain=0)
    pictures = [png(image) for image in drawn.images(np.arange(len(drawn.labels)))]
    same = [pair % 2 == 0 for pair in range(20)]
    encoded = []
    for pair, kind in enumerate(same):
        encoded += [pictures[2 * pair], pictures[2 * pair + 1 if kind else (2 * pair + 2) % 40]]
    return encoded, same


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a pack and the same pairs as a table, and a suite of both."""
    encoded, same = faces()
    (tmp_path / "toy.bin").write_bytes(pickle.dumps((encoded, same)))
    (tmp_path / "images").mkdir()
    rows = ["left,right,same"]
    for at, data in enumerate(encoded):
        (tmp_path / "images" / f"{at}.png").write_bytes(data)
    rows += [f"{2 * pair}.png,{2 * pair + 1}.png,{int(kind)}" for pair, kind in enumerate(same)]
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    (tmp_path / "suite.yaml").write_text(
        "defaults: {pairs: {flip: both}}\n"
        "benchmarks:\n"
        "- {name: pack, kind: pairs, format: pack, file: toy.bin}\n"
        "- {name: table, kind: pairs, format: csv, file: pairs.csv, images: images, flip: true}\n"
    )
    save(tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


def evaluate(*arguments: str) -> None:
    command.main(["model.safetensors", "suite.yaml", "--device", "cpu", *arguments])


def results(folder: str = "evaluation-suite") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(Path(folder, "results.json").read_text())
    return loaded


def value(content: Mapping[str, Any], benchmark: str, metric: str, **conditions: str) -> dict[str, Any]:
    found = [
        figure
        for figure in content["figures"]
        if (figure["benchmark"], figure["metric"]) == (benchmark, metric)
        and all(figure["conditions"].get(name.replace("_", " ")) == text for name, text in conditions.items())
    ]
    assert len(found) == 1
    only: dict[str, Any] = found[0]
    return only


def test_a_whole_evaluation(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("--batch-size", "7")
    printed = capsys.readouterr().out
    content = results()
    pairs = read_pack(ground / "toy.bin", SIZE)
    for flip, says in ((True, "added"), (False, "none")):
        expected = score_pairs(backbone(), pairs, flip=flip, device=torch.device("cpu"))
        accuracy = value(content, "pack", "accuracy", flip=says, threshold_rule="grid 0..3.99 by 0.01")
        assert accuracy["value"] == pytest.approx(expected.accuracy)
        assert accuracy["spread"] == pytest.approx(expected.accuracy_std)
        assert value(content, "pack", "AUC", flip=says)["value"] == pytest.approx(expected.auc)
    # The same pairs as a table have the same figures.
    for metric in ("EER", "AUC"):
        assert value(content, "table", metric)["value"] == value(content, "pack", metric, flip="added")["value"]
    names = [figure["name"] for figure in content["figures"]]
    assert len(set(names)) == len(names)
    assert content["failures"] == {}
    assert content["model"]["digest"]
    assert set(content["versions"]) == {"fedface-flwr", "Python", "torch", "numpy"}
    assert "pack: verification, mean over 10 folds" in printed
    undecided = value(content, "table", "TAR at FAR 1e-02")
    assert (undecided["value"], undecided["note"]) == (
        None,
        "not decided: 10 impostor pairs cannot show a FAR of 1e-02",
    )
    assert "not decided" in printed
    assert f"report: {ground / 'evaluation-suite' / 'report.html'}" in printed
    check_files(ground / "evaluation-suite", content)


def check_files(folder: Path, content: Mapping[str, Any]) -> None:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert names == ["curves.json", "plots/det.png", "plots/roc.png", "report.html", "results.csv", "results.json"]
    rows = list(csv.DictReader(io.StringIO((folder / "results.csv").read_text())))
    assert [row["metric"] for row in rows] == [figure["metric"] for figure in content["figures"]]
    for row, figure in zip(rows, content["figures"], strict=True):
        assert row["value"] == ("" if figure["value"] is None else repr(figure["value"]))
    curves = json.loads((folder / "curves.json").read_text())["curves"]
    assert [(curve["benchmark"], curve["label"]) for curve in curves] == [
        ("pack", "flip none"),
        ("pack", "flip added"),
        ("table", "flip added"),
    ]
    assert imread(folder / "plots" / "det.png").ndim == 3
    page = (folder / "report.html").read_text()
    assert "pack: verification, pairs of all folds" in page
    assert page.count("<svg") == 2
    assert "<img" not in page
    assert "http-equiv" not in page


def test_the_second_protocol_and_the_second_run_embed_nothing(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    class Counting(command.CachingEmbedder):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            result = super().__call__(*arguments, **options)
            counted.append(self.embedded)
            return result

    monkeypatch.setattr(command, "CachingEmbedder", Counting)
    evaluate()
    evaluate()
    # Of 40 pictures some are equal; the table's are the pack's, and the second run's the first's.
    assert counted[0] == counted[1] > 0
    assert counted[2:] == [0, 0]
    assert list((ground / "cache" / "fedface" / "embeddings").iterdir())
    evaluate("--no-cache", "--only", "table", "-o", "other")
    assert counted[4] == counted[0]


def test_a_folder_may_have_as_long_a_name_as_the_file_system_takes(
    ground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate("--only", "table", "-o", "o" * 255)
    assert results("o" * 255)["failures"] == {}
    with pytest.raises(SystemExit):
        evaluate("--only", "table", "-o", "o" * 256)
    assert "File name too long" in capsys.readouterr().err


def test_only_some_benchmarks(ground: Path) -> None:
    evaluate("--only", "table", "-o", "some")
    content = results("some")
    assert {figure["benchmark"] for figure in content["figures"]} == {"table"}
    assert content["suite"]["only"] == ["table"]


@pytest.mark.parametrize("change", ["model", "suite", "only"])
def test_results_of_something_else_are_not_replaced(
    ground: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    evaluate("--only", "table")
    before = results()
    chosen = ["--only", "table"]
    match change:
        case "model":
            save(ground / "model.safetensors", seed=1)
        case "suite":
            (ground / "suite.yaml").write_text((ground / "suite.yaml").read_text() + "# other\n")
        case "only":
            chosen = []
    with pytest.raises(SystemExit) as caught:
        evaluate(*chosen)
    assert caught.value.code == 1
    assert "holds results of another model, suite or choice of benchmarks" in capsys.readouterr().err
    assert results() == before
    evaluate(*chosen, "--force")
    assert results() != before


def test_a_folder_with_something_else_in_results_json(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ground / "evaluation-suite").mkdir()
    for content in ("[]", "{}", "{", '{"model": 1, "suite": {}}'):
        (ground / "evaluation-suite" / "results.json").write_text(content)
        with pytest.raises(SystemExit):
            evaluate()
        assert "not an evaluation's results" in capsys.readouterr().err


def test_a_benchmark_that_fails_leaves_the_others_figures(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ground / "images" / "3.png").write_bytes(b"junk")
    with pytest.raises(SystemExit) as caught:
        evaluate()
    assert caught.value.code == 1
    content = results()
    assert {figure["benchmark"] for figure in content["figures"]} == {"pack"}
    assert list(content["failures"]) == ["table"]
    assert "3.png: the image cannot be decoded" in content["failures"]["table"]
    assert "fedface-eval: table could not be run" in capsys.readouterr().err
    assert "Could not be run" in (ground / "evaluation-suite" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["model.safetensors", "absent.yaml"], "absent.yaml: no such file"),
        (["model.safetensors", "images"], "images: is a folder, not a YAML file"),
        (["absent.safetensors", "suite.yaml"], "absent.safetensors"),
        (["model.safetensors", "suite.yaml", "--only", "lfw"], "has no lfw; it has pack, table"),
        (["model.safetensors", "suite.yaml", "--device", "abacus"], "abacus"),
        (["model.safetensors", "suite.yaml", "--cache", "toy.bin"], "toy.bin"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_line(
    ground: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith("fedface-eval: ")
    assert reason in printed
    assert "Traceback" not in printed
    assert not (ground / "evaluation-suite").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "SUITE.yaml is missing: fedface-eval [MODEL] SUITE.yaml"),
        (["model.safetensors"], "SUITE.yaml is missing: fedface-eval model.safetensors SUITE.yaml"),
        (["images"], "SUITE.yaml is missing: fedface-eval images SUITE.yaml"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["model.safetensors", "--bogus"], "unrecognized arguments: --bogus"),
        (["model.safetensors", "suite.yaml", "third"], "unrecognized arguments: third"),
        (["model.safetensors", "suite.yaml", "--batch-size", "0"], "--batch-size 0: must be at least 1"),
    ],
)
def test_a_command_line_that_cannot_be_meant_ends_with_2(
    ground: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"fedface-eval: error: {reason}\n")


def test_options_may_stand_between_model_and_suite(ground: Path) -> None:
    command.main(["model.safetensors", "--device", "cpu", "suite.yaml", "--only", "pack"])
    assert results()["suite"]["only"] == ["pack"]


def test_benchmarks_that_need_a_model_are_named_before_anything_is_written(
    ground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several_kinds(ground)
    before = sorted(ground.rglob("*"))
    with pytest.raises(SystemExit) as caught:
        command.main(["suite.yaml"])
    assert caught.value.code == 1
    said = "fedface-eval: pack, rfw, tiny: pictures need a model to embed them; give MODEL, or others by --only\n"
    assert capsys.readouterr() == ("", said)
    assert sorted(ground.rglob("*")) == before


def test_a_failure_names_its_benchmark_once(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ground / "images" / "3.png").write_bytes(b"junk")
    with pytest.raises(SystemExit):
        evaluate("--only", "table")
    printed = capsys.readouterr().out
    assert "table: failed: " in printed
    assert "table: failed: table" not in printed
    assert not results()["failures"]["table"].startswith("table")


def test_figures_of_feature_files_name_them_and_not_the_model(ground: Path) -> None:
    several_kinds(ground)
    evaluate()
    content = results()
    files = {"ijbc": "ijbc.npy", "mega": "probes.npy and distractors.npy"}
    for figure in content["figures"]:
        assert figure["conditions"].get("features") == files.get(figure["benchmark"])
        assert ("features" in figure["name"]) == (figure["benchmark"] in files)
    assert content["sources"] == {"ijbc": "ijbc.npy", "pack": "model", "rfw": "model", "tiny": "model"} | files
    rows = list(csv.DictReader(io.StringIO(Path("evaluation-suite", "results.csv").read_text())))
    assert {row["benchmark"] for row in rows if "features=" in row["conditions"]} == set(files)
    page = Path("evaluation-suite", "report.html").read_text()
    assert "features: ijbc.npy" in page
    assert "not of this model: ijbc (ijbc.npy), mega (probes.npy and distractors.npy)." in page


def test_a_model_that_no_benchmark_embeds_with_is_not_what_the_results_are_of(
    ground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several_kinds(ground)
    evaluate("--only", "mega", "ijbc")
    assert "model.safetensors: not used, for every benchmark brings feature files" in capsys.readouterr().out
    assert results()["model"] == {"title": "", "digest": "", "weights": ""}
    assert "<h1>Evaluation of feature files</h1>" in Path("evaluation-suite", "report.html").read_text()


def test_open_set_curves_are_drawn_and_a_failed_task_keeps_the_others_figures(
    ground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write_small(ground / "ijb")
    text = "{name: c, kind: ijb, protocol: C, meta: ijb/meta, features: ijb/features.npy, tasks: ['1:1', '1:N']}"
    (ground / "suite.yaml").write_text(f"benchmarks: [{text}]")
    command.main(["suite.yaml"])
    assert imread(Path("evaluation-suite", "plots", "tpir.png")).std() > 0
    curves = json.loads(Path("evaluation-suite", "curves.json").read_text())["curves"]
    assert {curve["label"] for curve in curves if curve["kind"] == "tpir"} >= {"N1D1F1, G1", "N1D1F1, G2"}
    (small.meta / "ijbc_1N_probe_mixed.csv").write_text("TEMPLATE_ID,SUBJECT_ID\n")
    with pytest.raises(SystemExit) as caught:
        command.main(["suite.yaml"])
    assert caught.value.code == 1
    assert "c 1:N could not be run" in capsys.readouterr().err
    content = results()
    assert list(content["failures"]) == ["c 1:N"]
    assert {figure["protocol"] for figure in content["figures"]} == {"IJB-C 1:1"}


def write_run(folder: Path, *overrides: str, validations: Sequence[tuple[int, int]] = ((1, 0),)) -> None:
    """Leave what a run leaves: its configuration, its model and, by round and training round, its validations."""
    config = compose_config(overrides, {"run.dir": str(folder), "run.token": "t", "run.launched": 0.0})
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(json.loads(config.to_json())), folder / "config.yaml")
    save(folder / "checkpoint.safetensors")
    with MetricsLog(folder / "metrics.jsonl") as log:
        for at, done in validations:
            log.write({"event": "validation", "round": at, "training_round": done})


FILES = ("data=faces", "data.silos=[a,b]", "data.tests=[]")
DEPLOYED = ("federation=deploy", "superlink=s", "data.silos=[a,b]", "data.tests=[]")
SAID = {
    "first": "folds 1 to 5 of 10 of toy.bin steered the averaging weights of this model",
    "second": "folds 6 to 10 of 10 of toy.bin steered the averaging weights of this model",
}


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        ((*FILES, "data.validators=[gate.bin]", "data.fold_half=first"), SAID["first"]),
        ((*FILES, "data.validators=[gate.bin]", "data.fold_half=second"), SAID["second"]),
        ((*FILES, "data.validators=[gate.bin]", "strategy=fedavg"), ""),
        # Of this name, but another pack: content decides where it can be had.
        ((*FILES, "data.validators=[other/toy.bin]"), ""),
        (
            (*FILES, "data.validators=[gone/toy.bin]", "data.fold_half=first"),
            "folds 1 to 5 of 10 of validator toy, by its name this pack, steered the averaging weights of this model",
        ),
        (
            (*DEPLOYED, "data.validators=[toy]", "data.fold_half=first"),
            "folds 1 to 5 of 10 of validator toy, by its name this pack, steered the averaging weights of this model",
        ),
        (("data.silos=[a,b]", "data.validators=[toy]", "data.tests=[]"), ""),
        # A single trainer's weight is 1, whoever validates.
        ((*FILES, "data.silos=[a]", "data.validators=[gate.bin]"), ""),
    ],
)
def test_packs_that_steered_the_weights_are_told(
    ground: Path, capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], note: str
) -> None:
    (ground / "other").mkdir()
    (ground / "gate.bin").write_bytes((ground / "toy.bin").read_bytes())
    (ground / "other" / "toy.bin").write_bytes(pickle.dumps((faces()[0][:20], faces()[1][:10])))
    write_run(ground / "run", f"data.root={ground}", *overrides)
    command.main(["run", "suite.yaml", "--device", "cpu"])
    content, printed = results(), capsys.readouterr().out
    for figure in content["figures"]:
        told = bool(note) and figure["benchmark"] == "pack"
        assert figure["note"].endswith(note) if told else "steered" not in figure["note"]
    page = Path("evaluation-suite", "report.html").read_text()
    # Once for each of the benchmark's two tables.
    assert printed.count("steered the") == page.count("steered the") == 2 * bool(note)


@pytest.mark.parametrize(
    ("validations", "steered"),
    [
        ([], False),
        ([(3, 0)], False),  # synchronous, after the last of three rounds: nothing was averaged any more
        ([(2, 0), (3, 0)], True),
        ([(2, 3)], True),  # beside the last round
        (None, True),  # without a log nobody knows, and the warning is kept
    ],
)
def test_only_a_validation_before_the_last_average_steers(
    ground: Path, validations: Sequence[tuple[int, int]] | None, steered: bool
) -> None:
    options = (*FILES, f"data.root={ground}", "data.validators=[toy.bin]", "training.rounds=3")
    write_run(ground / "run", *options, validations=validations or [])
    if validations is None:
        (ground / "run" / "metrics.jsonl").unlink()
    command.main(["run", "suite.yaml", "--device", "cpu", "--only", "pack"])
    assert {"steered" in figure["note"] for figure in results()["figures"]} == {steered}


def test_the_results_tell_the_packs_by_their_content(ground: Path) -> None:
    evaluate()
    digest = hashlib.sha256((ground / "toy.bin").read_bytes()).hexdigest()
    assert results()["packs"] == {"pack": {"toy.bin": digest}}


def test_where_nobody_bounds_the_lines_a_figure_takes_one(
    ground: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    evaluate("--only", "table")
    lines = capsys.readouterr().out.splitlines()
    accuracy = value(results(), "table", "accuracy", threshold_rule="exact")
    shown = [line for line in lines if line.strip().startswith("accuracy (threshold rule exact")]
    assert len(shown) == 1
    assert f"{100 * accuracy['value']:.3f}%" in shown[0]
    assert 80 < max(map(len, lines)) < 250


def test_an_interruption_is_said_in_a_line(
    ground: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "evaluate", interrupted)
    with pytest.raises(SystemExit) as caught:
        evaluate()
    assert caught.value.code == 130
    assert "what has been embedded is kept" in capsys.readouterr().err


def several_kinds(ground: Path) -> None:
    """Add RFW as packs, TinyFace as folders, MegaFace and IJB-C as matrices to the ground, and a suite with pairs."""
    encoded, same = faces()
    (ground / "rfw").mkdir()
    for race in ("African", "Asian", "Caucasian", "Indian"):
        (ground / "rfw" / f"{race}_test.bin").write_bytes(pickle.dumps((encoded, same)))
    for part, names in (
        ("Probe", ["1_1", "2_1"]),
        ("Gallery_Match", ["1_2", "2_2"]),
        ("Gallery_Distractor", ["0_1", "0_2"]),
    ):
        (ground / "tiny" / part).mkdir(parents=True)
        for at, name in enumerate(names):
            (ground / "tiny" / part / f"{name}.jpg").write_bytes(encoded[4 * at + len(part) % 2])
    generator = np.random.default_rng(0)
    np.save(ground / "probes.npy", generator.normal(size=(4, 8)).astype(np.float32))
    np.save(ground / "distractors.npy", generator.normal(size=(30, 8)).astype(np.float32))
    listed = [f"P{at // 2}/P{at // 2}_{at}.png" for at in range(4)]
    (ground / "probes.json").write_text(json.dumps({"id": [name.split("/")[0] for name in listed], "path": listed}))
    (ground / "distractors.json").write_text(json.dumps({"path": [f"0/{at}.jpg" for at in range(30)]}))
    meta = ground / "meta"
    meta.mkdir()
    (meta / "ijbc_face_tid_mid.txt").write_text("".join(f"{at}.jpg {at // 2} {at}\n" for at in range(40)))
    points = "30.5 50.5 70.5 50.5 50.5 70.5 35.5 90.5 65.5 90.5 0.9"
    (meta / "ijbc_name_5pts_score.txt").write_text("".join(f"{at}.jpg {points}\n" for at in range(40)))
    (meta / "ijbc_template_pair_label.txt").write_text("".join(f"{at} {(at + 1) % 20} {at % 2}\n" for at in range(20)))
    np.save(ground / "ijbc.npy", generator.normal(size=(40, 8)).astype(np.float32))
    (ground / "suite.yaml").write_text(
        "benchmarks:\n"
        "- {name: ijbc, kind: ijb, protocol: C, meta: meta, features: ijbc.npy, layout: plain}\n"
        "- {name: pack, kind: pairs, format: pack, file: toy.bin}\n"
        "- {name: rfw, kind: rfw, format: packs, folder: rfw}\n"
        "- {name: tiny, kind: tinyface, folder: tiny}\n"
        "- {name: mega, kind: megaface, probes: probes.json, probe_features: probes.npy,\n"
        "   distractors: distractors.json, distractor_features: distractors.npy, sizes: [10, 30]}\n"
    )


def test_a_suite_of_several_kinds(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several_kinds(ground)
    evaluate()
    content = results()
    assert content["failures"] == {}
    assert list(content["seconds"]) == ["ijbc", "pack", "rfw", "tiny", "mega"]
    assert {figure["benchmark"] for figure in content["figures"]} == {"ijbc", "pack", "rfw", "tiny", "mega"}
    names = [figure["name"] for figure in content["figures"]]
    assert len(set(names)) == len(names)
    ratio = [figure for figure in content["figures"] if figure["metric"] == "skewed error ratio"]
    assert {figure["value"] for figure in ratio} == {1.0}
    plots = sorted(path.name for path in Path("evaluation-suite/plots").iterdir())
    assert plots == ["cmc.png", "det.png", "roc.png"]
    assert "skewed error ratio" in capsys.readouterr().out


def test_a_suite_of_features_needs_no_model(ground: Path) -> None:
    several_kinds(ground)
    command.main(["suite.yaml", "--only", "mega", "ijbc"])
    content = results()
    assert content["model"] == {"title": "", "digest": "", "weights": ""}
    assert content["failures"] == {}
    assert {figure["benchmark"] for figure in content["figures"]} == {"ijbc", "mega"}


def test_real_lfw(shared_dir: Path, ground: Path) -> None:
    """A fresh network: far from good, but above chance, and the flip helps it."""
    suite = (
        f"benchmarks: [{{name: lfw, kind: pairs, format: pack, file: {shared_dir / 'faces' / 'lfw.bin'}, flip: both}}]"
    )
    (ground / "suite.yaml").write_text(suite)
    evaluate()
    content = results()
    accuracies = [
        value(content, "lfw", "accuracy", flip=flip, threshold_rule="exact")["value"] for flip in ("none", "added")
    ]
    assert 0.55 < accuracies[0] < accuracies[1] < 0.75
    tar = value(content, "lfw", "TAR at FAR 1e-03", flip="added")
    assert tar["note"] == "uncertain: it rests on the 3 nearest of 3000 impostor pairs"
