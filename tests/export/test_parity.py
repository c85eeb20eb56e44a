# SPDX-License-Identifier: Apache-2.0
"""The comparison of two backbones, by backbones whose embeddings are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_model import faces

from fedface_flwr.data.sets import Images
from fedface_flwr.errors import DataError
from fedface_flwr.export.parity import Sample, check, sample


class Mean:
    """Embeds a picture as its mean red and 4, plus what is wrong with it, and notes its batches."""

    title, digest, input_size, dim = "mean", "", 40, 2

    def __init__(self, error: float = 0.0, columns: int = 2) -> None:
        self.error, self.columns = error, columns

    def embed(self, images: Images) -> np.ndarray:
        red = images[:, 0].mean((1, 2)) / 255 + self.error
        return np.stack([red, *[np.full(len(images), 4.0)] * (self.columns - 1)], axis=1).astype(np.float32)


SAMPLE = Sample(np.zeros((3, 3, 40, 40), np.uint8), "black")


def test_the_largest_difference_of_all_batches_is_told_raw_and_of_unit_length() -> None:
    opened: list[int] = []

    def candidate(batch: int) -> Mean:
        opened.append(batch)
        return Mean(8e-5 if batch == 1 else 4e-5)

    parity = check(Mean(), candidate, SAMPLE)
    assert opened == [1, 3]
    # (0, 4) against (8e-5, 4): at unit length the first is 2e-5, the second the same to 1e-10.
    assert parity.raw == pytest.approx(8e-5, rel=1e-4)
    assert parity.normalised == pytest.approx(2e-5, rel=1e-4)
    assert str(parity) == (
        "3 pictures (black), batches of 1 and 3: largest difference 2.00e-05 (L2-normalised), 8.00e-05 (raw)"
    )


@pytest.mark.parametrize("wrong", [Mean(1.1e-3), Mean(float("nan")), Mean(columns=3)])
def test_more_than_the_limit_no_number_and_another_shape_are_refused(wrong: Mean) -> None:
    with pytest.raises(DataError, match="does not embed as the model does, so it was discarded: 3 pictures"):
        check(Mean(), lambda batch: wrong, SAMPLE)


@pytest.mark.parametrize("wrong", [Mean(float("nan")), Mean(columns=3)])
@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_wrong_in_one_size_of_batch_alone_is_found(wrong: Mean, batch: int) -> None:
    with pytest.raises(DataError, match="does not embed as the model does"):
        check(Mean(), lambda size: wrong if size == batch else Mean(), SAMPLE)


def test_pictures_are_spread_over_their_source(tmp_path: Path) -> None:
    for at in range(31):
        folder = tmp_path / f"{at:02}"
        folder.mkdir()
        Image.new("RGB", (40, 40), (8 * at, 0, 0)).save(folder / "face.png")
    found = sample(tmp_path, 40)
    assert found.name == tmp_path.name
    # 16 of 31: every second one, both ends among them.
    assert found.images[:, 0, 0, 0].tolist() == [8 * at for at in range(0, 31, 2)]


def test_synthetic_faces_serve_where_there_are_none() -> None:
    found = sample(None, 40)
    assert found.images.shape == (16, 3, 40, 40)
    assert len({image.tobytes() for image in found.images}) == 16
    assert found.images.shape[1:] == faces(1).shape[1:]


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.bin: cannot be read"):
        sample(tmp_path / "absent.bin", 40)
