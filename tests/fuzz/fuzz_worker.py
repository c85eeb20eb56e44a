# SPDX-License-Identifier: Apache-2.0
"""Tries mutants in child processes of bounded memory and time.

As a program: ``fuzz_worker.py TARGET SEED FIRST COUNT`` tries some mutants and prints what failed, of one target
or of several with commas between; of ``all``, COUNT percent of what the test suite tries. ``fuzz_worker.py serve``
reads ``[TARGET, SEED, FIRST, COUNT]`` or ``[TARGET, PLACE, CONTENT]``, the hexadecimal content of the target's file
number PLACE, a JSON list a line, and answers each.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
from fuzz_mutation import Mutator  # noqa: E402
from fuzz_target import Target  # noqa: E402
from fuzz_targets import FAULTY, TARGETS  # noqa: E402

from fedface_flwr.errors import FedFaceError  # noqa: E402

# What no reader of files does: run a program, load a class by a pickle, speak to others.
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.", "pickle.", "socket.")
_SHOWN = 5


class Hang(BaseException):
    """No reader can catch it."""


class Executed(BaseException):
    """Something was run that a file may not have run."""


def mutant(target: Target, seed: int, number: int, files: list[Path], whole: list[bytes]) -> tuple[Path, bytes]:
    """Return one damaged file."""
    rng = np.random.default_rng([seed, zlib.crc32(target.name.encode()), number])
    mutator = Mutator(rng, target.words)
    place = mutator.below(len(files))
    if target.tailor is not None and place == 0 and mutator.below(2):
        return files[place], target.tailor(mutator, whole[place])
    others = target.seeds if place == 0 else ()
    return files[place], mutator.mutate([whole[place], *others])


def attempt(target: Target, root: Path, damaged: Path) -> str | None:
    """Read a folder; return whether the damage was refused (its text) or not (empty), or None and raise nothing else.

    Raises
    ------
    AssertionError
        With the reason why this is a fault.
    """
    unraisable: list[str] = []
    sys.unraisablehook = lambda about: unraisable.append(f"{about.exc_type.__name__}: {about.exc_value}")
    signal.setitimer(signal.ITIMER_REAL, target.seconds)
    try:
        target.read(root)
        told = ""
    except FedFaceError as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        told = str(error)
        if _out_of_memory(error):
            raise AssertionError(f"took all memory: {told[:300]}") from error
        # A file that a damaged list names may lie anywhere.
        if damaged.name not in told and str(root) not in told and not told.startswith("/"):
            raise AssertionError(f"the error names no file: {told[:300]}") from error
        if not told.isprintable() and len(told) > 10_000:
            raise AssertionError(f"the error has {len(told)} characters") from error
    except (Exception, Hang, Executed) as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        last = traceback.extract_tb(error.__traceback__)
        places = " < ".join(f"{Path(at.filename).name}:{at.lineno}" for at in reversed(last[-4:]))
        raise AssertionError(f"{type(error).__name__}: {str(error)[:300]} at {places}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if unraisable:
        raise AssertionError(unraisable[0])
    return told


def _out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or any(
            word in str(error) for word in ("alloc", "out of memory", "not enough memory")
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def _mutants(target: Target, job: list[Any], files: list[Path]) -> Iterator[tuple[int, Path, bytes]]:
    """Yield number, file and content of what a job asks for."""
    whole = [path.read_bytes() for path in files]
    if len(job) == 2:
        yield 0, files[job[0]], bytes.fromhex(job[1])
        return
    seed, first, count = job
    for number in range(first, first + count):
        path, data = mutant(target, seed, number, files, whole)
        yield number, path, data
        if len(files) > 1:
            path.unlink()
            path.write_bytes(whole[files.index(path)])


def _batch(target: Target, job: list[Any], root: Path, progress: mmap.mmap) -> dict[str, Any]:
    files = list(target.build(root))
    target.read(root)  # What is not damaged must be read.
    result: dict[str, Any] = {"read": 0, "refused": 0, "faults": []}
    _bound(target)
    for number, path, data in _mutants(target, job, files):
        progress[:8] = number.to_bytes(8, "little")
        # Another file, since readers may still map the one before.
        path.unlink()
        path.write_bytes(data)
        try:
            result["refused" if attempt(target, root, path) else "read"] += 1
        except AssertionError as error:
            result["faults"].append([number, f"{path.name}: {error}"])
    return result


def _bound(target: Target) -> None:
    """Bound memory and time, and forbid what files could have run."""

    def hang(number: int, frame: object) -> None:
        raise Hang(f"not read within {target.seconds} s")

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_FORBIDDEN):
            raise Executed(f"{event} {arguments!r}"[:200])

    signal.signal(signal.SIGALRM, hang)
    # After the filters that are there, for what they pass over is meant to be.
    warnings.simplefilter("error", append=True)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + target.memory,) * 2)
    sys.addaudithook(audit)


@contextmanager
def _folder() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def attempt_all(name: str, *job: Any) -> dict[str, Any]:
    """Try what a job asks for in a process of its own.

    Parameters
    ----------
    name : str
        The target.
    job
        Seed, first mutant and number of mutants; or a file's place among those to damage, and its content in
        hexadecimal.

    Returns
    -------
    dict
        How many were ``read`` and ``refused``; ``faults``, a list of a mutant's number and what is wrong.
    """
    target, progress = (TARGETS | FAULTY)[name], mmap.mmap(-1, 8)
    begun = time.monotonic()
    with _folder() as home:
        (home / "files").mkdir()
        result = home / "result.json"
        child = os.fork()
        if child == 0:
            _child(target, list(job), home / "files", progress, result)
        ended, status = _wait(child, 100 + (job[2] / 20 if len(job) == 3 else 0))
        number = int.from_bytes(progress[:8], "little")
        if ended and status == 0:
            found: dict[str, Any] = json.loads(result.read_text())
        else:
            died = f"ended by status {status}" if ended else "never ended"
            told = result.read_text()[-2000:] if result.exists() else ""
            found = {"read": 0, "refused": 0, "faults": [[number, f"the process {died} {told}"]]}
    return found | {"seconds": round(time.monotonic() - begun, 2)}


def _child(target: Target, job: list[Any], root: Path, progress: mmap.mmap, result: Path) -> None:
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        result.write_text(json.dumps(_batch(target, job, root, progress)))
        status = 0
    except BaseException:
        result.write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _wait(child: int, seconds: float) -> tuple[bool, int]:
    handle = os.pidfd_open(child)
    try:
        ended = bool(select.select([handle], [], [], seconds)[0])
        if not ended:
            os.kill(child, signal.SIGKILL)
        return ended, os.waitpid(child, 0)[1]
    finally:
        os.close(handle)


def main(arguments: list[str]) -> int:
    if arguments == ["serve"]:
        for line in sys.stdin:
            print(json.dumps(attempt_all(*json.loads(line))), flush=True)
        return 0
    name, seed, first, count = arguments[0], *map(int, arguments[1:4])
    faults = 0
    for target in TARGETS if name == "all" else name.split(","):
        tried = count if name != "all" else max(1, count * TARGETS[target].mutants // 100)
        found = attempt_all(target, seed, first, tried)
        faults += len(found["faults"])
        print(f"{target:28} {tried:7} {found['read']:7} read {found['refused']:7} refused {found['seconds']:7} s")
        for number, told in found["faults"][:_SHOWN]:
            print(f"   {target} {seed} {number}: {told}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
