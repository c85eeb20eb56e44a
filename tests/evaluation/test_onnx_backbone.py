# SPDX-License-Identifier: Apache-2.0
"""Embedding by small graphs of which every value is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from fedface_flwr.data.images import PREPROCESSING
from fedface_flwr.data.sets import Images
from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.backbones import open_backbone
from fedface_flwr.evaluation.onnx_backbone import FORMAT, OnnxBackbone

SIZE = 4
FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8


def graph(
    path: Path,
    shape: Sequence[int | str] = ("n", 3, SIZE, SIZE),
    *,
    dtype: int = FLOAT,
    before: Sequence[Any] = (),
    outputs: Sequence[str] = ("out",),
    taken: str = "",
    axes: Sequence[int] = (2, 3),
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write a graph that gives the mean over height and width at each output; ``before`` comes first."""
    last = taken or (before[-1].output[0] if before else "in")
    nodes = [*before, *(helper.make_node("ReduceMean", [last, "axes"], [name], keepdims=0) for name in outputs)]
    constants = [
        numpy_helper.from_array(np.array(axes, np.int64), "axes"),
        numpy_helper.from_array(np.array([100.0], np.float32), "hundred"),
    ]
    built = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("in", dtype, list(shape))],
        [helper.make_tensor_value_info(name, FLOAT, [shape[0], 3]) for name in outputs],
        constants,
    )
    model = helper.make_model(built, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


def pictures(count: int = 5) -> Images:
    return np.random.default_rng(2).integers(0, 256, (count, 3, SIZE, SIZE), dtype=np.uint8)


def means(images: Images) -> np.ndarray:
    return images.mean((2, 3), dtype=np.float64)


def test_a_foreign_graph_is_fed_as_the_field_does_and_says_so(tmp_path: Path) -> None:
    backbone = open_backbone(graph(tmp_path / "w.onnx"), device="cpu", batch_size=2)
    np.testing.assert_allclose(backbone.embed(pictures()), (means(pictures()) - 127.5) / 127.5, rtol=0, atol=1e-6)
    assert backbone.title == "w.onnx (preprocessing assumed: RGB (x - 127.5) / 127.5, NCHW)"
    assert (backbone.input_size, backbone.dim) == (SIZE, 3)
    assert backbone.embed(pictures()[:0]).shape == (0, 3)


def test_bgr_pixels_reach_a_graph_that_was_trained_on_them(tmp_path: Path) -> None:
    backbone = open_backbone(graph(tmp_path / "w.onnx"), device="cpu", colour_order="BGR")
    expected = (means(pictures())[:, ::-1] - 127.5) / 127.5
    np.testing.assert_allclose(backbone.embed(pictures()), expected, rtol=0, atol=1e-6)
    assert "BGR" in backbone.title


def test_channels_last_are_recognised(tmp_path: Path) -> None:
    backbone = open_backbone(graph(tmp_path / "w.onnx", ("n", SIZE, SIZE, 3), axes=(1, 2)), device="cpu")
    np.testing.assert_allclose(backbone.embed(pictures()), (means(pictures()) - 127.5) / 127.5, rtol=0, atol=1e-6)
    assert "NHWC" in backbone.title


def test_a_fixed_batch_is_filled_up_and_cut(tmp_path: Path) -> None:
    backbone = open_backbone(graph(tmp_path / "w.onnx", (4, 3, SIZE, SIZE)), device="cpu", batch_size=64)
    for count in (1, 4, 5):
        found = backbone.embed(pictures(count))
        np.testing.assert_allclose(found, (means(pictures(count)) - 127.5) / 127.5, rtol=0, atol=1e-6)


def test_a_graph_that_takes_bytes_gets_them(tmp_path: Path) -> None:
    cast = helper.make_node("Cast", ["in"], ["f"], to=FLOAT)
    backbone = open_backbone(graph(tmp_path / "w.onnx", dtype=UINT8, before=[cast]), device="cpu")
    np.testing.assert_allclose(backbone.embed(pictures()), means(pictures()), rtol=1e-6)
    assert backbone.title == "w.onnx (preprocessing assumed: RGB pixel values, NCHW)"


def test_a_graph_that_normalises_itself_gets_pixel_values(tmp_path: Path) -> None:
    sub = helper.make_node("Sub", ["in", "hundred"], ["f"])
    backbone = open_backbone(graph(tmp_path / "w.onnx", before=[sub]), device="cpu")
    np.testing.assert_allclose(backbone.embed(pictures()), means(pictures()) - 100, rtol=1e-5)


def test_a_graph_of_any_size_takes_the_fields_or_the_one_asked_for(tmp_path: Path) -> None:
    path = graph(tmp_path / "w.onnx", ("n", 3, "h", "w"))
    assert open_backbone(path, device="cpu").input_size == 112
    assert open_backbone(path, device="cpu", input_size=SIZE).embed(pictures()).shape == (5, 3)
    with pytest.raises(ConfigError, match=r"input size 9: .*takes 4"):
        open_backbone(graph(tmp_path / "x.onnx"), device="cpu", input_size=9)


@pytest.mark.parametrize("preprocessing", ["inside", "outside"])
def test_our_own_say_who_normalises(tmp_path: Path, preprocessing: str) -> None:
    metadata = {"format": FORMAT, "preprocessing": preprocessing, **PREPROCESSING.metadata()}
    backbone = open_backbone(graph(tmp_path / "w.onnx", metadata=metadata), device="cpu")
    inside = preprocessing == "inside"
    expected = means(pictures()) if inside else (means(pictures()) - 127.5) / 127.5
    np.testing.assert_allclose(backbone.embed(pictures()), expected, rtol=1e-5, atol=1e-6)
    assert backbone.title == "w.onnx"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [({"preprocessing": "aside"}, "give preprocessing as 'aside'"), ({"mean": "1.0"}, "wants mean '1.0'")],
)
def test_our_own_with_odd_metadata_are_refused(tmp_path: Path, metadata: dict[str, str], said: str) -> None:
    whole = {"format": FORMAT, "preprocessing": "inside", **PREPROCESSING.metadata()} | metadata
    with pytest.raises(DataError, match=said):
        open_backbone(graph(tmp_path / "w.onnx", metadata=whole), device="cpu")


