# SPDX-License-Identifier: Apache-2.0
"""``fedface-export``: what it writes, read by others' programs, and what it refuses."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_model import DIMS, METADATA, SIZE, faces, failing

from fedface_flwr.evaluation.backbones import open_backbone
from fedface_flwr.export import parity
from fedface_flwr.export.command import main
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.models.public import import_state
from fedface_flwr.models.public_names import Dialect


@pytest.fixture(scope="module", params=["inside", "outside"])
def exported(request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / f"{request.param}.onnx"
    main([str(checkpoint), str(out), "--preprocessing", request.param])
    return out


@torch.no_grad()
def test_onnxruntime_alone_embeds_any_number_of_pictures_as_torch_does(exported: Path, module: IRBackbone) -> None:
    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    (entry,), (output,) = session.get_inputs(), session.get_outputs()
    assert (entry.name, entry.shape[1:], output.name, output.shape[1]) == ("images", [3, SIZE, SIZE], "embedding", DIMS)
    assert isinstance(entry.shape[0], str)
    inside = exported.stem == "inside"
    assert entry.type == ("tensor(uint8)" if inside else "tensor(float)")
    for count in (1, 3, 11):
        pixels = faces(count, seed=5)
        scaled = (pixels.astype(np.float32) - 127.5) / 127.5
        (found,) = session.run(["embedding"], {"images": pixels if inside else scaled})
        expected = module(torch.tensor(scaled)).numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
        assert expected.std() > 0.1


def test_the_graph_says_how_to_feed_it_and_nothing_of_its_origin(exported: Path, checkpoint: Path) -> None:
    model = onnx.load(exported)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    known = {"format": "fedface-onnx-1", "preprocessing": exported.stem, "architecture": "IR-18", "method": "fedface"}
    assert metadata.items() >= {**known, "mean": "127.5", "scale": "127.5", "colour_order": "RGB", "seed": "7"}.items()
    assert model.opset_import[0].version == 18
    content = exported.read_bytes()
    for trace in (b".py", str(checkpoint.parent).encode(), b"site-packages", b"secret-place"):
        assert trace not in content


def test_what_was_exported_opens_again_with_the_same_embeddings(exported: Path, checkpoint: Path) -> None:
    pixels = faces(6, seed=3)
    again, expected = (open_backbone(path, device="cpu").embed(pixels) for path in (exported, checkpoint))
    np.testing.assert_allclose(again, expected, rtol=0, atol=1e-4)


def test_public_names_are_written_strictly_and_back(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dialect, out in ((Dialect.INSIGHTFACE, tmp_path / "r18.pth"), (Dialect.TFACE, tmp_path / "ir18.safetensors")):
        main([str(checkpoint), str(out), "--format", dialect])
        assert "16 pictures (synthetic faces), batches of 1 and 16: largest difference" in capsys.readouterr().out
        state = load_file(out) if out.suffix == ".safetensors" else torch.load(out, weights_only=True)
        network = import_state(state, where=str(out), dialect=dialect, input_size=SIZE)
        again = tmp_path / f"{dialect}.safetensors"
        main([str(out), str(again), "--input-size", str(SIZE)])
        with safe_open(again, framework="pt") as file:
            metadata = file.metadata()
        assert metadata["method"] == f"imported from {dialect} names"
        assert metadata.get("conv_shortcuts") == ("true" if dialect is Dialect.INSIGHTFACE else None)
        assert all(torch.equal(t, network.module.state_dict()[n]) for n, t in load_file(again).items())
    # Over insightface's names and back, the weights are those that were trained.
    back = tmp_path / "back.safetensors"
    main([str(tmp_path / "r18.pth"), str(back), "--format", "tface", "--input-size", str(SIZE)])
    state, ours = load_file(back), load_file(checkpoint)
    assert torch.equal(state["body.0.res_layer.1.weight"], ours["stages.0.0.residual.1.weight"])


NAMES = ("m.onnx", "m.pth", "public.safetensors", "m.safetensors")

EXPORTS = """
import sys
from fedface_flwr.export.command import main
model, out = sys.argv[1:]
main([model, f"{out}/m.onnx"])
main([model, f"{out}/m.pth", "--format", "insightface"])
main([model, f"{out}/public.safetensors", "--format", "tface"])
main([model, f"{out}/m.safetensors"])
"""


def test_the_same_model_is_written_as_the_same_bytes_in_every_process(checkpoint: Path, tmp_path: Path) -> None:
    written = []
    for seed in ("0", "1", "2"):
        out = tmp_path / seed
        out.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run(
            [sys.executable, "-c", EXPORTS, str(checkpoint), str(out)], check=True, env=environment, capture_output=True
        )
        written.append([(out / f"{name}{end}").read_bytes() for name in NAMES for end in ("", ".md")])
    assert written[0] == written[1] == written[2]


def test_files_have_the_mode_that_the_umask_gives(checkpoint: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        for name, options in zip(NAMES, ((), ("--format", "tface"), ("--format", "insightface"), ()), strict=True):
            main([str(checkpoint), str(tmp_path / name), *options])
    finally:
        os.umask(before)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == dict.fromkeys(
        [f"{name}{end}" for name in NAMES for end in ("", ".md")], 0o640
    )


def test_a_long_name_of_a_file_can_be_written(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / f"{'m' * 240}.safetensors"
    main([str(checkpoint), str(out)])
    assert sorted(tmp_path.iterdir()) == [out, out.with_name(f"{out.name}.md")]


def test_nothing_is_overwritten_unless_forced(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, card = tmp_path / "m.safetensors", tmp_path / "m.safetensors.md"
    card.write_text("mine")
    assert "m.safetensors.md: is already there; --force replaces it" in failing([str(checkpoint), str(out)], capsys)
    assert list(tmp_path.iterdir()) == [card]
    assert card.read_text() == "mine"
    main([str(checkpoint), str(out), "--force"])
    main([str(checkpoint), str(out), "--force", "--name", "again"])
    assert card.read_text().startswith("# again\n")
    assert sorted(tmp_path.iterdir()) == [out, card]


def test_what_does_not_embed_alike_is_not_left_behind(
    module: IRBackbone, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No two programs agree so well.
    monkeypatch.setattr(parity, "LIMIT", 1e-12)
    save_file(module.state_dict(), tmp_path / "own.safetensors", metadata={"format": "fedface-backbone-1", **METADATA})
    error = failing([str(tmp_path / "own.safetensors"), str(tmp_path / "own.onnx")], capsys)
    assert "does not embed as the model does, so it was discarded: 16 pictures" in error
    assert [path.name for path in tmp_path.iterdir()] == ["own.safetensors"]


def test_large_embeddings_may_differ_by_their_own_rounding(module: IRBackbone, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state["output.4.running_var"] /= 300**2
    save_file(state, tmp_path / "large.safetensors", metadata={"format": "fedface-backbone-1", **METADATA})
    main([str(tmp_path / "large.safetensors"), str(tmp_path / "large.onnx")])
    assert (tmp_path / "large.onnx").exists()


@pytest.mark.parametrize(
    ("out", "options", "said"),
    [
        ("m.pth", [], "its ending does not tell the format; give --format onnx|insightface|tface|safetensors"),
        ("m.onnx", ["--format", "tface"], "format tface is written to a file that ends in .pth or .pt or .safetensors"),
        ("m.pth", ["--format", "onnx"], "format onnx is written to a file that ends in .onnx"),
        ("m.onnx", ["--opset", "17"], "opset 17: must be 18 to"),
        ("m.safetensors", ["--pictures", "absent.bin"], "absent.bin: cannot be read"),
        ("m.safetensors", ["--results", "absent.json"], "absent.json: cannot be read"),
        ("m.safetensors", ["--which", "a"], "model 'a': only a run's folder"),
        ("m.safetensors", ["--input-size", "48"], "says itself that it takes 40 pixels"),
    ],
)
def test_options_that_cannot_work(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, options: list[str], said: str
) -> None:
    assert said in failing([str(checkpoint), str(tmp_path / out), *options], capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "MODEL and OUT are missing"),
        (["run"], "OUT is missing"),
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["run", "m.onnx", "third"], "unrecognized arguments: third"),
    ],
)
def test_a_command_line_that_cannot_be_meant_ends_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f"fedface-export: error: {said}\n")


def test_an_onnx_file_has_no_weights_to_export(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "an ONNX file is a graph" in failing([str(exported), str(tmp_path / "m.safetensors")], capsys)


def test_real_faces_can_be_what_it_is_checked_with(
    checkpoint: Path, tmp_path: Path, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("lfw.bin", "lag"):
        arguments = [str(checkpoint), str(tmp_path / name) + ".pth", "--format", "tface"]
        main([*arguments, "--pictures", str(shared_dir / "faces" / name)])
        assert f"16 pictures ({name})" in capsys.readouterr().out
