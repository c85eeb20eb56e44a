# SPDX-License-Identifier: Apache-2.0
"""A reader of pickles that knows no more than a verification pack needs.

It is a small machine of its own, since even with its globals restricted the standard unpickler lets a
hostile file reserve memory far beyond its own size, or nest its way through the stack. Nothing here is
imported, called or built by a name in the file: the few names that NumPy and bytes objects need stand for
branches of ``_Machine.reduce``, and what comes out is lists, tuples, numbers, strings, bytes and
``PickledArray``.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedface_flwr.errors import DataError

_GLOBALS = frozenset(
    {
        "numpy.core.multiarray._reconstruct",
        "numpy.core.numeric._frombuffer",
        "numpy.core.multiarray.scalar",
        "numpy.ndarray",
        "numpy.dtype",
        "_codecs.encode",
    }
)
_NEWEST_PROTOCOL = 5


@dataclass
class PickledArray:
    """A uint8 array in a pickle: its shape and its bytes."""

    shape: tuple[int, ...] = ()
    data: bytes = b""


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Dtype:
    code: str


def load_pickle(data: bytes, where: str) -> object:
    """Read a pickle of protocol 0 to 5, written by Python 2 (whose strings become bytes) or 3.

    Parameters
    ----------
    data : bytes
        The whole file.
    where : str
        Its path, for the error's text.

    Returns
    -------
    object
        Lists, tuples, numbers, booleans, None, strings, bytes and ``PickledArray``. The memory taken grows
        no faster than the file's length.

    Raises
    ------
    DataError
        If the pickle is damaged, truncated, followed by other bytes, or wants anything else built.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
        reason = str(error) if isinstance(error, ValueError) else "it ends early or is no pickle"
        raise DataError(f"{where}: damaged pickle at byte {machine.position}: {reason}") from error


class _Machine:
    """The pickle machine: a stack, marks on it, and a memo. Any error that it raises means a damaged file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        # Encoding one memoised string again and again would turn a few bytes into a copy each time.
        self.encodable = len(data)

    def run(self) -> object:
        while (opcode := self.take(1)) != b".":
            if opcode not in _OPCODES:
                raise ValueError(f"opcode {opcode!r} is not one that a verification pack has")
            _OPCODES[opcode](self)
        if len(self.stack) != 1 or self.marks:
            raise ValueError("it does not end with one object")
        if self.position != len(self.data):
            raise ValueError(f"{len(self.data) - self.position} bytes follow its end")
        return self.stack[0]

    def take(self, count: int) -> bytes:
        taken = self.data[self.position : self.position + count]
        # A negative length would read the same bytes for ever.
        if count < 0 or len(taken) < count:
            raise ValueError("truncated, the file ends inside of it")
        self.position += count
        return taken

    def integer(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def counted(self, layout: str) -> bytes:
        return self.take(self.integer(layout))

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise ValueError("truncated, the file ends inside of it")
        return self.take(end + 1 - self.position)[:-1]

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise ValueError("its stack is empty")
        taken = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return taken

    def pop_mark(self) -> list[Any]:
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def extend(self, items: list[Any] | tuple[Any, ...]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError(f"appends to {type(self.stack[-1]).__name__}, which is no list")
        self.stack[-1].extend(items)

    def protocol(self) -> None:
        if (version := self.integer("<B")) > _NEWEST_PROTOCOL:
            raise ValueError(f"protocol {version} is newer than {_NEWEST_PROTOCOL}")

    def text_integer(self) -> None:
        """Push a number written as text, where protocols 0 and 1 have no other booleans than 00 and 01."""
        line = self.line()
        self.push(line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L")))

    def quoted(self) -> None:
        line = self.line()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise ValueError("a string is not in quotes")
        self.push(codecs.escape_decode(line[1:-1])[0])

    def find(self, module: str, name: str) -> None:
        """Push what stands for a global; NumPy 2 renamed ``numpy.core``, so both names are one here."""
        known = f"{module}.{name}".replace("numpy._core.", "numpy.core.", 1)
        if known not in _GLOBALS:
            raise ValueError(f"it asks for the global {module}.{name}, which no verification pack needs")
        self.push(_Global(known))

    def reduce(self) -> None:
        """Push the result of one of the calls that NumPy arrays, NumPy booleans and bytes are pickled as."""
        target, arguments = self.pop(2)
        match getattr(target, "name", None), arguments:
            case "_codecs.encode", (str(text), "latin1"):
                self.encodable -= len(text)
                if self.encodable < 0:
                    raise ValueError("it holds more bytes than its file")
                self.push(text.encode("latin1"))
            case "numpy.core.multiarray._reconstruct", (_Global("numpy.ndarray"), _, _):
                self.push(PickledArray())
            case "numpy.core.numeric._frombuffer", (bytes(data), _Dtype("u1"), tuple(shape), _):
                self.push(PickledArray(shape, data))
            case "numpy.dtype", (str(code), _, _):
                self.push(_Dtype(code))
            case "numpy.dtype", (bytes(code), _, _):
                self.push(_Dtype(code.decode("ascii")))
            case "numpy.core.multiarray.scalar", (_Dtype("b1"), (b"\0" | b"\1") as value):
                self.push(value == b"\1")
            case name, _:
                raise ValueError(f"it calls {name} otherwise than uint8 arrays and booleans need")

    def build(self) -> None:
        """Give the array or dtype below the state on top; one-byte types need nothing of a dtype's state."""
        (state,) = self.pop(1)
        match self.stack[-1], state:
            case _Dtype(), tuple():
                pass
            case PickledArray() as target, (1, tuple(shape), _Dtype("u1"), _, bytes(data)):
                target.shape, target.data = shape, data
            case _:
                raise ValueError("it sets the state of something other than a uint8 array")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


