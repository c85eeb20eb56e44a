# SPDX-License-Identifier: Apache-2.0
"""TinyFace's folders, and its figures against plain loops over the same pictures."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.pictures import Embedded
from fedface_flwr.protocols.tinyface import from_options

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


@pytest.fixture
def test_set(tmp_path):
    """Probes and mates of twelve persons, some with several mates, one probe without; forty distractors."""
    rng = np.random.default_rng(0)
    columns = rng.uniform(40, 215, size=(12, SIDE))
    rows = {"Probe": [], "Gallery_Match": [], "Gallery_Distractor": []}

    def save(part, name, person):
        noise = rng.normal(0, 60, size=(SIDE, SIDE))
        centre = columns[person] if person is not None else rng.uniform(40, 215, size=SIDE)
        pixels = np.clip(centre + 0.5 * noise + rng.normal(0, 55, size=SIDE), 0, 255).astype(np.uint8)
        (tmp_path / part).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / part / name, format="PNG")
        rows[part].append((name, person, pixels.mean(axis=0) - 127))

    for person in range(12):
        for number in range(2):
            save("Probe", f"{person}_{number}.jpg", person)
        for number in range(person % 3 if person else 1):
            save("Gallery_Match", f"{person}_{number + 5}.jpg", person)
    for number in range(40):
        save("Gallery_Distractor", f"{number}.jpg", None)
    (tmp_path / "Probe" / ".hidden.jpg").write_bytes(b"")
    (tmp_path / "Probe" / "Thumbs.db").write_bytes(b"")
    return tmp_path, rows


def plain_ranks(rows, flip):
    """Rank of the best mate of each mated probe, and its precision at each mate, one comparison at a time."""

    def vector(entry):
        row = entry[2] + entry[2][::-1] if flip else entry[2]
        return row / np.linalg.norm(row)

    gallery = rows["Gallery_Match"] + rows["Gallery_Distractor"]
    ranks, precisions = [], []
    for probe in rows["Probe"]:
        ranking = sorted(gallery, key=lambda entry: -(vector(probe) @ vector(entry)))
        places = [place for place, entry in enumerate(ranking, start=1) if entry[1] == probe[1]]
        if places:
            ranks.append(places[0])
            precisions.append(np.mean([number / place for number, place in enumerate(places, start=1)]))
    return np.array(ranks), float(np.mean(precisions))


def test_figures_agree_with_plain_loops(test_set):
    root, rows = test_set
    outcome = from_options("tf", {"folder": ".", "flip": "both"}, root).run(ColumnEmbedder())
    for flip, told in ((False, "none"), (True, "added")):
        ranks, average = plain_ranks(rows, flip)
        found = {
            (figure.metric, figure.conditions.get("average precision")): figure
            for figure in outcome.figures
            if figure.conditions["flip"] == told
        }
        for k in (1, 5, 10, 20, 50):
            assert found[f"rank {k}", None].value == np.mean(ranks <= k)
        assert 0 < found["rank 1", None].value < found["rank 10", None].value
        assert found["mAP", "standard"].value == pytest.approx(average, abs=1e-6)
        assert found["mAP", "trapezoidal"].value != found["mAP", "standard"].value
        note = found["rank 1", None].note
        assert "3,728 probes" in note
        assert "left out, for want of a mate: 6 of 24 probes" in note
    first, second = outcome.curves
    assert first.y[0] == np.mean(plain_ranks(rows, False)[0] <= 1)
    assert (np.diff(second.y) >= 0).all()
    assert len({figure.full_name for figure in outcome.figures}) == len(outcome.figures) == 14


def test_what_is_missing_or_misnamed_is_said(test_set):
    root, _ = test_set
    options = {"folder": "."}
    with pytest.raises(ConfigError, match="need a model"):
        from_options("tf", options, root).run(None)
    with pytest.raises(ConfigError, match="tf: no such option: folders"):
        from_options("tf", {"folders": "."}, root)
    (root / "Probe" / "nobody.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"tf: .*nobody.jpg: the name does not begin"):
        from_options("tf", options, root)
    (root / "Probe" / "nobody.jpg").rename(root / "Probe" / "3_9.jpg")
    with pytest.raises(DataError, match=r"3_9.jpg"):
        from_options("tf", options, root).run(ColumnEmbedder())
    for picture in (root / "Gallery_Distractor").iterdir():
        picture.unlink()
    with pytest.raises(DataError, match="Gallery_Distractor: holds no pictures"):
        from_options("tf", options, root)
    (root / "Gallery_Distractor").rmdir()
    with pytest.raises(DataError, match="Gallery_Distractor: not a folder"):
        from_options("tf", options, root)
