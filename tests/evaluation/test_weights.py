# SPDX-License-Identifier: Apache-2.0
"""Files of tensors that nobody vouches for, and the checkpoints of a run's folder."""

from __future__ import annotations

import io
import pickle
import resource
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from fedface_flwr.errors import ConfigError, DataError, StateError
from fedface_flwr.evaluation.weights import choose_checkpoint, read_state_file, run_checkpoints, run_of

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.count": torch.tensor(7), "a.half": torch.ones(4).half()}


def saved(content: Any, path: Path, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def repacked(path: Path, change: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> Path:
    """Write a torch archive again, with some of its records replaced."""
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in records.items():
            archive.writestr(name, (change or {}).get(name.partition("/")[2], data))
    return path


@pytest.mark.parametrize("key", ["", "state_dict", "state_dict_backbone"])
@pytest.mark.parametrize("name", ["model.pth", "model.pt", "model.pth.tar"])
def test_a_state_dict_comes_back_wrapped_or_not(tmp_path: Path, key: str, name: str) -> None:
    content = {key: STATE, "epoch": 3, "optimizer": {"rate": 0.1}} if key else STATE
    read = read_state_file(saved(content, tmp_path / name))
    assert read.tensors.keys() == STATE.keys()
    assert all(torch.equal(read.tensors[n], t) and read.tensors[n].dtype == t.dtype for n, t in STATE.items())
    assert read.metadata == {}


def test_safetensors_come_back_with_their_metadata(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "m.safetensors", metadata={"x": "y"})
    read = read_state_file(tmp_path / "m.safetensors")
    assert all(torch.equal(read.tensors[n], t) for n, t in STATE.items())
    assert read.metadata == {"x": "y"}


class Opens:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_code_in_a_file_is_refused_and_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    path = saved({"state_dict": STATE, "extra": Opens(trap)}, tmp_path / "m.pth")
    with pytest.raises(DataError, match=r"m\.pth: not a state dict that torch can load without running code"):
        read_state_file(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "holds list, not a state dict"),
        ({}, "holds dict, not a state dict"),
        ({"a": 1.0}, "entry 'a' is float, not a named tensor"),
        ({3: torch.ones(2)}, "entry 3 is Tensor, not a named tensor"),
        ({"state_dict": {"a": "b"}}, "entry 'a' is str"),
        ({"a": torch.eye(3).to_sparse()}, r"tensor a is not a plain one \(torch.sparse_coo"),
        ({"a": torch.ones(1).expand(10**9)}, "declare 4000000000 bytes, more than the file has"),
    ],
)
def test_what_is_no_plain_state_dict_is_named(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"m\.pth: .*{said}"):
        read_state_file(saved(content, tmp_path / "m.pth"))


def test_a_compressed_archive_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = repacked(saved({"a": torch.zeros(10**6)}, tmp_path / "m.pth"), method=zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match="is a compressed archive, of 4000"):
        read_state_file(path)


def test_a_storage_larger_than_its_record_reads_nothing_outside_the_file(tmp_path: Path) -> None:
    path = saved({"a": torch.ones(1000)}, tmp_path / "m.pth")
    with zipfile.ZipFile(path) as archive:
        names = {entry.filename.partition("/")[2]: archive.read(entry) for entry in archive.infolist()}
    # 1000 is written as two bytes, once for the storage's length and once for the tensor's shape.
    wanted, larger = b"M" + (1000).to_bytes(2, "little"), b"J" + (2 * 10**9).to_bytes(4, "little")
    assert names["data.pkl"].count(wanted) == 2
    repacked(path, {"data.pkl": names["data.pkl"].replace(wanted, larger)})
    with pytest.raises(DataError, match=r"m\.pth: "):
        read_state_file(path)


def test_a_file_of_before_torch_1_6_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = saved(STATE, tmp_path / "m.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(DataError, match=r"since torch 1\.6; an older one must be loaded and saved again"):
        read_state_file(path)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04", b"PK\x03\x04" + bytes(500), pickle.dumps({"a": 1}), b"\xff" * 99]
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.pth"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"m\.pth: "):
        read_state_file(path)


@pytest.mark.parametrize("name", ["absent.pth", "."])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_state_file(tmp_path / name)


def _torch_bytes() -> bytes:
    file = io.BytesIO()
    torch.save(STATE, file)
    return file.getvalue()


TORCH = _torch_bytes()


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, len(TORCH) - 1), st.integers(0, 255)), max_size=6), st.floats(0, 1))
def test_a_mutated_archive_is_read_or_refused(tmp_path_factory: Any, edits: list[tuple[int, int]], keep: float) -> None:
    data = bytearray(TORCH)
    for at, value in edits:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "mutated.pth"
    path.write_bytes(data if keep > 0.3 else data[: int(len(data) * keep / 0.3)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(DataError):
        tensors = read_state_file(path).tensors
        assert sum(t.numel() for t in tensors.values() if isinstance(t, Tensor)) <= len(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_run_has_one_global_model(tmp_path: Path) -> None:
    touch(tmp_path / "config.yaml", tmp_path / "checkpoint.safetensors", tmp_path / "other.safetensors")
    assert run_checkpoints(tmp_path) == {"global": tmp_path / "checkpoint.safetensors"}
    for asked in ("", "global"):
        assert choose_checkpoint(tmp_path, asked) == ("global", tmp_path / "checkpoint.safetensors")


def test_silos_and_halves_have_their_own_models(tmp_path: Path) -> None:
    files = {
        f"{half}/{silo}": tmp_path / half / f"checkpoint-{silo}.safetensors"
        for half in ("first", "second")
        for silo in "ab"
    }
    touch(*files.values(), *(tmp_path / half / "config.yaml" for half in ("first", "second")))
    assert run_checkpoints(tmp_path) == files
    with pytest.raises(ConfigError, match=r"has several models; choose one of first/a, first/b, second/a, second/b"):
        choose_checkpoint(tmp_path, "")
    with pytest.raises(ConfigError, match=r"has no model 'c'; choose one of first/a"):
        choose_checkpoint(tmp_path, "c")
    assert choose_checkpoint(tmp_path, "second/b") == ("second/b", files["second/b"])
    assert run_of(files["second/b"]) == (tmp_path / "second", "b")


def test_folders_without_a_model_say_why(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="not a run's folder"):
        run_checkpoints(tmp_path)
    touch(tmp_path / "config.yaml", tmp_path / "state.safetensors")
    with pytest.raises(StateError, match="has not finished; go on with resume="):
        run_checkpoints(tmp_path)


def test_only_what_a_run_has_left_is_its_model(tmp_path: Path) -> None:
    assert run_of(tmp_path / "checkpoint.safetensors") == (None, "")
    touch(tmp_path / "config.yaml")
    assert run_of(tmp_path / "checkpoint.safetensors") == (tmp_path, "")
    assert run_of(tmp_path / "exported.safetensors") == (None, "")
