# SPDX-License-Identifier: Apache-2.0
"""A folder that is made beside its place, in steps that survive a crash, and put there in one rename.

While ``DEST`` is being made, ``.DEST.partial`` holds ``set/``, which becomes it, the files that the work needs
to remember, and ``journal.json``: the request, how many items are done, and how long each file was then. Going
on, every file is cut to that length, so what a crash left half-written is written again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedface_flwr.data.own_files import ORIGIN, OWN_FILES
from fedface_flwr.errors import DataError, StateError
from fedface_flwr.files import locked, write_text
from fedface_flwr.wording import numbered

_JOURNAL, _SET = "journal.json", "set"
# Of a folder with more files than this only their number and bytes are recorded: a set has millions.
_BY_NAME = 16
_TOLD = 3


class Staging:
    """A set in the making.

    Attributes
    ----------
    set : Path
        Folder that becomes the set.
    done : int
        Items that are on the disk already.
    notes : dict
        Further facts to remember, in JSON's types; kept by :meth:`checkpoint`.
    """

    def __init__(self, partial: Path, request: Mapping[str, Any]) -> None:
        self.partial = partial
        self.set = partial / _SET
        self.done = 0
        self.notes: dict[str, Any] = {}
        self._request = dict(request)
        self._lengths: dict[str, int] = {}
        self._files: dict[str, BinaryIO] = {}

    def resume(self) -> bool:
        """Take up what an interrupted call with the same request left; return whether there was any.

        What is there of another request, or without a readable journal, is removed.
        """
        try:
            journal = json.loads((self.partial / _JOURNAL).read_text(encoding="utf-8"))
            if journal["request"] != self._request:
                raise ValueError("another request")
            self.done, self._lengths, self.notes = journal["done"], journal["lengths"], journal["notes"]
            if any(self._size(name) < length for name, length in self._lengths.items()):
                raise ValueError("a file is shorter than it was")
        except (OSError, ValueError, KeyError, TypeError):
            self.done, self._lengths, self.notes = 0, {}, {}
            self._clear()
        # Of a process that was killed while it wrote a file whole.
        for left in self.partial.rglob(".*.tmp"):
            left.unlink()
        self.set.mkdir(exist_ok=True)
        return self.done > 0

    def appender(self, name: str) -> BinaryIO:
        """Return a file of ``partial`` to append to, at the length of the last checkpoint.

        ``name`` is relative, and below ``set/`` for a file of the set.
        """
        path = self.partial / name
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        file.truncate(self._lengths.get(name, 0))
        file.seek(0, os.SEEK_END)
        self._files[name] = file
        return file

    def checkpoint(self, done: int) -> None:
        """Bring everything appended to the disk, then note that ``done`` items are."""
        for name, file in self._files.items():
            file.flush()
            os.fsync(file.fileno())
            self._lengths[name] = file.tell()
        self.done = done
        journal = {"request": self._request, "done": done, "lengths": self._lengths, "notes": self.notes}
        write_text(self.partial / _JOURNAL, json.dumps(journal))

    def content(self, name: str) -> bytes:
        """Return what one of the appended files holds up to the last checkpoint."""
        with (self.partial / name).open("rb") as file:
            return file.read(self._lengths.get(name, 0))

    def length(self, name: str) -> int:
        """Return the length, at the last checkpoint, of an appended file."""
        return self._lengths.get(name, 0)

    def forget(self) -> None:
        """Keep nothing should the block fail, as going on would come to the same end."""
        self.done = 0

    def close(self) -> None:
        """Close the files that are appended to."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _size(self, name: str) -> int:
        return (self.partial / name).stat().st_size

    def _clear(self) -> None:
        for path in self.partial.iterdir():
            if path.name == "lock":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def staging(dest: Path, request: Mapping[str, Any]) -> Iterator[Staging]:
    """Make the folder ``dest``: it is there, whole, after the block, or what was done is kept for the next call.

    An error gets a note of what is kept; before the first checkpoint nothing is.

    Parameters
    ----------
    dest : Path
        Must not exist, or be an empty folder.
    request : mapping
        What decides the content, in JSON's types. Work of another request is not gone on with.

    Raises
    ------
    DataError
        If ``dest`` is taken.
    StateError
        If another process is making it.
    """
    dest = dest.absolute()
    _require_free(dest)
    partial = _partial(dest)
    try:
        with folders_above(partial), locked(partial / "lock"):
            work = Staging(partial, request)
            work.resume()
            try:
                yield work
                work.close()
                _sync_folders(work.set)
                _require_free(dest)
                work.set.rename(dest)
            except BaseException as error:
                work.close()
                if work.done:
                    kept = f"{numbered(work.done, 'picture')} done are kept in {partial}"
                    error.add_note(f"{kept}: the same command goes on from there")
                else:
                    shutil.rmtree(partial)
                raise
            sync_folder(dest.parent)
            shutil.rmtree(partial)
    except BlockingIOError as error:
        raise StateError(f"{dest}: another process is making it ({partial / 'lock'} is held)") from error


