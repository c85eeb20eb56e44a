# SPDX-License-Identifier: Apache-2.0
"""Work that is interrupted: by errors, by SIGKILL in the middle, by two at once, by damage to what was kept."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from source_writers import face_picture, write_tree
from writers import jpeg, pixels

from fedface_flwr.dataprep.command import main
from fedface_flwr.dataprep.staging import made_of, staging
from fedface_flwr.errors import DataError, StateError

PICTURES, REPEATS = 40, 150


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def long_list(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of 6000 pictures, few of them different, of identities that are not in order."""
    root = tmp_path_factory.mktemp("pictures")
    for index in range(PICTURES):
        (root / f"{index}.jpg").write_bytes(jpeg(pixels(index, 64)))
    lines = [f"{(index * 7) % PICTURES}.jpg {index % 11}\n" for index in range(PICTURES * REPEATS)]
    (root / "list.txt").write_text("".join(lines))
    return root / "list.txt"


def killed_in_the_middle(arguments: list[str], dest: Path) -> dict[str, object]:
    """Start the command, kill it once a checkpoint is there, and return its journal."""
    journal = dest.with_name(f".{dest.name}.partial") / "journal.json"
    command = [sys.executable, "-m", "fedface_flwr.dataprep.command", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        limit = time.monotonic() + 120
        while not journal.exists() and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        _, error = process.communicate()
    assert process.returncode == -signal.SIGKILL, error.decode()
    assert not dest.exists()
    found: dict[str, object] = json.loads(journal.read_text())
    return found


def steps(command: str, source: Path, dest: Path) -> list[str]:
    more = ["--parts", "3", "--by", "image", "--name", "part"] if command == "split" else []
    return [command, str(source), str(dest), *more]


@pytest.mark.parametrize("command", ["convert", "split"])
def test_killed_and_gone_on_with_gives_the_same_bytes(tmp_path, long_list, command, capsys):
    killed = tmp_path / "killed/set"
    killed.parent.mkdir()
    journal = killed_in_the_middle(steps(command, long_list, killed), killed)
    assert 0 < journal["done"] < PICTURES * REPEATS
    # As if the crash had caught records half-written.
    for path in killed.parent.rglob("train.rec"):
        with path.open("ab") as file:
            file.write(b"half a record")
    with (killed.parent / ".set.partial/entries-0").open("ab") as file:
        file.write(b"\1\2\3")
    assert main(steps(command, long_list, killed)) == 0
    assert f"going on after {journal['done']:,} pictures" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in killed.parent.iterdir()] == ["set"]
    undisturbed = tmp_path / "undisturbed/set"
    assert main(steps(command, long_list, undisturbed)) == 0
    assert content(killed) == content(undisturbed)


def test_killed_align(tmp_path, long_list):
    pytest.importorskip("cv2")
    root = long_list.parent
    points = tmp_path / "points.txt"
    place = "20 25 44 25 32 37 23 48 41 48"
    for index in range(700):
        (root / "tree").mkdir(exist_ok=True)
        link = root / "tree" / f"{index}.jpg"
        if not link.exists():
            os.link(root / f"{index % PICTURES}.jpg", link)
    points.write_text("".join(f"tree/{index}.jpg {place}\n" for index in range(700)))
    dest = tmp_path / "a/faces"
    dest.parent.mkdir()
    killed_in_the_middle(["align", str(root), str(points), str(dest)], dest)
    assert main(["align", str(root), str(points), str(dest)]) == 0
    assert main(["align", str(root), str(points), str(tmp_path / "b")]) == 0
    assert content(dest) == content(tmp_path / "b")


