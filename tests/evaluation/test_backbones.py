# SPDX-License-Identifier: Apache-2.0
"""Backbones out of files of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.data.sets import Images
from fedface_flwr.errors import ConfigError, DataError, StateError
from fedface_flwr.evaluation.backbones import open_backbone
from fedface_flwr.evaluation.embedding import embed
from fedface_flwr.federation.checkpoint import save_backbone
from fedface_flwr.models.ir import IRBackbone
from fedface_flwr.models.public import export_state
from fedface_flwr.models.public_names import Dialect
from fedface_flwr.models.topology import Architecture, Network
from fedface_flwr.training.flat import FlatModel

SIZE, DIMS = 40, 12
METADATA = {
    "architecture": "IR-18",
    "width": "4",
    "input_size": str(SIZE),
    "embedding": str(DIMS),
    **PREPROCESSING.metadata(),
    "method": "fedface",
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def module() -> IRBackbone:
    torch.manual_seed(1)
    backbone = IRBackbone(18, width=4, input_size=SIZE, embedding=DIMS, dropout=0.0)
    with torch.no_grad():
        for _ in range(30):
            backbone(torch.rand(8, 3, SIZE, SIZE) * 2 - 1)
    return backbone.eval()


@pytest.fixture(scope="module")
def images() -> Images:
    return np.random.default_rng(0).integers(0, 256, (7, 3, SIZE, SIZE), dtype=np.uint8)


def checkpoint(module: IRBackbone, path: Path, **metadata: str) -> Path:
    flat = FlatModel(Architecture(18, 4, SIZE, DIMS).build())
    flat.module.load_state_dict(module.state_dict())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_backbone(path, flat.layout, flat.state(), METADATA | metadata)
    return path


def public(module: IRBackbone, dialect: Dialect, path: Path) -> Path:
    state = export_state(Network(Architecture(18, 4, SIZE, DIMS), module), dialect)
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


@pytest.mark.parametrize("kind", ["run", "safetensors", "insightface", "tface", "tface.safetensors"])
def test_every_kind_of_file_embeds_as_its_module_does(
    tmp_path: Path, module: IRBackbone, images: Images, kind: str
) -> None:
    match kind:
        case "run":
            path = checkpoint(module, tmp_path / "my-run/checkpoint.safetensors").parent
            (path / "config.yaml").touch()
        case "safetensors":
            path = checkpoint(module, tmp_path / "my-run.safetensors")
        case _:
            name = "my-run.safetensors" if "." in kind else "my-run.pth"
            path = public(module, Dialect(kind.partition(".")[0]), tmp_path / name)
    for asked in ("auto", kind.partition(".")[0]):
        backbone = open_backbone(path, device="cpu", kind=asked, input_size=SIZE if "face" in kind else None)
        assert (backbone.input_size, backbone.dim) == (SIZE, DIMS)
        assert backbone.title == f"{path.name} (float32)"
        expected = embed(module, images, flip=False, device=CPU)
        np.testing.assert_allclose(backbone.embed(images), expected, rtol=0, atol=1e-5)
        assert backbone.embed(images).dtype == np.float32


def test_batches_and_read_only_images_change_nothing(tmp_path: Path, module: IRBackbone, images: Images) -> None:
    path = checkpoint(module, tmp_path / "m.safetensors")
    expected = open_backbone(path, device="cpu").embed(images)
    fixed = images.copy()
    fixed.flags.writeable = False
    small = open_backbone(path, device="cpu", batch_size=2)
    np.testing.assert_allclose(small.embed(fixed), expected, rtol=0, atol=1e-5)
    assert small.embed(images[:0]).shape == (0, DIMS)


def test_other_images_than_its_own_are_a_programmers_error(tmp_path: Path, module: IRBackbone, images: Images) -> None:
    backbone = open_backbone(checkpoint(module, tmp_path / "m.safetensors"), device="cpu")
    for wrong in (images[:, :, :-1], images.astype(np.float32)):
        with pytest.raises(ValueError, match=r"not uint8\[n, 3, 40, 40\]"):
            backbone.embed(wrong)


def test_lower_precision_is_near_and_has_another_digest(tmp_path: Path, module: IRBackbone, images: Images) -> None:
    path = checkpoint(module, tmp_path / "m.safetensors")
    exact, rounded = (open_backbone(path, device="cpu", precision=p) for p in ("float32", "bfloat16"))
    a, b = exact.embed(images), rounded.embed(images)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert (cosine > 0.99).all()
    assert (a != b).any()
    assert exact.digest != rounded.digest
    assert rounded.title == "m.safetensors (bfloat16)"


def test_float32_is_not_rounded_on_a_gpu_either(tmp_path: Path, module: IRBackbone, images: Images) -> None:
    backbone = open_backbone(checkpoint(module, tmp_path / "m.safetensors"), device="cpu")
    seen = []
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda *_: seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled))
    )
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled
    try:
        backbone.embed(images)
    finally:
        hook.remove()
    assert set(seen) == {(False, before[1])}
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("precision", "near"), [("float32", 1e-3), ("bfloat16", 0.2), ("float16", 0.05)])
def test_a_gpu_embeds_as_the_cpu_does(
    tmp_path: Path, module: IRBackbone, images: Images, precision: str, near: float
) -> None:
    path = checkpoint(module, tmp_path / "m.safetensors")
    expected = open_backbone(path, device="cpu").embed(images)
    found = open_backbone(path, device="cuda", precision=precision).embed(images)
    np.testing.assert_allclose(found, expected, rtol=0, atol=near)


def test_the_digest_is_of_weights_and_size_whatever_the_file(tmp_path: Path, module: IRBackbone) -> None:
    ours = open_backbone(checkpoint(module, tmp_path / "m.safetensors", method="pfm"), device="cpu")
    path = public(module, Dialect.TFACE, tmp_path / "t.pth")
    assert open_backbone(path, device="cpu", input_size=SIZE).digest == ours.digest
    assert open_backbone(path, device="cpu").digest != ours.digest  # 48 pixels
    assert open_backbone(path, device="cpu", input_size=SIZE, colour_order="BGR").digest != ours.digest
    state = torch.load(path, weights_only=True)
    state["body.3.res_layer.3.weight"][0] += 1e-6
    torch.save(state, path)
    assert open_backbone(path, device="cpu", input_size=SIZE).digest != ours.digest


def test_one_of_several_models_is_chosen_by_name(tmp_path: Path, module: IRBackbone, images: Images) -> None:
    run = tmp_path / "run"
    other = IRBackbone(18, width=4, input_size=SIZE, embedding=DIMS).eval()
    checkpoint(other, run / "checkpoint-a.safetensors")
    checkpoint(module, run / "checkpoint-b.safetensors")
    (run / "config.yaml").touch()
    with pytest.raises(ConfigError, match="several models; choose one of a, b"):
        open_backbone(run, device="cpu")
    backbone = open_backbone(run, device="cpu", model="b")
    assert backbone.title == "run: b (float32)"
    np.testing.assert_allclose(backbone.embed(images), embed(module, images, flip=False, device=CPU), atol=1e-5)


def test_trained_on_bgr_is_said(tmp_path: Path, module: IRBackbone, images: Images) -> None:
    path = public(module, Dialect.TFACE, tmp_path / "m.pth")
    backbone = open_backbone(path, device="cpu", input_size=SIZE, colour_order="BGR")
    assert backbone.title == "m.pth (trained on BGR) (float32)"
    expected = embed(module, np.ascontiguousarray(images[:, ::-1]), flip=False, device=CPU)
    np.testing.assert_allclose(backbone.embed(images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "float64"}, "precision 'float64': must be one of float32, bfloat16, float16"),
        ({"batch_size": 0}, "batch size 0"),
        ({"kind": "caffe"}, "kind 'caffe': must be one of auto, run"),
        ({"kind": "tface"}, "is a checkpoint of this project, not tface's"),
        ({"device": "warp"}, "device 'warp': not available here"),
        ({"model": "a"}, "model 'a': only a run's folder"),
        ({"input_size": 48}, "says itself that it takes 40 pixels, RGB"),
        ({"colour_order": "BGR"}, "says itself that it takes 40 pixels, RGB"),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, module: IRBackbone, options: dict[str, Any], said: str
) -> None:
    path = checkpoint(module, tmp_path / "m.safetensors")
    with pytest.raises(ConfigError, match=said):
        open_backbone(path, **{"device": "cpu"} | options)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"format": "fedface-backbone-9"}, "format is 'fedface-backbone-9', not 'fedface-backbone-1'"),
        ({"mean": "0.0"}, "wants mean '0.0', but pictures are fed with '127.5'"),
        ({"colour_order": "BGR"}, "wants colour_order 'BGR'"),
        ({"input_size": "-3"}, "give the input size as '-3'"),
        ({"input_size": "9" * 50}, "give the input size as"),
        ({"width": "400000000"}, "give width as '400000000', its tensors as '4'"),
        ({"architecture": "IR-50"}, "give architecture as 'IR-50', its tensors as 'IR-18'"),
        ({"embedding": "13"}, "give embedding as '13', its tensors as '12'"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(
    tmp_path: Path, module: IRBackbone, metadata: dict[str, str], said: str
) -> None:
    path = checkpoint(module, tmp_path / "m.safetensors")
    save_file(load_file(path), path, metadata={"format": "fedface-backbone-1"} | METADATA | metadata)
    with pytest.raises(DataError, match=rf"m\.safetensors: .*{said}"):
        open_backbone(path, device="cpu")


def test_paths_without_a_model_say_what_is_expected(tmp_path: Path, module: IRBackbone) -> None:
    with pytest.raises(DataError, match=r"absent: no such model; expected a run's folder, \.safetensors, \.onnx"):
        open_backbone(tmp_path / "absent")
    with pytest.raises(StateError, match="not a run's folder"):
        open_backbone(tmp_path)
    path = public(module, Dialect.TFACE, tmp_path / "m.safetensors")
    with pytest.raises(DataError, match="its metadata name no format"):
        open_backbone(path, kind="safetensors")
    with pytest.raises(DataError, match="has 0 units named as insightface's"):
        open_backbone(path, kind="insightface")
