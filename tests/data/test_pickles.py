# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writers import edited, edits

from fedface_flwr.data.pickles import PickledArray, load_pickle
from fedface_flwr.errors import DataError

PROTOCOLS = range(6)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.binary(min_size=1) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.tuples(inner, inner, inner, inner),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_objects_read_as_the_standard_library_reads_them(value, protocol):
    result = load_pickle(pickle.dumps(value, protocol), "x")
    assert result == value
    assert repr(result) == repr(value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("size", [3, 300, 70_000])
def test_shared_bytes_of_every_length(protocol, size):
    data = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    assert load_pickle(pickle.dumps([data, data, (data,)], protocol), "x") == [data, data, (data,)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_arrays_and_booleans(protocol):
    rows = [np.arange(5, dtype=np.uint8), np.arange(300).astype(np.uint8), np.zeros((4, 1), np.uint8)]
    arrays = [PickledArray(row.shape, row.tobytes()) for row in rows]
    assert load_pickle(pickle.dumps((rows, [np.True_, np.False_]), protocol), "x") == (arrays, [True, False])


@pytest.mark.parametrize("protocol", range(4))
def test_names_of_the_first_numpy(protocol):
    data = pickle.dumps([np.arange(5, dtype=np.uint8), np.True_], protocol)
    first = data.replace(b"numpy._core", b"numpy.core")
    assert load_pickle(first, "x") == [PickledArray((5,), bytes(range(5))), True]


def test_strings_of_python_2_become_bytes():
    text = b"\xff\xd8'\"\\\n\x00end"
    protocol_0 = b"(lp0\nS" + repr(text).removeprefix("b").encode() + b"\np1\naI01\naI00\naI7\naL12L\na."
    protocol_2 = (
        b"\x80\x02](U" + bytes([len(text)]) + text + b"q\x01T" + struct.pack("<i", len(text)) + text + b"\x88e."
    )
    assert load_pickle(protocol_0, "x") == [text, True, False, 7, 12]
    assert load_pickle(protocol_2, "x") == [text, text, True]


def test_array_of_python_2():
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01K\x03\x85" + dtype
    assert load_pickle(b"\x80\x02" + array + b"\x89U\x03abctb.", "x") == PickledArray((3,), b"abc")


class Evil:
    def __reduce__(self):
        return os.system, ("false",)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Evil(), "system"),
        (np.random.default_rng, "default_rng"),
        (eval, "eval"),
        (PickledArray(), "PickledArray|_reconstructor"),
        ({1, 2}, "set|opcode"),
        (3.5, "opcode"),
        ({}, "opcode"),
        (np.float32(1), "otherwise than uint8"),
        (np.zeros(3), "otherwise than uint8|state of something other"),
        (np.array([None]), "otherwise than uint8|state of something other|opcode"),
        (np.zeros(3, np.dtype([("a", "u1")])), "otherwise than uint8|state of something other|opcode"),
    ],
)
def test_anything_else_is_refused_by_name(value, name, protocol):
    with pytest.raises(DataError, match=f"^pack: damaged pickle at byte .*({name})"):
        load_pickle(pickle.dumps(value, protocol), "pack")


ENCODE = b"c_codecs\nencode\n"
HOSTILE = {
    "memo index of 4 GiB": b"Nr\xff\xff\xff\xff.",
    "bytes of 1 TiB": b"\x8e" + struct.pack("<Q", 1 << 40) + b"abc.",
    "bytes of 2**64 - 1": b"\x8e" + b"\xff" * 8 + b"abc.",
    "bytearray of 1 TiB": b"\x96" + struct.pack("<Q", 1 << 40) + b"abc.",
    "string of a negative length": b"T\xfb\xff\xff\xff.",
    "frame of 1 TiB": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "deeply nested tuples": b")" + b"\x85" * 200_000 + b".",
    "a list in itself": b"]q\x00h\x00a.",
    "one string encoded a thousand times": ENCODE
    + b"q\x00X"
    + struct.pack("<I", 100_000)
    + b"a" * 100_000
    + b"q\x01"
    + b"h\x00h\x01X\x06\x00\x00\x00latin1\x86R" * 1000
    + b".",
    "digits without end": b"L" + b"9" * 100_000 + b"L\n.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_file_takes_memory_in_proportion_to_its_size(data):
    tracemalloc.start()
    with suppress(DataError):
        load_pickle(data, "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000 + 100 * len(data)


DAMAGED = {
    "empty": b"",
    "no stop": b"\x80\x02]",
    "cut in a length": b"\x80\x02T\x05\x00",
    "cut in bytes": b"\x80\x02U\x05ab.",
    "cut in a line": b"I12",
    "nothing on the stack": b".",
    "two objects": b"NN.",
    "an open mark": b"N(.",
    "no mark": b"Nt.",
    "append without list": b"NNa.",
    "append to nothing": b"Na.",
    "too few for a tuple": b"N\x87.",
    "unknown memo": b"h\x05.",
    "no number": b"Iabc\n.",
    "no quotes": b"Sabc\n.",
    "bad escape": b"S'\\x'\n.",
    "bad text": b"\x8c\x01\xff.",
    "newer protocol": b"\x80\x06N.",
    "unknown opcode": b"\xf0.",
    "bytes after the end": b"N.N",
    "call of a number": b"K\x01)R.",
    "call without tuple": ENCODE + b"NR.",
    "array state of the wrong kind": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nNNtRNb.",
    "state of a list": b"]]b.",
    "state of a name": ENCODE + b")b.",
    "other encoding": ENCODE + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
    "text beyond latin1": ENCODE + b"X\x02\x00\x00\x00\xc4\x80X\x06\x00\x00\x00latin1\x86R.",
    "global of unhashable name": b"]]\x93.",
    "boolean of two bytes": b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n(U\x02b1NNtRU\x02ab\x86R.",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_pickle_is_an_error_that_says_where(data):
    with pytest.raises(DataError, match=r"^pack: damaged pickle at byte \d+: \S+ "):
        load_pickle(data, "pack")


@settings(max_examples=400, deadline=None)
@given(edits, st.floats(0, 1), st.sampled_from(PROTOCOLS))
def test_damaged_bytes_are_data_errors_or_still_read(changes, keep, protocol):
    data = pickle.dumps(([np.arange(9, dtype=np.uint8), b"abc"], [np.True_, False]), protocol)
    with suppress(DataError):
        load_pickle(edited(data, changes, keep), "x")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_data_errors_or_read(data):
    with suppress(DataError):
        load_pickle(data, "x")
