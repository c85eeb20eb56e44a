# SPDX-License-Identifier: Apache-2.0
"""Targets: pairs in every form that verification takes them in, and the suite that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from fuzz_data import _pack, _pack_seeds
from fuzz_mutation import odd_values
from fuzz_target import TEXT, Target, each
from writers import pixels, png

from fedface_flwr.protocols.pairs import from_options
from fedface_flwr.protocols.pairs_set import Pairs
from fedface_flwr.protocols.rfw import RACES
from fedface_flwr.protocols.rfw import from_options as rfw_from_options
from fedface_flwr.protocols.suite import open_benchmarks, read_suite
from fedface_flwr.protocols.tinyface import from_options as tinyface_from_options

PNG = png(pixels(0, 16))
YAML = (
    *b"!!bool x|!!int ''|!!int '-'|!!float '.'|!!timestamp x|!!binary '='|!!set {a, b}|!!omap [a]".split(b"|"),
    *b"!!python/object/apply:os.system ['true']|!!python/name:os.system|!unknown x|&a |*a|<<: *a|<<: [{}]".split(b"|"),
    *b"${oc.env:HOME}|${a}|${${|2001-99-99|12:99:99|0o99|0x|=|? |? [a]: b|- |{|}|[|]|%YAML 9.9|---|...".split(b"|"),
    *(b"~", b".inf"),
    b"[" * 900,
    b"{a: " * 500,
    b"- " * 500,
)  # fmt: skip


def draw(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PNG)


def check(pairs: Pairs) -> None:
    count = len(pairs.same)
    assert len(pairs.left) == len(pairs.right) == len(pairs.fold) == count > 0
    for side in (pairs.left, pairs.right):
        assert side.min() >= 0
        assert side.max() < len(pairs.pictures)
    assert set(pairs.fold.tolist()) == set(range(pairs.folds))

    def pixels_of(index: int) -> None:
        data, where = pairs.pictures.read(index)
        assert pairs.pictures.pixels(data, index, 16, where).shape == (3, 16, 16)

    each([partial(pixels_of, index) for index in range(len(pairs.pictures))])


def pairs(options: Mapping[str, object]) -> Callable[[Path], None]:
    return lambda root: check(from_options("bench", options, root).load())


def _lfw(root: Path) -> Sequence[Path]:
    for name in ("Ann_A", "Bob"):
        for number in (1, 2):
            draw(root / "lfw" / name / f"{name}_{number:04d}.jpg")
    fold = "Ann_A\t1\t2\nBob\t1\t2\nAnn_A\t1\tBob\t2\nBob\t1\tAnn_A\t2\n"
    (root / "pairs.txt").write_text("2\t2\n" + 2 * fold)
    return [root / "pairs.txt"]


def _calfw(root: Path) -> Sequence[Path]:
    names = [f"{name}_{number:04d}.jpg" for name in ("Ann", "Bob") for number in (1, 2)]
    for name in names:
        draw(root / "images" / name)
    same = "".join(f"{names[0]} {fold}\n{names[1]} {fold}\n" for fold in range(1, 11))
    (root / "pairs.txt").write_text(same + f"{names[0]} 0\n{names[2]} 0\n" * 10)
    return [root / "pairs.txt"]


def _cfp(root: Path) -> Sequence[Path]:
    protocol = root / "cfp" / "Protocol"
    for kind, folder in (("F", "frontal"), ("P", "profile")):
        lines = []
        for person in (1, 2):
            path = f"Data/Images/{person:03d}/{folder}/01.jpg"
            draw(root / "cfp" / path)
            lines.append(f"{person} ../{path}")
        (protocol).mkdir(parents=True, exist_ok=True)
        (protocol / f"Pair_list_{kind}.txt").write_text("\n".join(lines) + "\n")
    for fold in ("01", "02"):
        (protocol / "Split" / "FP" / fold).mkdir(parents=True)
        (protocol / "Split" / "FP" / fold / "same.txt").write_text("1,1\n2,2\n")
        (protocol / "Split" / "FP" / fold / "diff.txt").write_text("1,2\n2,1\n")
    return [*sorted(protocol.glob("*.txt")), protocol / "Split" / "FP" / "01" / "same.txt"]


def _table(root: Path, name: str, text: str) -> Sequence[Path]:
    for letter in "abcd":
        draw(root / "images" / f"{letter}.png")
    (root / name).write_text(text)
    return [root / name]


_CSV = "left,right,same,fold\n" + 'a.png,b.png,1,1\n"a.png",c.png,false,2\n' * 2 + "c.png,d.png,0,1\n"
_LIST = "1 a.png b.png\n0 a.png c.png\n" * 3
_POINTS = "".join(f",{axis}{point}" for point in range(1, 6) for axis in "xy")
_TEMPLATE = ",".join(str(value) for value in np.array([[5, 6], [10, 6], [8, 9], [5, 11], [10, 11]]).ravel() / 1.0)


def _landmarks(root: Path) -> Sequence[Path]:
    _table(root, "list.txt", _LIST)
    rows = "".join(f"{letter}.png,{_TEMPLATE}\n" for letter in "abcd")
    return _table(root, "points.csv", f"picture{_POINTS}\n{rows}")


def _rfw(root: Path) -> Sequence[Path]:
    for race in RACES:
        for name in ("m.0a", "m.0b"):
            for number in (1, 2):
                draw(root / "rfw" / "data" / race / name / f"{name}_{number:04d}.jpg")
        path = root / "rfw" / "txts" / race / f"{race}_pairs.txt"
        path.parent.mkdir(parents=True)
        path.write_text("m.0a\t1\t2\nm.0a\t1\tm.0b\t2\n" * 5)
    return [root / "rfw" / "txts" / "Asian" / "Asian_pairs.txt"]


def _read_rfw(root: Path) -> None:
    check(rfw_from_options("bench", {"folder": "rfw"}, root).loads["Asian"]())


def _tinyface(root: Path) -> Sequence[Path]:
    for part in ("Probe", "Gallery_Match", "Gallery_Distractor"):
        for number in (1, 2):
            draw(root / "tiny" / part / f"{number}_{number}.jpg")
    (root / "name").write_text("1_1.jpg")
    return [root / "name"]


def _read_tinyface(root: Path) -> None:
    """Give a probe the name that the file holds, where a file can have it."""
    probe = root / "tiny" / "Probe"
    name = (root / "name").read_bytes().replace(b"/", b"_").replace(b"\0", b"_")[:200]
    added = Path(str(probe / "") + "/" + name.decode("utf-8", "surrogateescape"))
    if name in (b"", b".", b"..") or added.exists():
        return
    added.write_bytes(PNG)
    try:
        found = tinyface_from_options("bench", {"folder": "tiny"}, root)
        assert len(found.files) == len(found.identities) == sum(found.counts)
    finally:
        added.unlink()


_SUITE = """
defaults:
  pairs: {flip: both, folds: 3}
