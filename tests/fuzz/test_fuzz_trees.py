# SPDX-License-Identifier: Apache-2.0
"""Folders with what no data set should have in them: pipes, devices, circles, depths, names that are no text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fuzz_target import each
from writers import pixels, png

from fedface_flwr.data.folder import FolderSet
from fedface_flwr.dataprep.source import SourceOptions
from fedface_flwr.dataprep.sources import open_source
from fedface_flwr.errors import DataError
from fedface_flwr.protocols.pairs_landmarks import PhotoPictures
from fedface_flwr.protocols.pairs_set import FilePictures

PNG = png(pixels(0))


@pytest.fixture(autouse=True)
def _never_waits() -> Iterator[None]:
    """Interrupt what waits for a pipe's other end, or reads a device without end."""

    def hang(number: int, frame: object) -> None:
        raise RuntimeError("not read within 10 s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, 10)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(to: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(to)


ODD: dict[str, Callable[[Path], None]] = {
    "pipe": pipe,
    "device": link("/dev/zero"),
    "circle": link("odd.jpg"),
    "dead link": link("nowhere"),
    "folder": lambda path: path.mkdir(),
    "unreadable": lambda path: (path.write_bytes(PNG), path.chmod(0))[0],
    "terminal": link("/dev/tty"),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("ann", "bob"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "1.png").write_bytes(PNG)
    return tmp_path / "tree"


def read_set(tree: Path) -> None:
    faces = FolderSet.open(tree)
    each([partial(faces.read, index) for index in range(len(faces.labels))])


def read_source(path: Path) -> None:
    opened = open_source(path, SourceOptions())
    each([partial(opened.read, index) for index in range(len(opened.labels))])
    if opened.problems or opened.faults:
        raise DataError([*opened.problems, *opened.faults][0])


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("read", [read_set, read_source])
def test_what_is_no_picture_is_named_and_not_waited_for(tree: Path, read: Callable[[Path], None], odd: str) -> None:
    ODD[odd](tree / "ann" / "odd.jpg")
    if odd == "unreadable" and os.access(tree / "ann" / "odd.jpg", os.R_OK):
        read(tree)  # by a user who may read everything
        return
    if odd == "folder" and read is read_source:
        read(tree)  # which looks for pictures at any depth
        return
    with pytest.raises(DataError, match=r"odd\.jpg"):
        read(tree)


@pytest.mark.parametrize("odd", ["pipe", "device", "circle", "dead link", "folder"])
def test_what_a_list_names_is_only_read_if_it_is_a_file(tree: Path, odd: str) -> None:
    ODD[odd](tree / "odd.jpg")
    (tree / "list.txt").write_text("odd.jpg 0\n")
    photos = PhotoPictures([tree / "odd.jpg"], [np.zeros((5, 2))])
    for read in (partial(read_source, tree / "list.txt"), partial(photos.read, 0)):
        with pytest.raises(DataError, match=r"odd\.jpg: cannot be read"):
            read()


@pytest.mark.parametrize("name", ["/dev/zero", "a\0b.jpg", "x" * 300, "b/" * 3000])
def test_names_that_are_no_files_names_are_refused(tree: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        FilePictures([tree / name]).read(0)


def test_names_that_are_no_text(tree: Path) -> None:
    strange = [b"\xff\xfe.png", b"new\nline.png", b"\x1b[2J.png", "\u202egnp.png".encode()]
    for name in strange:
        Path(os.fsdecode(os.fsencode(tree / "ann") + b"/" + name)).write_bytes(PNG)
    read_set(tree)
    read_source(tree)
    assert len(open_source(tree, SourceOptions()).labels) == 2 + len(strange)


@pytest.fixture
def deep(tree: Path) -> Iterator[Path]:
    """A picture deeper than Python's calls can be, without which what removes temporary folders would fail too."""
    inner = str(tree / "bob")
    while len(inner) < 3900:
        inner += "/d"
        os.mkdir(inner)
    picture = Path(inner, "p.png")
    picture.write_bytes(PNG)
    yield tree
    picture.unlink()
    while inner != str(tree / "bob"):
        os.rmdir(inner)
        inner = os.path.dirname(inner)


def test_depth_without_end(deep: Path) -> None:
    read_source(deep)
    assert len(open_source(deep, SourceOptions()).labels) == 3
    with pytest.raises(DataError, match="bob/d: not a"):
        read_set(deep)


def test_a_circle_of_folders_is_gone_round_once(tree: Path) -> None:
    (tree / "ann" / "up").symlink_to(tree)
    with pytest.raises(DataError, match="up: not a"):
        read_source(tree)
