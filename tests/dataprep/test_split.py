# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_writers import write_tree

from fedface_flwr.data.recordio import RecordIOSet
from fedface_flwr.dataprep.command import main
from fedface_flwr.dataprep.split import part_by_identity, part_by_image
from fedface_flwr.errors import DataError


@dataclass
class Listed:
    """A source of which only labels and names matter."""

    labels: npt.NDArray[np.int64]
    identities: list[str]
    keys: list[str]
    kind: str = "list"
    problems: list[str] = field(default_factory=list)

    def stamp(self) -> str:
        return ""

    def key(self, index: int) -> str:
        return self.keys[index]

    def read(self, index: int) -> tuple[bytes, str]:
        raise NotImplementedError


def listed(labels: list[int]) -> Listed:
    numbers = np.array(labels, dtype=np.int64)
    return Listed(numbers, [f"name {label}" for label in range(40)], [f"{at}.jpg" for at in range(len(labels))])


label_lists = st.lists(st.integers(0, 30), min_size=1, max_size=120)
seeds = st.integers(0, 2**63 - 1)


@given(label_lists, st.integers(2, 6), seeds)
def test_identities_stay_whole_and_parts_even(labels, parts, seed):
    source = listed(labels)
    if len(set(labels)) < parts:
        with pytest.raises(DataError, match="cannot be split"):
            part_by_identity(source, parts, seed)
        return
    part = part_by_identity(source, parts, seed)
    assert all(len(set(part[source.labels == label].tolist())) == 1 for label in set(labels))
    sizes = np.bincount(part, minlength=parts)
    assert sizes.min() > 0
    assert sizes.max() - sizes.min() <= np.bincount(source.labels).max()


@given(label_lists, st.integers(2, 6), seeds)
def test_pictures_are_dealt_evenly(labels, parts, seed):
    source = listed(labels)
    if len(labels) < parts:
        with pytest.raises(DataError, match="cannot be split"):
            part_by_image(source, parts, seed)
        return
    sizes = np.bincount(part_by_image(source, parts, seed), minlength=parts)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("assign", [part_by_identity, part_by_image])
@given(data=st.data(), labels=label_lists, seed=seeds)
def test_order_of_files_and_numbering_do_not_matter(assign, data, labels, seed):
    source = listed([*labels, 31, 32])
    order = data.draw(st.permutations(range(len(source.labels))))
    numbering = data.draw(st.permutations(range(40)))
    shuffled = Listed(
        np.array([numbering[source.labels[index]] for index in order]),
        [source.identities[numbering.index(label)] for label in range(40)],
        [source.keys[index] for index in order],
    )
    before, after = assign(source, 2, seed), assign(shuffled, 2, seed)
    assert after.tolist() == [before[index] for index in order]


@pytest.mark.parametrize("assign", [part_by_identity, part_by_image])
def test_seed_decides(assign):
    source = listed([label for label in range(30) for _ in range(3)])
    first, again, other = (assign(source, 3, seed).tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_largest_identities_are_dealt_first():
    # 4, 3, 2 and 1 pictures: 4 + 1 and 3 + 2. Dealt in the order of labels it would be 1 + 2 + 4 and 3.
    labels = [0] * 1 + [1] * 3 + [2] * 2 + [3] * 4
    part = part_by_identity(listed(labels), 2, seed=0)
    assert np.bincount(part).tolist() == [5, 5]
    of = [part[labels.index(label)] for label in range(4)]
    assert of[3] == of[0] != of[1] == of[2]


@pytest.mark.parametrize("by", ["identity", "image"])
def test_parts_are_sets_that_together_are_the_source(tmp_path, by, capsys):
    labels = [0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4]
    written = write_tree(tmp_path / "faces", labels)
    assert main(["split", str(tmp_path / "faces"), str(tmp_path / "parts"), "--parts", "3", "--by", by]) == 0
    manifest = json.loads((tmp_path / "parts/manifest.json").read_text())
    assert (manifest["by"], manifest["seed"]) == (by, 0)
    assert [part["name"] for part in manifest["parts"]] == ["faces-1", "faces-2", "faces-3"]
    where: dict[str, bytes] = {}
    for part in manifest["parts"]:
        folder = tmp_path / "parts" / part["name"]
        faces = RecordIOSet.open(folder)
        assert faces.num_identities == len(part["identities"]) == len(set(faces.labels.tolist()))
        assert (folder / "property").read_text() == f"{faces.num_identities},16,16\n"
        sidecar = [line.split("\t")[1] for line in (folder / "identities.txt").read_text().splitlines()]
        assert sidecar == part["identities"]
        assert part["images"] == len(part["records"]) == len(faces.labels)
        for index, record in enumerate(part["records"]):
            assert record not in where
            where[record] = faces.read(index)[0]
            assert part["identities"][faces.labels[index]] == Path(record).parent.name
    tree = sorted((tmp_path / "faces").rglob("*.jpg"))
    assert where == {str(path.relative_to(tmp_path / "faces")): path.read_bytes() for path in tree}
    assert len(where) == len(written)
    if by == "identity":
        names = [name for part in manifest["parts"] for name in part["identities"]]
        assert len(names) == len(set(names)) == 5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{tmp_path}/parts/faces-1: ")
    again = ["split", str(tmp_path / "faces"), str(tmp_path / "parts"), "--parts", "3", "--by", by]
    assert main(again) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_twelve_parties_of_three_real_sets(shared_dir, tmp_path):
    for name, images, identities in (("celeba", 4585, 256), ("fiw", 5802, 603), ("lag", 2088, 703)):
        dest = tmp_path / name
        assert main(["split", str(shared_dir / "faces" / name), str(dest), "--parts", "4", "--seed", "1"]) == 0
        parts = [RecordIOSet.open(dest / f"{name}-{number}") for number in range(1, 5)]
        sizes = [len(part.labels) for part in parts]
        assert sum(sizes) == images
        assert max(sizes) - min(sizes) < 0.005 * images / 4
        assert sum(part.num_identities for part in parts) == identities


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--parts", "6"], "5 identities cannot be split into 6 parts by identity"),
        (["--parts", "12", "--by", "image"], "11 pictures cannot be split into 12 parts"),
    ],
)
def test_more_parts_than_there_are(tmp_path, capsys, arguments, problem):
    write_tree(tmp_path / "faces", [0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4])
    assert main(["split", str(tmp_path / "faces"), str(tmp_path / "parts"), *arguments]) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()


def test_broken_picture_stops_a_split(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0, 1])
    (tmp_path / "faces/id-001/0001.jpg").write_bytes(b"x")
    assert main(["split", str(tmp_path / "faces"), str(tmp_path / "parts"), "--parts", "2"]) == 1
    assert "id-001/0001.jpg: the image cannot be decoded" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()
