# SPDX-License-Identifier: Apache-2.0
"""Writers of the source formats by their own descriptions: TFRecord by Google's protobuf, picture trees, lists."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from writers import encoded


def face_picture(seed: int, size: int = 16, kind: str = "JPEG") -> bytes:
    """A smooth picture of skin colour, different for each seed."""
    return encoded(face_pixels(seed, size), kind)


def face_pixels(seed: int, size: int = 16) -> npt.NDArray[np.uint8]:
    coarse = np.random.default_rng(seed).integers(-40, 40, (3, 4, 4))
    skin = np.array([190, 140, 110])[:, None, None]
    return np.kron(coarse + skin, np.ones((size // 4, size // 4), dtype=np.int64)).astype(np.uint8)


def write_tree(root: Path, labels: Sequence[int], size: int = 16, kind: str = "JPEG") -> list[bytes]:
    """Write ``root/id-LABEL/N.jpg``; return the pictures in the order of their paths."""
    pictures = {}
    for index, label in enumerate(labels):
        path = root / f"id-{label:03d}" / f"{index:04d}.{'png' if kind == 'PNG' else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures[path] = face_picture(index, size, kind)
        path.write_bytes(pictures[path])
    return [pictures[path] for path in sorted(pictures)]


def slow_crc32c(data: bytes) -> int:
    """CRC-32C a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tf_record(content: bytes) -> bytes:
    def masked(data: bytes) -> bytes:
        crc = slow_crc32c(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def _example_class() -> type:
    """tf.train.Example and what it is made of, described to protobuf at run time."""
    file = descriptor_pb2.FileDescriptorProto(name="example_of_tests.proto", package="tests", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name: str) -> descriptor_pb2.DescriptorProto:
        return file.message_type.add(name=name)

    def add(to: descriptor_pb2.DescriptorProto, name: str, number: int, kind: int, **more: object) -> None:
        to.field.add(name=name, number=number, type=kind, **{"label": field.LABEL_OPTIONAL, **more})

    for name, kind in (
        ("BytesList", field.TYPE_BYTES),
        ("FloatList", field.TYPE_FLOAT),
        ("Int64List", field.TYPE_INT64),
    ):
        add(message(name), "value", 1, kind, label=field.LABEL_REPEATED)
    feature = message("Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), 1):
        snake = {"BytesList": "bytes_list", "FloatList": "float_list", "Int64List": "int64_list"}[name]
        add(feature, snake, number, field.TYPE_MESSAGE, type_name=f".tests.{name}", oneof_index=0)
    features = message("Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, field.TYPE_MESSAGE, type_name=".tests.Feature")
    repeated = {"label": field.LABEL_REPEATED, "type_name": ".tests.Features.FeatureEntry"}
    add(features, "feature", 1, field.TYPE_MESSAGE, **repeated)
    add(message("Example"), "features", 1, field.TYPE_MESSAGE, type_name=".tests.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Example"))


_EXAMPLE = _example_class()


def example(features: Mapping[str, Sequence[bytes] | Sequence[int] | Sequence[float]]) -> bytes:
    """A serialised tf.train.Example."""
    message = _EXAMPLE()
    for name, values in features.items():
        feature = message.features.feature[name]
        for kind, lists in ((bytes, feature.bytes_list), (int, feature.int64_list), (float, feature.float_list)):
            if isinstance(values[0], kind):
                lists.value.extend(values)
                break
    return message.SerializeToString()


def write_tface(root: Path, name: str, labels: Sequence[int], shard_size: int) -> list[bytes]:
    """Write TFace's shards ``root/name/name-00000.tfrecord`` and its two indices; return the pictures in order.

    ``root/name.txt`` has name, shard, offset and label; ``root/name/name.index`` has picture, shard and offset.
    """
    folder = root / name
    folder.mkdir(parents=True)
    shards: list[bytes] = []
    listed, index = "", ""
    pictures = [face_picture(seed) for seed in range(len(labels))]
    for at, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        if at % shard_size == 0:
            shards.append(b"")
        listed += f"{name}\t{len(shards) - 1}\t{len(shards[-1])}\t{label}\n"
        index += f"raw/person {label}/{at}.jpg\t{len(shards) - 1}\t{len(shards[-1])}\n"
        shards[-1] += tf_record(example({"image": [picture]}))
    for number, content in enumerate(shards):
        (folder / f"{name}-{number:05d}.tfrecord").write_bytes(content)
    (root / f"{name}.txt").write_text(listed)
    (folder / f"{name}.index").write_text(index)
    return pictures