def test_the_output_named_embedding_is_taken_of_several(tmp_path: Path) -> None:
    open_backbone(graph(tmp_path / "w.onnx", outputs=("score", "embedding")), device="cpu")
    with pytest.raises(DataError, match=r"has 2 float32 outputs \(a, b\), of which none is embedding"):
        open_backbone(graph(tmp_path / "x.onnx", outputs=("a", "b")), device="cpu")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shape": ("n", 3, SIZE, 5)}, "not square pictures of three channels"),
        ({"shape": ("n", 1, SIZE, SIZE)}, "not square pictures of three channels"),
        ({"dtype": TensorProto.DOUBLE, "before": [helper.make_node("Cast", ["in"], ["f"], to=FLOAT)]}, "neither uint8"),
        ({"axes": (3,)}, r"gives \[1, 3, 4\] for 1 pictures, not an embedding of each"),
        ({"axes": (0, 2)}, r"gives \[3, 4\] for 1 pictures"),
        ({"axes": (9,)}, "cannot"),
    ],
)
def test_graphs_that_do_not_embed_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_backbone(graph(tmp_path / "w.onnx", **options), device="cpu")


def test_weights_in_other_files_are_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "w.onnx")
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    with pytest.raises(DataError, match=r"w\.onnx: .*(other files|external data|weights\.bin)"):
        open_backbone(path, device="cpu")


@pytest.mark.parametrize("content", [b"", b"\x08", b"no graph at all", bytes(1000)])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.onnx"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"w\.onnx: not a valid ONNX file"):
        open_backbone(path, device="cpu")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "w.onnx")
    whole = path.read_bytes()
    for part in range(1, 10):
        path.write_bytes(whole[: len(whole) * part // 10])
        with pytest.raises(DataError, match=r"w\.onnx"):
            open_backbone(path, device="cpu")


def test_options_of_other_files_are_refused(tmp_path: Path) -> None:
    path = graph(tmp_path / "w.onnx")
    with pytest.raises(ConfigError, match="precision 'bfloat16': an ONNX file computes in its own"):
        open_backbone(path, device="cpu", precision="bfloat16")
    with pytest.raises(ConfigError, match="model 'a': only a run's folder"):
        open_backbone(path, device="cpu", model="a")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDAExecutionProvider here"):
            OnnxBackbone.open(path, device=torch.device("cuda"))


def test_the_digest_is_of_the_file_and_how_it_is_fed(tmp_path: Path) -> None:
    path = graph(tmp_path / "w.onnx")
    digest = open_backbone(path, device="cpu").digest
    assert open_backbone(path, device="cpu", batch_size=3).digest == digest
    assert open_backbone(path, device="cpu", colour_order="BGR").digest != digest
    assert open_backbone(graph(tmp_path / "v.onnx", metadata={"a": "b"}), device="cpu").digest != digest