def made_of(dest: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return ``origin.json`` of a finished set if this request made it.

    Raises
    ------
    DataError
        If files of the set are gone, or no longer of the size that they had.
    """
    try:
        origin = json.loads((dest / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(origin, dict) or origin.get("request") != dict(request):
        return None
    partial = _partial(dest)
    # A crash right after the rename leaves it behind, without a set.
    if partial.exists() and not (partial / _SET).exists():
        shutil.rmtree(partial)
    _require_whole(dest, origin.get("files"))
    return origin


def write_origin(folder: Path, request: Mapping[str, Any], result: Any) -> None:
    """Write ``origin.json`` of a set that is otherwise finished: what made it, what came of it, its files' sizes."""
    write_json(folder / ORIGIN, {"request": dict(request), "result": result, "files": _sizes(folder)})


def _sizes(root: Path) -> dict[str, list[int]]:
    """Return number and bytes of the files below a folder: of each by name, or in a full folder of all together."""
    found: dict[str, list[int]] = {}
    for place, folders, names in os.walk(root):
        folders.sort()
        home = Path(place)
        if len(names) > _BY_NAME:
            found[f"{home.relative_to(root).as_posix()}/"] = _size(home)
        else:
            found |= {(home / name).relative_to(root).as_posix(): _size(home / name) for name in sorted(names)}
    return found


def _size(path: Path) -> list[int]:
    """Return 1 and a file's bytes, or number and bytes of a folder's own files, less what commands put beside them."""
    if not path.is_dir():
        return [1, path.stat().st_size] if path.is_file() else [0, 0]
    with os.scandir(path) as entries:
        sizes = [entry.stat().st_size for entry in entries if entry.is_file() and entry.name not in OWN_FILES]
    return [len(sizes), sum(sizes)]


def _require_whole(dest: Path, recorded: object) -> None:
    sizes = recorded if isinstance(recorded, dict) else {}
    changed = [name for name, size in sizes.items() if _size(dest / name) != size]
    if changed:
        named = ", ".join(changed[:_TOLD]) + (f" and {len(changed) - _TOLD} more" if len(changed) > _TOLD else "")
        raise DataError(
            f"{dest}: this command made it before, but since then files are gone or of another size: {named}; remove "
            "the folder, and the command makes it anew"
        )


@contextmanager
def folders_above(path: Path) -> Iterator[None]:
    """Remove, should the block fail, the folders that it made for ``path`` to be in and that nothing is in."""
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        raise


def _partial(dest: Path) -> Path:
    return dest.absolute().with_name(f".{dest.absolute().name}.partial")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that people read too, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        sync_folder(Path(folder))


def _require_free(dest: Path) -> None:
    if dest.is_symlink() or (dest.exists() and not (dest.is_dir() and not any(dest.iterdir()))):
        raise DataError(f"{dest}: exists already; choose another destination or remove it")
