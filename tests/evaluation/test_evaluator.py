# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from grid import tiny_config
from reference_verification import usual_loop

from fedface_flwr.data.images import normalise
from fedface_flwr.data.sources import pair_set
from fedface_flwr.errors import DataError
from fedface_flwr.evaluation.evaluator import Evaluator, figures
from fedface_flwr.evaluation.tasks import EvaluateTask
from fedface_flwr.evaluation.verification import Verification
from fedface_flwr.federation.layout import ModelState
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel

# 80 pairs are 8 a fold, of which the first 4 are positive.
OVERRIDES = ("data.synthetic.pairs=80", "data.synthetic.pair_identities=30")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return tiny_config(tmp_path_factory.mktemp("run"), "fedface", *OVERRIDES)


@pytest.fixture(scope="module")
def model(config):
    return FlatModel(build_backbone(config.model, seed=5))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "flipped"])
def flip(request):
    return request.param


@pytest.fixture(scope="module")
def plain(config, model, flip):
    """Squared distances and kinds of all pairs, from one image at a time."""
    pairs = pair_set(config, "delta", None)
    backbone = model.module.eval()
    with torch.no_grad():
        rows = []
        for image in torch.from_numpy(pairs.images.copy()):
            pixels = normalise(image[None])
            embedding = backbone(pixels) + (backbone(pixels.flip(-1)) if flip else 0)
            rows.append(torch.nn.functional.normalize(embedding.double())[0])
    vectors = torch.stack(rows).numpy()
    return ((vectors[::2] - vectors[1::2]) ** 2).sum(axis=1), pairs.same


def evaluate(config, model, purpose, half="first"):
    return Evaluator(config, "delta", None).evaluate(EvaluateTask(purpose, half, model.state(), 1))


@pytest.mark.parametrize("half", ["first", "second"])
def test_a_score_is_the_percent_right_on_its_half_by_the_usual_loop(config, model, half, flip, plain):
    config = replace(config, fv=replace(config.fv, flip=flip, pairs=0))
    distances, same = plain
    folds = range(5) if half == "first" else range(5, 10)
    _, accuracies = usual_loop(distances, same, 10, folds, folds)
    assert evaluate(config, model, "validation", half)["score"] == pytest.approx(100 * np.mean(accuracies), abs=1e-9)


def test_a_score_of_fewer_pairs_takes_them_from_each_fold_evenly(config, model, flip, plain):
    config = replace(config, fv=replace(config.fv, flip=flip, pairs=20))
    distances, same = plain
    # Four of each fold's eight: every other one.
    chosen = np.arange(0, 40, 2)
    _, accuracies = usual_loop(distances[chosen], same[chosen], 5, range(5), range(5))
    assert evaluate(config, model, "validation")["score"] == pytest.approx(100 * np.mean(accuracies), abs=1e-9)


@pytest.mark.parametrize("flip", [True], indirect=True)
@pytest.mark.parametrize(("half", "tested"), [("first", range(5, 10)), ("second", range(5))])
def test_the_test_is_on_the_other_half_with_thresholds_from_all_other_folds(config, model, plain, half, tested):
    distances, same = plain
    _, accuracies = usual_loop(distances, same, 10, tested, range(10))
    result = evaluate(config, model, "test", half)
    assert result["accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-9)
    assert result["accuracy_std"] == pytest.approx(np.std(accuracies), abs=1e-9)
    assert result["pairs"] == 40
    assert result["seconds"] > 0


def test_the_model_that_is_sent_is_the_one_that_is_judged(config, model):
    evaluator = Evaluator(config, "delta", None)
    other = FlatModel(build_backbone(config.model, seed=6))
    results = []
    for state in (model.state(), other.state(), model.state()):
        figures = evaluator.evaluate(EvaluateTask("test", "first", state, 1))
        del figures["seconds"]
        results.append(figures)
    assert results[0] == results[2] != results[1]


@pytest.mark.parametrize("purpose", ["validation", "test"])
def test_a_diverged_model_is_an_error_that_names_the_pack(config, model, purpose):
    values = np.full(model.layout.num_values, np.nan, dtype=np.float32)
    task = EvaluateTask(purpose, "first", ModelState(values, model.state().counters), 1)
    with pytest.raises(DataError, match=r"verification pack delta: \d+ of \d+ embeddings are zero or not finite"):
        Evaluator(config, "delta", None).evaluate(task)


def test_figures_have_the_summary_s_names():
    result = Verification(0.75, 0.125, (1.0,), (0.75,), {1e-3: 0.5, 1e-4: 0.25}, 0.875, 40)
    assert figures(result) == {
        "accuracy": 0.75,
        "accuracy_std": 0.125,
        "tar_at_far_1e-3": 0.5,
        "tar_at_far_1e-4": 0.25,
        "auc": 0.875,
        "pairs": 40.0,
    }
