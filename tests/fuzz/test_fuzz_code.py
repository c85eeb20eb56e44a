# SPDX-License-Identifier: Apache-2.0
"""Files that would run a program if they were read carelessly: here none does."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from fuzz_pairs import PNG

from fedface_flwr.data.matrices import map_matrix
from fedface_flwr.data.packs import EncodedPack, read_pack
from fedface_flwr.errors import FedFaceError
from fedface_flwr.evaluation.backbones import open_backbone
from fedface_flwr.protocols.suite import read_suite
from fedface_flwr.provision.federation import read_federation
from fedface_flwr.yaml_file import parse_yaml


class Creates:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def pickles(marker: Path) -> list[bytes]:
    """Return pickles that create the file, of all protocols and by all opcodes that call."""
    bomb, name = Creates(marker), str(marker).encode()
    contents = (bomb, ([PNG, PNG], [bomb]), ([bomb] * 2, [True]), {"state_dict": {"a": bomb}})
    found = [pickle.dumps(content, protocol) for content in contents for protocol in range(6)]
    by_hand = [
        b"cbuiltins\nopen\n(S'%s'\nS'w'\ntR.",
        b"(S'%s'\nS'w'\nibuiltins\nopen\n.",
        b"(cbuiltins\nopen\nS'%s'\nS'w'\no.",
        b'cbuiltins\nexec\n(S\'open("%s", "w")\'\ntR.',
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93(V open('%s', 'w')\nt\x81.",
        b"(lp0\nS'x'\na(lp1\ncbuiltins\nopen\n(S'%s'\nS'w'\ntRatp2\n.",
    ]
    return [*found, *(code % name for code in by_hand)]


def run(content: bytes) -> None:
    try:
        pickle.loads(content)
    except Exception:
        return


def refused(read: Callable[[], object]) -> None:
    with pytest.raises(FedFaceError):
        read()


def test_the_bombs_go_off_where_pickles_are_read_carelessly(tmp_path: Path) -> None:
    marker, gone_off = tmp_path / "marker", 0
    for content in pickles(marker):
        run(content)
        gone_off += marker.exists()
        marker.unlink(missing_ok=True)
    # One of those by hand needs a class, and open() is none.
    assert gone_off >= len(pickles(marker)) - 2


@pytest.mark.parametrize("name", ["pack.bin", "model.pth", "model.pt", "model.safetensors", "model.onnx", "matrix.npy"])
def test_pickles_are_not_run_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    path, marker = tmp_path / name, tmp_path / "marker"
    for content in pickles(marker):
        path.write_bytes(content)
        refused(lambda: read_pack(path, 8))
        refused(lambda: EncodedPack.open(path))
        refused(lambda: open_backbone(path))
        refused(lambda: map_matrix(path))
        assert not marker.exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapped", [lambda bomb: bomb, lambda bomb: {"state_dict": {"a": bomb}}, lambda bomb: [bomb]])
def test_torch_archives_run_nothing(tmp_path: Path, wrapped: Callable[[object], object], zipped: bool) -> None:
    path, marker = tmp_path / "model.pth", tmp_path / "marker"
    torch.save(wrapped(Creates(marker)), path, _use_new_zipfile_serialization=zipped)
    refused(lambda: open_backbone(path))
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()


def test_arrays_of_objects_run_nothing(tmp_path: Path) -> None:
    marker, array = tmp_path / "marker", np.empty((2, 2), dtype=object)
    array[:] = Creates(marker)
    np.save(tmp_path / "m.npy", array, allow_pickle=True)
    refused(lambda: map_matrix(tmp_path / "m.npy"))
    assert not marker.exists()
    np.load(tmp_path / "m.npy", allow_pickle=True)
    assert marker.exists()


@pytest.mark.parametrize(
    "shape", ["(open({path}, 'w'), 2)", "(2, 2) if open({path}, 'w') else 0", "[open({path}, 'w') for _ in '12']"]
)
def test_an_arrays_header_is_no_program(tmp_path: Path, shape: str) -> None:
    marker = tmp_path / "marker"
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape.format(path=repr(str(marker))) + ", }\n"
    eval(header)
    assert marker.exists()
    marker.unlink()
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(16)
    (tmp_path / "m.npy").write_bytes(content)
    refused(lambda: map_matrix(tmp_path / "m.npy"))
    assert not marker.exists()


@pytest.mark.parametrize("read", [parse_yaml, read_suite, read_federation])
@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:builtins.open [{marker}, w]",
        "!!python/object/new:builtins.open [{marker}, w]",
        "x: !!python/object/apply:os.system ['touch {quoted}']",
        "? !!python/object/apply:builtins.open [{marker}, w]\n: 1",
        "!!python/name:os.system",
        "!!python/module:this",
    ],
)
def test_yaml_makes_no_objects(tmp_path: Path, read: Callable[[Path], object], text: str) -> None:
    path, marker = tmp_path / "file.yaml", tmp_path / "marker"
    path.write_text(text.format(marker=json.dumps(str(marker)), quoted=marker))
    refused(lambda: read(path))
    assert not marker.exists()


def test_the_yaml_goes_off_where_it_is_read_carelessly(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    yaml.unsafe_load(f"!!python/object/apply:builtins.open [{json.dumps(str(marker))}, w]").close()
    assert marker.exists()
