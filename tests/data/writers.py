# SPDX-License-Identifier: Apache-2.0
"""Small writers of the formats that the readers are tested on, by the formats' own descriptions."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from PIL import Image

MAGIC = struct.pack("<I", 0xCED7230A)

edits = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4)
"""Bytes to overwrite: positions (taken modulo the file's length) and values."""


def pixels(seed: int, size: int = 8) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (3, size, size), dtype=np.uint8)


def encoded(image: npt.NDArray[np.uint8], kind: str) -> bytes:
    """Encode (3, height, width) as RGB, (1, height, width) as grey."""
    file = io.BytesIO()
    rows = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    Image.fromarray(rows).save(file, kind, quality=90)
    return file.getvalue()


def png(image: npt.NDArray[np.uint8]) -> bytes:
    return encoded(image, "PNG")


def jpeg(image: npt.NDArray[np.uint8]) -> bytes:
    return encoded(image, "JPEG")


def part(kind: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def record(payload: bytes) -> bytes:
    """One record, cut where the payload holds the magic number at a multiple of four bytes."""
    cuts = [at for at in range(0, len(payload) - 3, 4) if payload[at : at + 4] == MAGIC]
    starts, ends = [0, *(at + 4 for at in cuts)], [*cuts, len(payload)]
    pieces = [payload[start:end] for start, end in zip(starts, ends, strict=True)]
    if len(pieces) == 1:
        return part(0, payload)
    kinds = [1, *[2] * (len(pieces) - 2), 3]
    return b"".join(part(kind, piece) for kind, piece in zip(kinds, pieces, strict=True))


def face(label: float | list[float], image: bytes) -> bytes:
    """A picture's payload, with one label in its header or several after it."""
    labels = label if isinstance(label, list) else []
    scalar = 0.0 if isinstance(label, list) else label
    head = struct.pack("<IfQQ", len(labels), scalar, 7, 0)
    return head + struct.pack(f"<{len(labels)}f", *labels) + image


def write_recordio(folder: Path, payloads: Mapping[int, bytes], declared: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content, index = b"", ""
    for key, payload in payloads.items():
        index += f"{key}\t{len(content)}\n"
        content += record(payload)
    (folder / "train.rec").write_bytes(content)
    (folder / "train.idx").write_text(index)
    if declared is not None:
        (folder / "property").write_text(declared)
    return folder


def public_pack(labels: list[int]) -> dict[int, bytes]:
    """Payloads with the header record and identity records of the public face packs; key i + 1 is image i."""
    first = len(labels) + 1
    identities = sorted(set(labels))
    payloads = {0: face([first, first + len(identities)], b"")}
    payloads |= {key: face(label, png(pixels(key - 1))) for key, label in enumerate(labels, 1)}
    for key, identity in enumerate(identities, first):
        own = [at for at, label in enumerate(labels, 1) if label == identity]
        payloads[key] = face([own[0], own[-1] + 1], b"")
    return payloads


def edited(data: bytes, changes: list[tuple[int, int]], keep: float) -> bytes:
    """Overwrite some bytes and keep the first part of the result."""
    content = bytearray(data)
    for position, value in changes:
        content[position % len(content)] = value
    return bytes(content[: round(keep * len(content))])
