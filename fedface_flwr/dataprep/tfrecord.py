# SPDX-License-Identifier: Apache-2.0
"""The TFRecord container and the ``tf.train.Example`` message in it, read without TensorFlow.

A record is its length (uint64), the masked CRC-32C of these eight bytes, the content, and the masked CRC-32C of
the content; numbers are little-endian. The mask is ``rotate_right(crc, 15) + 0xa282ead8``.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedface_flwr.errors import DataError

HEAD, FOOT = 12, 4
"""Bytes of a record before and after its content."""

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with the bits reversed
_BLOCK = 4096

Values = list[bytes] | list[int] | list[float]


@functools.cache
def _tables() -> npt.NDArray[np.uint32]:
    """Return what a byte contributes to the CRC, by its distance from the end of a block and its value."""
    tables = np.empty((_BLOCK, 256), dtype=np.uint32)
    row = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        row = np.where(row & 1, row >> 1 ^ _POLYNOMIAL, row >> 1).astype(np.uint32)
    tables[0] = row
    for distance in range(1, _BLOCK):
        before = tables[distance - 1]
        tables[distance] = before >> 8 ^ tables[0][before & 0xFF]
    return tables


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli, RFC 3720) of ``data``.

    The CRC is linear, so the bytes of a block are looked up all at once, each in the table of its own distance
    from the block's end.
    """
    tables = _tables()
    content = np.frombuffer(data, dtype=np.uint8)
    state = 0xFFFFFFFF
    for start in range(0, len(content), _BLOCK):
        block = content[start : start + _BLOCK].copy()
        head = min(4, len(block))
        block[:head] ^= np.frombuffer(struct.pack("<I", state), dtype=np.uint8)[:head]
        looked_up = tables[np.arange(len(block) - 1, -1, -1), block]
        state = int(np.bitwise_xor.reduce(looked_up)) ^ (state >> 8 * head)
    return state ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Return the CRC as TFRecord files hold it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_record(descriptor: int, offset: int, size: int, where: str) -> bytes:
    """Return the content of the record at ``offset`` of an open file of ``size`` bytes; DataError if damaged."""
    head = os.pread(descriptor, HEAD, offset)
    if len(head) < HEAD:
        raise DataError(f"{where}: truncated, the file ends inside of the record's head at byte {offset}")
    length, length_crc = struct.unpack("<QI", head)
    if masked_crc(head[:8]) != length_crc:
        raise DataError(f"{where}: no record starts at byte {offset} (the length's checksum does not agree)")
    if offset + HEAD + length + FOOT > size:
        raise DataError(f"{where}: truncated, the file ends inside of the record at byte {offset}")
    body = os.pread(descriptor, length + FOOT, offset + HEAD)
    content = body[:length]
    if masked_crc(content) != int.from_bytes(body[length:], "little"):
        raise DataError(f"{where}: damaged, the content's checksum does not agree")
    return content


def record_places(descriptor: int, size: int, where: str) -> Iterator[tuple[int, str]]:
    """Yield each record's offset and an empty text, or, where no further record can be found, a problem, last."""
    offset = 0
    while offset < size:
        head = os.pread(descriptor, HEAD, offset)
        damaged = len(head) < HEAD or masked_crc(head[:8]) != int.from_bytes(head[8:], "little")
        length = int.from_bytes(head[:8], "little")
        if damaged or offset + HEAD + length + FOOT > size:
            yield offset, f"{where}: no whole record at byte {offset}; what follows cannot be read"
            return
        yield offset, ""
        offset += HEAD + length + FOOT


def parse_example(message: bytes, where: str) -> dict[str, Values]:
    """Return the features of a serialised ``tf.train.Example``.

    Parameters
    ----------
    message : bytes
        ``Example {1: Features {1: map entry {1: name, 2: Feature}}}``, a Feature being one of BytesList (1),
        FloatList (2) and Int64List (3), in the wire format of protocol buffers.
    where : str
        Its file and record, for the error's text.

    Raises
    ------
    DataError
        If it is no such message.
    """
    features: dict[str, Values] = {}
    try:
        for features_message in _submessages(message, 1):
            for entry in _submessages(features_message, 1):
                name = b"".join(_submessages(entry, 1)[-1:])
                for feature in _submessages(entry, 2)[-1:]:
                    features[name.decode("utf-8")] = _values(feature)
    except (ValueError, struct.error) as error:
        raise DataError(f"{where}: not a tf.train.Example ({error})") from error
    return features


def _values(feature: bytes) -> Values:
    values: Values = []
    for number, _, value in _fields(feature):
        if not isinstance(value, bytes):
            raise ValueError("a feature that is no list")
        if number == 1:
            values = _submessages(value, 1)
        elif number == 2:
            values = _floats(value)
        elif number == 3:
            values = _integers(value)
    return values


def _floats(message: bytes) -> list[float]:
    packed = b"".join(value for number, _, value in _fields(message) if number == 1 and isinstance(value, bytes))
    return [number for (number,) in struct.iter_unpack("<f", packed)]


def _integers(message: bytes) -> list[int]:
    found: list[int] = []
    for number, _, value in _fields(message):
        if number == 1 and isinstance(value, int):
            found.append(value)
        elif number == 1 and isinstance(value, bytes):
            at = 0
            while at < len(value):
                one, at = _varint(value, at)
                found.append(one)
    # Negative numbers travel as 64-bit two's complement.
    return [value - (1 << 64) if value >> 63 else value for value in found]


def _submessages(message: bytes, wanted: int) -> list[bytes]:
    return [value for number, _, value in _fields(message) if number == wanted and isinstance(value, bytes)]


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Yield a message's fields: number, wire type, and the value, an int for a varint."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == 2:
            length, at = _varint(message, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + length > len(message):
            raise ValueError("a field runs over its message's end")
        yield number, wire, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number runs over its message's end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
    raise ValueError("a number is too long")
