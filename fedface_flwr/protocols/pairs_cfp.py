# SPDX-License-Identifier: Apache-2.0
"""The protocol folders of Celebrities in Frontal-Profile (CFP): frontal-profile and frontal-frontal pairs.

After Sengupta et al., Frontal to Profile Face Verification in the Wild, WACV 2016, and the data set's own files.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_set import GIVEN, Album, Pairs, text_lines, whole_number

PROTOCOLS = ("FP", "FF")


def read_cfp_pairs(root: Path, protocol: str, images: Path | None) -> Pairs:
    """Read ``Protocol/Split/FP`` or ``FF``: numbers of pictures that ``Pair_list_F.txt`` and ``_P.txt`` list.

    Parameters
    ----------
    root : Path
        The data set's folder, with ``Protocol`` in it.
    protocol : {'FP', 'FF'}
        Pairs of a frontal and a profile picture, or of two frontal ones.
    images : Path or None
        Folder of crops, ``001/frontal/01.jpg`` and so on, that take the place of the listed pictures.

    Raises
    ------
    DataError
        If a file is missing or damaged, a number is not listed, or a picture is not there.
    """
    folder = root / "Protocol"
    frontal = _listed(folder / "Pair_list_F.txt", images)
    other = _listed(folder / "Pair_list_P.txt", images) if protocol == "FP" else frontal
    splits = folder / "Split" / protocol
    names = sorted(path.name for path in splits.iterdir() if path.is_dir()) if splits.is_dir() else []
    if len(names) < 2 or names != [f"{number:02d}" for number in range(1, len(names) + 1)]:
        raise DataError(f"{splits}: expected folders 01, 02 and so on, one a fold, not {', '.join(names) or 'none'}")
    album, fold = Album(splits), list[int]()
    for number, name in enumerate(names):
        for file, same in (("same.txt", True), ("diff.txt", False)):
            before = len(album.same)
            _add(album, splits / name / file, (frontal, other), same)
            fold += [number] * (len(album.same) - before)
    return album.pairs(np.array(fold, dtype=np.int64), GIVEN)


def _listed(path: Path, images: Path | None) -> dict[int, Path]:
    pictures: dict[int, Path] = {}
    for number, line in text_lines(path):
        fields = line.split(maxsplit=1)
        where = f"{path}: line {number}"
        key = whole_number(fields[0], 1, where)
        if len(fields) != 2 or key in pictures:
            raise DataError(f"{where}: {line[:80]!r} is not a new number and the path of its picture")
        crop = PurePosixPath(*PurePosixPath(fields[1]).parts[-3:])
        pictures[key] = path.parent / fields[1] if images is None else images / crop
    return pictures


def _add(album: Album, path: Path, lists: tuple[dict[int, Path], dict[int, Path]], same: bool) -> None:
    for number, line in text_lines(path):
        where = f"{path.parent.name}/{path.name} line {number}"
        keys = [whole_number(field.strip(), 1, f"{path}: line {number}") for field in line.split(",")]
        if len(keys) != 2:
            raise DataError(f"{path}: line {number}: {line[:80]!r} is not two numbers with a comma between")
        for key, listed in zip(keys, lists, strict=True):
            if key not in listed:
                raise DataError(f"{path}: line {number}: picture {key} is not in the list of {len(listed)}")
        album.add(lists[0][keys[0]], lists[1][keys[1]], same, where)