def test_error_keeps_what_was_done(tmp_path, long_list, capsys):
    text = long_list.read_text()
    listed = tmp_path / "list.txt"
    lines = [f"{long_list.parent}/{line}" for line in text.splitlines()[:1100]]
    lines[1060] = "late.jpg 0"
    listed.write_text("\n".join(lines) + "\n")
    assert main(["convert", str(listed), str(tmp_path / "set")]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "late.jpg: cannot be read" in error
    assert f"1,024 pictures done are kept in {tmp_path}/.set.partial: the same command goes on from there" in error
    assert not (tmp_path / "set").exists()
    (tmp_path / "late.jpg").write_bytes(jpeg(pixels(0, 64)))
    assert main(["convert", str(listed), str(tmp_path / "set")]) == 0
    assert "going on after 1,024 pictures" in " ".join(capsys.readouterr().err.split())


def interrupted(dest: Path, request: dict[str, object], text: bytes = b"abc") -> None:
    def fail() -> None:
        with staging(dest, request) as stage:
            stage.appender("set/file").write(text)
            stage.notes["seen"] = 7
            stage.checkpoint(5)
            raise DataError("stop")

    with pytest.raises(DataError, match="stop"):
        fail()


def test_checkpoint_is_what_is_gone_on_from(tmp_path):
    interrupted(tmp_path / "set", {"a": 1})
    with (tmp_path / ".set.partial/set/file").open("ab") as file:
        file.write(b"lost")
    with staging(tmp_path / "set", {"a": 1}) as stage:
        assert (stage.done, stage.notes) == (5, {"seen": 7})
        stage.appender("set/file").write(b"def")
    assert content(tmp_path / "set") == {"file": b"abcdef"}
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda partial: (partial / "journal.json").write_text("{"),
        lambda partial: (partial / "journal.json").write_text("[]"),
        lambda partial: (partial / "journal.json").unlink(),
        lambda partial: (partial / "set/file").write_bytes(b"ab"),
        lambda partial: (partial / "set/file").unlink(),
    ],
)
def test_damaged_leftovers_are_begun_anew(tmp_path, damage):
    interrupted(tmp_path / "set", {"a": 1})
    damage(tmp_path / ".set.partial")
    with staging(tmp_path / "set", {"a": 1}) as stage:
        assert (stage.done, stage.notes) == (0, {})
        stage.appender("set/file").write(b"new")
    assert content(tmp_path / "set") == {"file": b"new"}


def test_another_request_begins_anew(tmp_path):
    interrupted(tmp_path / "set", {"a": 1})
    with staging(tmp_path / "set", {"a": 2}) as stage:
        assert stage.done == 0
        assert not (stage.set / "file").exists()


def test_two_at_once(tmp_path):
    with staging(tmp_path / "set", {}), pytest.raises(StateError, match="another process is making it"):
        interrupted(tmp_path / "set", {})
    assert (tmp_path / "set").is_dir()


def test_killed_between_the_rename_and_the_clearing_up(tmp_path, capsys):
    write_tree(tmp_path / "faces", [0, 1])
    assert main(["convert", str(tmp_path / "faces"), str(tmp_path / "set")]) == 0
    (tmp_path / ".set.partial").mkdir()
    (tmp_path / ".set.partial/lock").touch()
    assert main(["convert", str(tmp_path / "faces"), str(tmp_path / "set")]) == 0
    assert "was there already" in capsys.readouterr().out
    assert not (tmp_path / ".set.partial").exists()


def test_source_that_has_changed_is_not_gone_on_with(tmp_path):
    write_tree(tmp_path / "faces", [0, 1])
    assert main(["convert", str(tmp_path / "faces"), str(tmp_path / "set")]) == 0
    request = json.loads((tmp_path / "set/origin.json").read_text())["request"]
    assert made_of(tmp_path / "set", request) is not None
    (tmp_path / "faces/id-000/new.jpg").write_bytes(face_picture(9))
    assert main(["convert", str(tmp_path / "faces"), str(tmp_path / "set")]) == 1


def test_what_a_killed_process_had_not_renamed_does_not_get_into_the_set(tmp_path: Path) -> None:
    dest, request = tmp_path / "set", {"of": "this"}
    with contextlib.suppress(KeyboardInterrupt), staging(dest, request) as work:
        work.appender("set/a").write(b"whole")
        work.checkpoint(1)
        (work.set / ".identities.txt.0123.tmp").write_bytes(b"half")
        raise KeyboardInterrupt
    assert not dest.exists()
    with staging(dest, request) as work:
        assert work.done == 1
    assert content(dest) == {"a": b"whole"}