benchmarks:
- {name: one, kind: pairs, format: list, file: list.txt, images: images}
- name: two
  kind: pairs
  format: csv
  file: pairs.csv
  images: images
  folds: null
  far_rules: [at most, nearest]
- {name: lfw, kind: pairs, format: pack, file: toy.bin}
"""


def _suite(root: Path) -> Sequence[Path]:
    _table(root, "list.txt", _LIST)
    _table(root, "pairs.csv", _CSV)
    _pack(root)
    (root / "suite.yaml").write_text(_SUITE)
    return [root / "suite.yaml"]


def _read_suite(root: Path) -> None:
    suite = read_suite(root / "suite.yaml")
    assert len({entry.name for entry in suite.entries}) == len(suite.entries) > 0
    assert len(open_benchmarks(suite)) == len(suite.entries)


_IN_IMAGES = {"images": "images", "folds": 3}
_CFP = {"format": "cfp", "folder": "cfp", "protocol": "FP"}
_WITH_POINTS = {"format": "list", "file": "list.txt", "landmarks": "points.csv", **_IN_IMAGES}

TARGETS = (
    Target("pairs-pack", _pack, pairs({"format": "pack", "file": "toy.bin", "folds": 3}), 200, seeds=_pack_seeds()),
    Target("pairs-lfw", _lfw, pairs({"format": "lfw", "file": "pairs.txt", "images": "lfw"}), 400, words=TEXT),
    Target("pairs-calfw", _calfw, pairs({"format": "calfw", "file": "pairs.txt", "images": "images"}), 400, words=TEXT),
    Target("pairs-cfp", _cfp, pairs(_CFP), 400, words=TEXT),
    Target("pairs-csv", lambda root: _table(root, "pairs.csv", _CSV),
           pairs({"format": "csv", "file": "pairs.csv", "images": "images"}), 400, words=TEXT),
    Target("pairs-list", lambda root: _table(root, "list.txt", _LIST),
           pairs({"format": "list", "file": "list.txt", **_IN_IMAGES}), 300, words=TEXT),
    Target("pairs-landmarks", _landmarks, pairs(_WITH_POINTS), 400, words=TEXT),
    Target("rfw", _rfw, _read_rfw, 300, words=TEXT),
    Target("tinyface-names", _tinyface, _read_tinyface, 200, words=(b"7_", b"_", b"1_1.png", b".jpg")),
    Target("suite", _suite, _read_suite, 300, words=YAML, tailor=odd_values),
)  # fmt: skip
