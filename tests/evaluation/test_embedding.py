# SPDX-License-Identifier: Apache-2.0
"""Embedding with backbones small enough to know the answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedface_flwr.data.sets import PairSet
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.embedding import embed, score_pairs
from fedface_flwr.evaluation.verification import half_folds, pair_distances, verify
from fedface_flwr.models.ir import IRBackbone

CPU = torch.device("cpu")


class TopLeftPixel(nn.Module):
    """Embeds an image as its top left pixel, and counts the images that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return images[:, :, 0, 0]


class Broken(nn.Module):
    def forward(self, images):
        raise RuntimeError("broken")


def random_images(count, size=5):
    return np.random.default_rng(count).integers(0, 256, (count, 3, size, size), dtype=np.uint8)


def scaled(pixels):
    return (pixels.astype(np.float32) - 127.5) / 127.5


def linear_backbone(size=5, dim=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, dim))


def test_flip_adds_the_embedding_of_the_image_mirrored_left_to_right():
    images = random_images(7)
    embeddings = embed(TopLeftPixel(), images, device=CPU)
    # The mirrored image has the top right pixel on its left; upside down it would be the bottom left one.
    np.testing.assert_array_equal(embeddings, scaled(images[:, :, 0, 0]) + scaled(images[:, :, 0, -1]))
    assert embeddings.dtype == np.float32


def test_without_flip_the_embedding_is_the_backbone_output():
    images = random_images(7)
    embeddings = embed(TopLeftPixel(), images, flip=False, device=CPU)
    np.testing.assert_array_equal(embeddings, scaled(images[:, :, 0, 0]))


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_batches_keep_every_image_in_order(batch_size):
    images = random_images(7)
    whole = embed(TopLeftPixel(), images, device=CPU)
    np.testing.assert_array_equal(embed(TopLeftPixel(), images, batch_size=batch_size, device=CPU), whole)


def test_each_module_gets_its_mode_back_and_statistics_stay():
    backbone = IRBackbone(18, width=2, input_size=16, embedding=4)
    backbone.train()
    frozen = next(module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d))
    frozen.eval()
    modes = [module.training for module in backbone.modules()]
    state = {name: value.clone() for name, value in backbone.state_dict().items()}

    first = embed(backbone, random_images(6, 16), device=CPU)

    assert [module.training for module in backbone.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in backbone.state_dict().items())
    # Dropout would make the second differ.
    np.testing.assert_array_equal(embed(backbone, random_images(6, 16), device=CPU), first)


def test_mode_comes_back_when_the_backbone_fails():
    backbone = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        embed(backbone, random_images(2), device=CPU)
    assert backbone.training


@pytest.mark.filterwarnings("error")
def test_read_only_images_are_embedded_without_a_warning():
    images = random_images(2)
    images.setflags(write=False)
    assert embed(TopLeftPixel(), images, device=CPU).shape == (2, 3)


def test_low_precision_rounds_the_products_and_gives_float32():
    images, backbone = random_images(8), linear_backbone()
    exact = embed(backbone, images, device=CPU)
    rounded = embed(backbone, images, device=CPU, precision=torch.bfloat16)
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - exact).max() < 0.05


@pytest.mark.parametrize("half", ["first", "second"])
def test_score_pairs_is_verify_on_the_embeddings(half):
    generator = np.random.default_rng(1)
    pairs = PairSet("made", random_images(2 * 47), generator.random(47) < 0.5)
    backbone = linear_backbone()
    distances = pair_distances(embed(backbone, pairs.images, device=CPU))
    validation, test = half_folds(half)
    for tested, choosing in ((validation, validation), (test, range(10)), ((7, 2), (9, 2, 0))):
        result = score_pairs(backbone, pairs, test_folds=tested, threshold_folds=choosing, device=CPU)
        expected = verify(distances, pairs.same, test_folds=tested, threshold_folds=choosing)
        assert (result.thresholds, result.fold_accuracies) == (expected.thresholds, expected.fold_accuracies)
        assert (result.tar_at_far, result.auc, result.pairs) == (
            expected.tar_at_far,
            expected.auc,
            expected.pairs,
        )


def test_score_pairs_embeds_only_the_folds_it_needs():
    pairs = PairSet("made", random_images(2 * 23), np.arange(23) % 2 == 0)
    backbone = TopLeftPixel()
    score_pairs(backbone, pairs, test_folds=[1], threshold_folds=[1, 4, 9], flip=False, device=CPU)
    # 23 pairs make folds of 3, 3, 3 and seven of 2: folds 1, 4 and 9 hold 3 + 2 + 2 pairs of two images.
    assert backbone.seen == 14


def test_score_pairs_names_the_pack_in_its_errors():
    pairs = PairSet("lfw", random_images(2 * 9), np.arange(9) % 2 == 0)
    with pytest.raises(DataError, match="verification pack lfw: 9 pairs cannot fill 10 folds"):
        score_pairs(TopLeftPixel(), pairs, device=CPU)
