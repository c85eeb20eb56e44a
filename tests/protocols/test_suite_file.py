# SPDX-License-Identifier: Apache-2.0
"""SUITE.yaml at the door."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from pathlib import Path

import pytest

from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.protocols.suite import Entry, open_benchmarks, read_suite


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    return path


def pack(path: Path) -> None:
    path.write_bytes(pickle.dumps(([b"picture"] * 40, [True, False] * 10)))


def test_a_whole_suite(tmp_path: Path) -> None:
    text = """
defaults:
  pairs: {flip: both, folds: 5}
benchmarks:
- {name: lfw, kind: pairs, format: pack, file: lfw.bin}
- {name: IJB-C, kind: ijb, flip: false}
- {name: cfp_fp, kind: pairs, folds: 10}
"""
    suite = read_suite(write(tmp_path, text))
    assert suite.entries == (
        Entry("lfw", "pairs", {"flip": "both", "folds": 5, "format": "pack", "file": "lfw.bin"}),
        Entry("IJB-C", "ijb", {"flip": False}),
        Entry("cfp_fp", "pairs", {"flip": "both", "folds": 10}),
    )
    assert suite.digest == blake2b(text.encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file: must be a mapping with benchmarks"),
        ("- a", "the file: must be a mapping with benchmarks"),
        ("benchmark: []", "the file: benchmarks missing; no such key: benchmark"),
        ("benchmarks: {}", "benchmarks: must be a list of at least one"),
        ("benchmarks: []", "benchmarks: must be a list of at least one"),
        ("benchmarks: [lfw]", r"benchmarks\[0\]: must be a mapping with name, kind"),
        ("benchmarks: [{name: lfw}]", r"benchmarks\[0\]: kind missing"),
        ("benchmarks: [{name: lfw, kind: pair}]", "kind='pair': must be one of pairs, ijb, megaface, rfw, tinyface"),
        ("benchmarks: [{name: lfw, kind: [pairs]}]", r"kind=\['pairs'\]: must be one of"),
        ("benchmarks: [{name: ../lfw, kind: pairs}]", "name='../lfw': must be text that matches"),
        ("benchmarks: [{name: 7, kind: pairs}]", "name=7: must be text"),
        ("benchmarks: [{name: lfw, kind: pairs}, {name: LFW, kind: ijb}]", "two are named 'LFW'"),
        ("benchmarks: [{name: lfw, kind: pairs, 7: a}]", "must be a mapping with name, kind"),
        ("flip: true\nbenchmarks: [{name: lfw, kind: pairs}]", "no such key: flip"),
        ("defaults: {pair: {}}\nbenchmarks: [{name: lfw, kind: pairs}]", "defaults: no such key: pair"),
        ("defaults: {pairs: 7}\nbenchmarks: [{name: lfw, kind: pairs}]", "defaults.pairs: must be a mapping"),
        ("benchmarks: [", "not a readable YAML file"),
        ("benchmarks: []\nbenchmarks: []", "not a readable YAML file: .*a key is there twice"),
        ("a: &a [1]\nbenchmarks: *a", "aliases are not taken here"),
        ("benchmarks: " + "[" * 3000, "not a readable YAML file"),
        ("benchmarks: !!python/object/apply:os.system [true]", "not a readable YAML file"),
        ("x: " + "a" * (1 << 20), "not a file of settings"),
    ],
)
def test_a_file_that_is_no_suite_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_suite(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_an_error_of_yaml_names_file_and_line(tmp_path: Path) -> None:
    for text in ("benchmarks:\n- {name: a\n", "benchmarks: []\nbenchmarks: []\n", "a: &a 1\nb: *a\n"):
        with pytest.raises(ConfigError) as caught:
            read_suite(write(tmp_path, text))
        assert 'in "suite.yaml", line ' in str(caught.value)
        assert "unicode string" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_suite(tmp_path / "nowhere.yaml")
    path = tmp_path / "suite.yaml"
    path.write_bytes(b"benchmarks: \xff")
    with pytest.raises(ConfigError, match="not a readable YAML file"):
        read_suite(path)


def test_benchmarks_are_opened_in_order_with_paths_against_the_suites_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packs").mkdir()
    pack(tmp_path / "packs" / "a.bin")
    text = "benchmarks:\n" + "".join(
        f"- {{name: {name}, kind: pairs, format: pack, file: packs/a.bin}}\n" for name in ("one", "two", "three")
    )
    write(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    suite = read_suite(Path("suite.yaml"))
    assert [benchmark.name for benchmark in open_benchmarks(suite)] == ["one", "two", "three"]
    assert [benchmark.name for benchmark in open_benchmarks(suite, ["three", "one"])] == ["one", "three"]
    with pytest.raises(ConfigError, match=r"suite\.yaml: has no four; it has one, two, three"):
        open_benchmarks(suite, ["one", "four"])


def test_a_benchmark_that_cannot_work_is_named_with_the_suite(tmp_path: Path) -> None:
    path = write(tmp_path, "benchmarks: [{name: lfw, kind: pairs, format: pack, file: lfw.bin}]")
    with pytest.raises(ConfigError, match=r"suite\.yaml: lfw: file='lfw\.bin': .*lfw\.bin is no file"):
        open_benchmarks(read_suite(path))
    (tmp_path / "lfw.bin").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"suite\.yaml: lfw: .*lfw\.bin: damaged pickle"):
        open_benchmarks(read_suite(path))