# By the names of pickletools: numbers and constants, strings, containers, the memo, calls, and framing (a
# frame's length only helps a reader of streams).
_OPCODES: dict[bytes, Callable[[_Machine], object]] = {
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": _Machine.text_integer,
    b"L": _Machine.text_integer,
    b"J": lambda m: m.push(m.integer("<i")),
    b"K": lambda m: m.push(m.integer("<B")),
    b"M": lambda m: m.push(m.integer("<H")),
    b"\x8a": lambda m: m.push(int.from_bytes(m.counted("<B"), "little", signed=True)),
    b"S": _Machine.quoted,
    b"U": lambda m: m.push(m.counted("<B")),
    b"T": lambda m: m.push(m.counted("<i")),
    b"C": lambda m: m.push(m.counted("<B")),
    b"B": lambda m: m.push(m.counted("<I")),
    b"\x8e": lambda m: m.push(m.counted("<Q")),
    b"\x96": lambda m: m.push(m.counted("<Q")),
    b"V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    b"X": lambda m: m.push(_text(m.counted("<I"))),
    b"\x8c": lambda m: m.push(_text(m.counted("<B"))),
    b"\x8d": lambda m: m.push(_text(m.counted("<Q"))),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"l": lambda m: m.push(m.pop_mark()),
    b"t": lambda m: m.push(tuple(m.pop_mark())),
    b"a": lambda m: m.extend(m.pop(1)),
    b"e": lambda m: m.extend(m.pop_mark()),
    b"\x85": lambda m: m.push(m.pop(1)),
    b"\x86": lambda m: m.push(m.pop(2)),
    b"\x87": lambda m: m.push(m.pop(3)),
    b"p": lambda m: m.memo.__setitem__(int(m.line()), m.stack[-1]),
    b"q": lambda m: m.memo.__setitem__(m.integer("<B"), m.stack[-1]),
    b"r": lambda m: m.memo.__setitem__(m.integer("<I"), m.stack[-1]),
    b"\x94": lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),
    b"g": lambda m: m.push(m.memo[int(m.line())]),
    b"h": lambda m: m.push(m.memo[m.integer("<B")]),
    b"j": lambda m: m.push(m.memo[m.integer("<I")]),
    b"c": lambda m: m.find(m.line().decode(), m.line().decode()),
    b"\x93": lambda m: m.find(*m.pop(2)),
    b"R": _Machine.reduce,
    b"b": _Machine.build,
    b"\x80": _Machine.protocol,
    b"\x95": lambda m: m.take(8),
}
