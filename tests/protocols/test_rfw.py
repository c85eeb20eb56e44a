# SPDX-License-Identifier: Apache-2.0
"""RFW's four groups: from its tree and from packs, and the figures between the groups."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import Figure
from fedface_flwr.evaluation.pictures import Embedded
from fedface_flwr.evaluation.verification import pair_distances, verify
from fedface_flwr.protocols.rfw import RACES, between_races, from_options, read_rfw_pairs

SIDE = 16


class ColumnEmbedder:
    """Takes the mean of each column of pixels for an embedding, so that mirroring reverses it."""

    def __call__(self, pictures, *, flip, what):
        rows = []
        for index in range(len(pictures)):
            data, where = pictures.read(index)
            rows.append(pictures.pixels(data, index, SIDE, where).mean(axis=(0, 1)).astype(np.float32) - 127)
        plain = np.array(rows)
        return Embedded(plain, plain[:, ::-1] if flip else None)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def sets(tmp_path):
    """Twenty pairs a race, the first of a fold of one person and the second of two, as a tree and as packs."""
    rng = np.random.default_rng(0)
    embeddings = {}
    for race in RACES:
        folder, lines, encoded, labels, rows = tmp_path / "data" / race, [], [], [], []
        for fold in range(10):
            one, two = f"m.{fold}a", f"m.{fold}b"
            columns = {name: rng.uniform(40, 215, size=SIDE) for name in (one, two)}
            for name in (one, two):
                (folder / name).mkdir(parents=True)
            pictures = {}
            for name, number in ((one, 1), (one, 2), (two, 3)):
                blurred = columns[name] + rng.normal(0, 45, size=SIDE)
                pictures[name, number] = np.tile(np.clip(blurred, 0, 255), (SIDE, 1)).astype(np.uint8)
                (folder / name / f"{name}_{number:04d}.jpg").write_bytes(png(pictures[name, number]))
            lines += [f"{one}\t1\t2", f"{one}\t1\t{two}\t3"]
            for other in ((one, 2), (two, 3)):
                encoded += [png(pictures[one, 1]), png(pictures[other])]
                rows += [pictures[one, 1].mean(axis=0) - 127, pictures[other].mean(axis=0) - 127]
            labels += [True, False]
        (tmp_path / "txts" / race).mkdir(parents=True)
        (tmp_path / "txts" / race / f"{race}_pairs.txt").write_text("\n".join(lines) + "\n")
        (tmp_path / f"{race}_test.bin").write_bytes(pickle.dumps((encoded, labels)))
        embeddings[race] = np.array(rows, dtype=np.float32)
    return tmp_path, embeddings


@pytest.mark.parametrize("options", [{"folder": "."}, {"folder": ".", "format": "packs"}])
def test_accuracy_of_each_race_is_that_of_its_pairs(sets, options):
    root, embeddings = sets
    outcome = from_options("rfw", options | {"flip": "both"}, root).run(ColumnEmbedder())
    accuracies = {
        (figure.conditions["race"], figure.conditions["flip"]): figure.value
        for figure in outcome.figures
        if figure.metric == "accuracy" and figure.conditions["threshold rule"].startswith("grid")
    }
    same = np.arange(20) % 2 == 0
    for race in RACES:
        rows = embeddings[race]
        for flip, found in (("none", rows), ("added", rows + rows[:, ::-1])):
            assert accuracies[race, flip] == verify(pair_distances(found), same).accuracy
    assert len(set(accuracies.values())) > 2
    means = [f for f in outcome.figures if f.metric == "mean accuracy of races" and f.conditions["flip"] == "added"]
    assert len(means) == 2
    ours = next(f for f in means if f.conditions["threshold rule"].startswith("grid"))
    assert ours.value == pytest.approx(np.mean([accuracies[race, "added"] for race in RACES]), abs=1e-15)
    assert len({figure.full_name for figure in outcome.figures}) == len(outcome.figures)
    assert len({curve.label for curve in outcome.curves}) == len(outcome.curves) == 8


def accuracy(race, value):
    return Figure("rfw", "p", "accuracy", value, {"race": race, "flip": "none", "folds": "consecutive"})


def test_figures_between_races_by_hand():
    """Errors of 4, 6, 2 and 8 per cent: mean 5, deviations sqrt(5) and sqrt(20/3) points, ratio 8/2."""
    values = dict(zip(RACES, (0.96, 0.94, 0.98, 0.92), strict=True))
    mean, population, sample, ratio = between_races("rfw", [accuracy(race, value) for race, value in values.items()])
    assert mean.value == pytest.approx(0.95, abs=1e-12)
    assert population.value == pytest.approx(np.sqrt(5) / 100, abs=1e-12)
    assert sample.value == pytest.approx(np.sqrt(20 / 3) / 100, abs=1e-12)
    assert ratio.value == pytest.approx(4, abs=1e-9)
    assert "Indian over Caucasian" in ratio.note
    assert mean.conditions == {"races": "4", "flip": "none", "folds": "consecutive"}


def test_a_race_without_error_leaves_no_ratio():
    *_, ratio = between_races("rfw", [accuracy("African", 1.0), accuracy("Asian", 0.9)])
    assert np.isnan(ratio.value)
    assert "no error on African" in ratio.note


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("m.0a 1", "line 1: 'm.0a 1' is neither"),
        ("m.0a 1 x", "line 1: 'x' is not a whole number"),
        ("m.0a 1 9", "line 1: there is no picture"),
        ("../m.0a 1 2", "no folder's name"),
    ],
)
def test_a_damaged_list_is_refused(sets, line, said):
    root, _ = sets
    path = root / "txts" / "Asian" / "Asian_pairs.txt"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=said):
        read_rfw_pairs(path, root / "data" / "Asian", "jpg")
    with pytest.raises(DataError, match=f"rfw: Asian: .*{said}"):
        from_options("rfw", {"folder": "."}, root)


def test_what_is_missing_is_said(sets):
    root, _ = sets
    with pytest.raises(ConfigError, match="need a model"):
        from_options("rfw", {"folder": "."}, root).run(None)
    with pytest.raises(ConfigError, match="no such option: ending"):
        from_options("rfw", {"folder": ".", "ending": ".bin"}, root)
    with pytest.raises(DataError, match=r"rfw: African: .*African.bin: cannot be read"):
        from_options("rfw", {"folder": ".", "format": "packs", "ending": ".bin"}, root)
    path = root / "txts" / "Indian" / "Indian_pairs.txt"
    path.write_text("\n".join(path.read_text().splitlines()[::2]) + "\n")
    with pytest.raises(DataError, match=r"Indian: .*: 10 pairs, all of one kind"):
        from_options("rfw", {"folder": "."}, root)
    path.write_text("m.0a 1 2\n")
    with pytest.raises(DataError, match="1 pair cannot fill 10 folds"):
        from_options("rfw", {"folder": "."}, root)
