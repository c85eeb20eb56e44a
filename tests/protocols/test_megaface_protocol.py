# SPDX-License-Identifier: Apache-2.0
"""MegaFace from the devkit's files, from a matrix and from pictures."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct

import numpy as np
import pytest
from PIL import Image

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.megaface import Distractors, Noise, evaluate
from fedface_flwr.evaluation.megaface_probes import Probes
from fedface_flwr.evaluation.pictures import Embedded
from fedface_flwr.protocols.megaface import from_options
from fedface_flwr.protocols.megaface_features import FeatureFiles, load_matrix, read_feature
from fedface_flwr.protocols.megaface_lists import distractor_noise, identities_of, probe_noise, read_list, rows_of

DIM = 16


def feature_bytes(values, header=None):
    values = np.asarray(values, "<f4")
    return struct.pack("<4i", *(header or (len(values), 1, 4, 5))) + values.tobytes()


@pytest.fixture
def devkit(tmp_path):
    """Three persons with four faces each, forty distractors: lists, noise lists and a feature file each."""
    rng = np.random.default_rng(0)
    centres = np.repeat(rng.normal(size=(3, DIM)), 4, axis=0)
    probes = (centres + 0.6 * rng.normal(size=centres.shape)).astype(np.float32)
    distractors = rng.normal(size=(40, DIM)).astype(np.float32)
    names = [f"Person_{n // 4}/Person_{n // 4}_{n}.png" for n in range(12)]
    others = [f"{n % 7}/{n}@N00/{n}_0.jpg" for n in range(40)]
    for root, own, rows in (("facescrub", names, probes), ("megaface", others, distractors)):
        for name, row in zip(own, rows, strict=True):
            path = tmp_path / root / f"{name}_net.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(feature_bytes(row))
    listed = {"id": [name.split("/")[0] for name in names], "path": names}
    (tmp_path / "facescrub_features_list.json").write_text(json.dumps(listed))
    (tmp_path / "megaface_features_list.json").write_text(json.dumps({"path": others}))
    (tmp_path / "megaface_features_list.json_10_1").write_text(json.dumps({"path": others[30:20:-1]}))
    (tmp_path / "facescrub_noises.txt").write_text("# noise\nPerson_1_5.png\nSomebody_7.png\n")
    (tmp_path / "megaface_noises.txt").write_text("# noise\n2/2@N00/2_0.jpg\n707\t3/3@N00/3_0.jpg\n")
    return tmp_path, probes, distractors


OPTIONS = {
    "probes": "facescrub_features_list.json",
    "probe_features": "facescrub",
    "distractors": "megaface_features_list.json",
    "distractor_features": "megaface",
    "ending": "_net.bin",
}


def unit(rows):
    return (rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)).astype(np.float32)


def test_devkit_files_give_the_figures_of_their_features(devkit):
    root, probes, distractors = devkit
    noise = {"probe_noise": "facescrub_noises.txt", "distractor_noise": "megaface_noises.txt"}
    outcome = from_options("mf", OPTIONS | noise | {"sizes": [10, 40], "noise_seed": 3}, root).run(None)
    expected = evaluate(
        Probes(unit(probes), np.repeat(np.arange(3), 4), np.arange(12) == 5),
        Distractors(unit(distractors), {"10": 10, "40": 40}, np.isin(np.arange(40), [2, 3])),
        seed=3,
    )
    figures = {
        (f.metric, f.conditions["distractors"], f.conditions["noise"]): f.value
        for f in outcome.figures
        if f.metric.startswith("rank")
    }
    assert len(figures) == 10 * 2 * 3
    for found in expected:
        for rank in range(1, 11):
            assert figures[f"rank {rank}", found.distractors, found.noise.value] == found.cmc[rank - 1]
    assert len({figure.full_name for figure in outcome.figures}) == len(outcome.figures) == 13 * 2 * 3
    assert [len(curve.x) for curve in outcome.curves] == [1000] * 6
    assert all(figure.conditions["flip"] == "as in the features" for figure in outcome.figures)


def test_rates_that_so_few_impostors_cannot_show_are_not_given(devkit):
    root, _, _ = devkit
    outcome = from_options("mf", OPTIONS, root).run(None)
    tars = [figure for figure in outcome.figures if figure.metric.startswith("TAR")]
    assert [figure.metric for figure in tars] == ["TAR at FAR 1e-04", "TAR at FAR 1e-05", "TAR at FAR 1e-06"]
    assert all(np.isnan(figure.value) and "not decided: 480" in figure.note for figure in tars)


def test_sets_by_list_by_seed_and_by_default(devkit):
    root, probes, distractors = devkit
    named = "megaface_features_list.json_10_1"
    listed = from_options("mf", OPTIONS | {"distractor_lists": [named]}, root)
    assert {name: sorted(rows) for name, rows in listed.sets.items()} == {f"10 ({named})": list(range(21, 31))}
    seeded = from_options("mf", OPTIONS | {"sizes": [5, 20], "subset_seed": 1}, root).sets
    assert set(seeded["5"]) < set(seeded["20"])
    assert len(set(seeded["20"])) == 20
    assert from_options("mf", OPTIONS, root).sets == {"40": 40}
    found = evaluate(
        Probes(unit(probes), np.repeat(np.arange(3), 4)), Distractors(unit(distractors[21:31]), {"10": 10})
    )
    first = listed.run(None).figures[0]
    assert (first.metric, first.value) == ("rank 1", found[0].cmc[0])


def test_a_matrix_gives_what_files_give(devkit):
    root, probes, distractors = devkit
    np.save(root / "probes.npy", probes.astype(">f8"))
    np.save(root / "distractors.npy", np.asfortranarray(distractors))
    matrices = {"probe_features": "probes.npy", "distractor_features": "distractors.npy"}
    kept = {key: value for key, value in OPTIONS.items() if key != "ending"}
    from_files = from_options("mf", OPTIONS, root).run(None).figures
    from_matrix = from_options("mf", kept | matrices, root).run(None).figures
    assert [f.value for f in from_files[:10]] == [f.value for f in from_matrix[:10]]


def test_another_folder_s_features_of_the_same_names_and_times_are_not_taken_for_these(devkit):
    root, _, _ = devkit
    faces = read_list(root / "megaface_features_list.json")
    shutil.copytree(root / "megaface", root / "other")
    for path in (root / "other").rglob("*_net.bin"):
        path.write_bytes(path.read_bytes()[:16] + (-np.frombuffer(path.read_bytes()[16:], np.float32)).tobytes())
        twin = root / "megaface" / path.relative_to(root / "other")
        os.utime(path, ns=(1, twin.stat().st_mtime_ns))
    one, other = (FeatureFiles(root / name, "_net.bin", faces).load(root / "cache") for name in ("megaface", "other"))
    np.testing.assert_array_equal(other, -one)


def test_features_are_kept_until_a_file_changes(devkit):
    root, _, distractors = devkit
    faces = read_list(root / "megaface_features_list.json")

    def load():
        return FeatureFiles(root / "megaface", "_net.bin", faces).load(root / "cache")

    first = load()
    np.testing.assert_array_equal(first, unit(distractors))
    (kept,) = (root / "cache").iterdir()
    changed = kept.stat().st_mtime_ns
    np.testing.assert_array_equal(load(), first)
    assert kept.stat().st_mtime_ns == changed
    path = root / "megaface" / f"{faces.names[1]}_net.bin"
    path.write_bytes(feature_bytes(-distractors[1]))
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(load()[1], -first[1])
    kept.write_bytes(b"junk")
    path.write_bytes(feature_bytes(distractors[1]))
    assert len(list((root / "cache").iterdir())) == 2


def test_nothing_is_kept_of_features_of_which_one_is_damaged(devkit):
    root, _, _ = devkit
    faces = read_list(root / "megaface_features_list.json")
    path = root / "megaface" / f"{faces.names[39]}_net.bin"
    path.write_bytes(feature_bytes([np.nan] * DIM))
    with pytest.raises(DataError, match=f"{path.name}: value 0 is not finite"):
        FeatureFiles(root / "megaface", "_net.bin", faces).load(root / "cache")
    assert list((root / "cache").iterdir()) == []


def test_a_feature_that_is_no_file_is_not_waited_for(devkit):
    root, _, _ = devkit
    faces = read_list(root / "megaface_features_list.json")
    path = root / "megaface" / f"{faces.names[4]}_net.bin"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"entry 4 .* is no file"):
        FeatureFiles(root / "megaface", "_net.bin", faces)


@pytest.mark.parametrize(
    ("values", "said"), [([0] * DIM, "no direction"), ([1e200] * DIM, "no direction"), ([1, 2], "2 values, but")]
)
def test_features_that_do_not_go_together_are_refused(devkit, values, said):
    root, _, _ = devkit
    faces = read_list(root / "megaface_features_list.json")
    path = root / "megaface" / f"{faces.names[4]}_net.bin"
    path.write_bytes(struct.pack("<4i", len(values), 1, 8, 6) + np.asarray(values, "<f8").tobytes())
    with pytest.raises(DataError, match=said):
        FeatureFiles(root / "megaface", "_net.bin", faces).load()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes, which is no feature"),
        (feature_bytes([1, 2])[:-1], "header announces 2 values"),
        (feature_bytes([1, 2]) + b"\0", "header announces 2 values"),
        (feature_bytes([1, 2], (2**31 - 1, 1, 4, 5)), "announces 2,147,483,647 values"),
        (feature_bytes([1, 2], (-2, 1, 4, 5)), "-2 x 1 values"),
        (feature_bytes([1, 2], (1, 2, 8, 5)), "one column"),
        (feature_bytes([1, 2], (2, 1, 8, 5)), "8 bytes a row"),
        (feature_bytes([1, 2], (2, 1, 4, 0)), "type code 0"),
        (feature_bytes([1, np.inf]), "value 1 is not finite"),
        (feature_bytes(np.ones(1 << 18)), "more bytes, which is no feature"),
    ],
)
def test_a_damaged_feature_is_refused(tmp_path, data, said):
    path = tmp_path / "face.bin"
    path.write_bytes(data)
    with pytest.raises(DataError, match=said):
        read_feature(path)


def test_a_feature_of_doubles_is_read(tmp_path):
    path = tmp_path / "face.bin"
    path.write_bytes(struct.pack("<4i", 3, 1, 8, 6) + np.arange(3, dtype="<f8").tobytes())
    assert read_feature(path).tolist() == [0, 1, 2]


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_a_damaged_matrix_is_refused(tmp_path):
    (tmp_path / "list").write_text("a/1\na/2\n")
    faces = read_list(tmp_path / "list")
    whole = saved(np.ones((2, 3), np.float32))
    damaged = {
        "not a .npy file": [b"", b"junk", whole[:-4], whole.replace(b"(2, 3)", b"(9**9, 3)"), whole[:20]],
        "not a matrix of floats": [saved(np.ones((2, 3), int)), saved(np.ones(2))],
        "3 rows, but .* lists 2 faces": [saved(np.ones((3, 3)))],
        "row 1: is zero or not finite": [saved(np.array([[1.0, 2], [0, 0]])), saved(np.array([[1.0, 2], [0, np.nan]]))],
    }
    huge = whole.replace(b"(2, 3), }  ", b"(2222222, 3), }"[:11])
    for said, contents in damaged.items():
        for content in contents:
            (tmp_path / "m.npy").write_bytes(content)
            with pytest.raises(DataError, match=said):
                load_matrix(tmp_path / "m.npy", faces)
    (tmp_path / "m.npy").write_bytes(huge)
    with pytest.raises(DataError):
        load_matrix(tmp_path / "m.npy", faces)
    np.savez(tmp_path / "archive.npz", np.ones(2))
    with pytest.raises(DataError, match="archive"):
        load_matrix(tmp_path / "archive.npz", faces)
    with pytest.raises(DataError, match="cannot be read"):
        load_matrix(tmp_path / "absent.npy", faces)


def test_a_pickle_in_a_matrix_is_not_run(tmp_path):
    (tmp_path / "list").write_text("a/1\n")
    np.save(tmp_path / "m.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="file of numbers"):
        load_matrix(tmp_path / "m.npy", read_list(tmp_path / "list"))


def test_text_lists_name_persons_by_folder(tmp_path):
    path = tmp_path / "facescrub_lst"
    path.write_text("Ann/Ann_1.png\n\nBob/Bob_2.png\nAnn/Ann_3.png\n")
    faces = read_list(path)
    assert identities_of(faces).tolist() == [0, 1, 0]
    path.write_text("Ann_1.png\n")
    with pytest.raises(DataError, match=r"entry 0 .* in no folder"):
        identities_of(read_list(path))


def test_noise_lists_are_read_as_the_public_script_reads_them(devkit):
    root, _, _ = devkit
    probes = read_list(root / "facescrub_features_list.json")
    distractors = read_list(root / "megaface_features_list.json")
    assert np.flatnonzero(probe_noise(root / "facescrub_noises.txt", probes)).tolist() == [5]
    assert np.flatnonzero(distractor_noise(root / "megaface_noises.txt", distractors)).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lists no faces"),
        ("{", "not a JSON list"),
        ('{"path": 3}', '"path" must be a list'),
        ('{"path": ["a", 3]}', '"path" must be a list'),
        ('{"path": ["a"], "id": [[]]}', '"id" must be a list'),
        ('{"path": ["a"], "id": ["x", "y"]}', '1 entries of "path" but 2'),
        ('{"path": []}', "lists no faces"),
        ("a/../../b\n", "no path below"),
        ("/etc/passwd\n", "no path below"),
        ('{"path": ["a/\\ud800"]}', "no path below"),
        ("a/b\na/b\n", "entry 1: 'a/b' is there twice"),
        ("{" * 100_000, "not a JSON list"),
        ('{"path": ' + "[" * 100_000, "not a JSON list"),
    ],
)
def test_a_damaged_list_is_refused(tmp_path, text, said):
    (tmp_path / "list").write_text(text)
    with pytest.raises(DataError, match=said):
        read_list(tmp_path / "list")


def test_a_subset_must_be_of_the_list(tmp_path):
    (tmp_path / "all").write_text("a/1\na/2\na/3\n")
    (tmp_path / "some").write_text("a/3\na/1\n")
    (tmp_path / "other").write_text("a/1\nb/9\n")
    whole = read_list(tmp_path / "all")
    assert rows_of(read_list(tmp_path / "some"), whole).tolist() == [2, 0]
    with pytest.raises(DataError, match=r"other: entry 1 \(b/9\): is not in .*all"):
        rows_of(read_list(tmp_path / "other"), whole)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"probes": None}, ConfigError, "mf: option probes is missing"),
        ({"probess": "x"}, ConfigError, "mf: no such option: probess"),
        ({"probe_images": "facescrub"}, ConfigError, "give either"),
        ({"flip": True}, ConfigError, "only pictures can be mirrored"),
        ({"ending": "_other.bin"}, DataError, r"mf: .*list.json: entry 0 \(Person_0/Person_0_0.png\): no feature"),
        ({"ending": None}, ConfigError, "option ending is missing"),
        ({"sizes": [41]}, ConfigError, "from 1 to 40"),
        ({"sizes": [5, 5]}, ConfigError, "different numbers"),
        ({"sizes": "5"}, ConfigError, "must be a list"),
        ({"distractor_lists": ["absent"]}, ConfigError, "absent is no file"),
        ({"distractor_lists": ["megaface_features_list.json_10_1"], "sizes": [5]}, ConfigError, "would too"),
        ({"noise_seed": -1}, ConfigError, "noise_seed"),
    ],
)
def test_wrong_options_are_said(devkit, changed, error, said):
    root, _, _ = devkit
    options = {key: value for key, value in (OPTIONS | changed).items() if value is not None}
    with pytest.raises(error, match=said):
        from_options("mf", options, root)


class PixelEmbedder:
    """Takes the mean of each column of pixels for an embedding, so that mirroring reverses it."""

    def __call__(self, pictures, *, flip, what):
        rows = []
        for index in range(len(pictures)):
            data, where = pictures.read(index)
            rows.append(pictures.pixels(data, index, DIM, where).mean(axis=(0, 1)).astype(np.float32))
        plain = np.array(rows)
        return Embedded(plain, plain[:, ::-1] if flip else None)


def test_pictures_are_embedded_with_and_without_their_mirror_images(devkit):
    root, _, _ = devkit
    rng = np.random.default_rng(1)
    pixels = {}
    for listed, folder in (("facescrub_features_list.json", "fs"), ("megaface_features_list.json", "mf")):
        faces = read_list(root / listed)
        pixels[folder] = rng.integers(0, 256, (len(faces.names), DIM, DIM), dtype=np.uint8)
        for name, image in zip(faces.names, pixels[folder], strict=True):
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path, format="PNG")
    options = {key: value for key, value in OPTIONS.items() if "features" not in key and key != "ending"}
    options |= {"probe_images": "fs", "distractor_images": "mf", "flip": "both"}
    benchmark = from_options("mf", options, root)
    with pytest.raises(ConfigError, match="need a model"):
        benchmark.run(None)
    outcome = benchmark.run(PixelEmbedder())
    for flip in ("none", "added"):
        rows = {name: images.mean(axis=1).astype(np.float32) for name, images in pixels.items()}
        if flip == "added":
            rows = {name: row + row[:, ::-1] for name, row in rows.items()}
        found = evaluate(
            Probes(unit(rows["fs"]), np.repeat(np.arange(3), 4)), Distractors(unit(rows["mf"]), {"40": 40})
        )[0]
        values = [f.value for f in outcome.figures if f.conditions["flip"] == flip and f.metric.startswith("rank")]
        assert values == found.cmc[:10].tolist()
        assert found.noise is Noise.RAW
    (root / "fs" / read_list(root / "facescrub_features_list.json").names[3]).unlink()
    with pytest.raises(DataError, match=r"entry 3 .* there is no picture"):
        from_options("mf", options, root)
