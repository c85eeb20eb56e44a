# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedface_flwr.files import locked, replacing, write_text


def test_a_file_appears_when_the_block_ends_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "data.bin"
    with replacing(path) as temporary:
        assert temporary.parent == path.parent
        temporary.write_bytes(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]


def test_the_old_content_stays_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half of the n")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    with pytest.raises(IsADirectoryError), replacing(path) as temporary:
        temporary.write_bytes(b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_file_have_temporary_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    with replacing(path) as first, replacing(path) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        assert first != second
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_are_those_of_any_new_file(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "x")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode


def test_text_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "тест ≤ 1\n")
    assert (tmp_path / "a.txt").read_bytes() == "тест ≤ 1\n".encode()


def test_text_that_cannot_be_written_leaves_the_old(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "new \ud800")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_lock_is_held_by_one_process_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "run.lock"
    lines = (
        "import time",
        "from pathlib import Path",
        "from fedface_flwr.files import locked",
        f"with locked(Path({str(path)!r})):",
        "    print('held', flush=True)",
        "    time.sleep(60)",
    )
    code = "\n".join(lines)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError), locked(path):
            pass
        other.kill()
        other.wait()
        with locked(path):
            pass


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127, "a" * 201 + ".bin"])
def test_a_name_that_the_file_system_takes_can_be_written(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "text")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "text"
