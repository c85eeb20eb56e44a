# SPDX-License-Identifier: Apache-2.0
"""``fedface-data``: looks at sets of faces, converts, packs, splits, aligns and checks them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedface_flwr.data.own_files import BROKEN, sums_name
from fedface_flwr.dataprep import aligning, arguments, pack
from fedface_flwr.dataprep.convert import convert
from fedface_flwr.dataprep.inspecting import inspect
from fedface_flwr.dataprep.inspection_text import inspection_lines
from fedface_flwr.dataprep.pictures import Encoding
from fedface_flwr.dataprep.source import Source, SourceOptions
from fedface_flwr.dataprep.sources import open_source
from fedface_flwr.dataprep.split import split
from fedface_flwr.dataprep.sums import read_sums, write_sums
from fedface_flwr.dataprep.verifying import FAULT, KINDS, unlisted, verify_structure, verify_sums
from fedface_flwr.errors import DataError, FedFaceError
from fedface_flwr.files import printable
from fedface_flwr.reporting.bars import Reporter
from fedface_flwr.wording import numbered

DONE, FAILED = 0, 1
"""Exit codes, beside argparse's 2 for a command line that cannot be meant and 130 for an interrupt."""


def _inspect(options: argparse.Namespace) -> int:
    seen = inspect(_source(options), pixels=options.pixels, reporter=_reporter(options))
    if options.json:
        print(json.dumps(seen.as_json(), indent=2))
    else:
        for line in inspection_lines(str(options.set), seen, everything=options.all):
            _say(line)
    return FAILED if seen.broken or seen.faults else DONE


def _convert(options: argparse.Namespace) -> int:
    encoding = Encoding(options.size, options.quality, options.exchange_colours)
    source = _source(options)
    made = convert(source, options.dest, encoding, skip_broken=options.skip_broken, reporter=_reporter(options))
    left_out = _left_out(options.dest, made.broken, made.faults)
    counted = f"{numbered(made.images, 'image')} of {numbered(made.identities, 'identity')}"
    _say(f"{options.dest}: {counted}, {made.side} px{left_out}{_there(made.new)}")
    return DONE


def _pack(options: argparse.Namespace) -> int:
    images = options.images or options.pairs.parent
    pairs = pack.read_pairs(options.pairs, images, options.format, options.extension)
    encoding = Encoding(options.size, options.quality, options.exchange_colours)
    made = pack.write_pack(pairs, options.dest, encoding, _reporter(options))
    _say(f"{options.dest}: {numbered(made.pairs, 'pair')}, {made.matching} matching, {made.side} px")
    return DONE


def _split(options: argparse.Namespace) -> int:
    name = options.name or options.set.absolute().name.split(".")[0]
    source, reporter = _source(options), _reporter(options)
    for part in split(source, options.dest, name, options.parts, options.by, options.seed, reporter):
        counted = f"{numbered(part.images, 'image')} of {numbered(part.identities, 'identity')}"
        _say(f"{options.dest / part.name}: {counted}")
    return DONE


def _align(options: argparse.Namespace) -> int:
    raw = aligning.RawFaces.open(options.source, options.points, options.identities)
    made = aligning.align_all(
        raw,
        options.dest,
        options.to,
        options.size,
        options.quality,
        strict=options.strict,
        reporter=_reporter(options),
    )
    left_out = _left_out(options.dest, made.broken)
    _say(f"{options.dest}: {numbered(made.images, 'aligned face')}{left_out}{_there(made.new)}")
    return DONE


def _verify(options: argparse.Namespace) -> int:
    reporter = _reporter(options)
    counts = dict.fromkeys(KINDS, 0)
    compared, differing = _compare(options, reporter) if options.sums is not None else (0, 0)
    try:
        source = _source(options)
        for failed in verify_structure(source, reporter):
            counts[failed.kind] += 1
            _say(f"FAILED {failed.text}")
        whole = f"{numbered(len(source.labels), 'picture')} whole"
    except DataError as error:
        counts[FAULT] += 1
        _say(f"FAILED {error}")
    parts = [numbered(count, kind) if kind == FAULT else f"{count:,} {kind}" for kind, count in counts.items()]
    checksums = [] if options.sums is None else [f"{differing} of {numbered(compared, 'checksum')} wrong"]
    if failures := sum(counts.values()) + differing:
        _say(f"{options.set}: {failures:,} failed: {', '.join([*parts, *checksums])}")
        return FAILED
    _say(f"{options.set}: {', '.join([whole, *checksums])}")
    return DONE


def _compare(options: argparse.Namespace, reporter: Reporter) -> tuple[int, int]:
    """Compare a set's files with their checksums; return how many there are, and how many are missing or differ."""
    sums = read_sums(options.sums)
    compared = differing = 0
    for fault in verify_sums(options.set, sums, options.sums.parent, reporter):
        compared += 1
        if fault is not None:
            differing += 1
            _say(f"FAILED {fault}")
    for path in unlisted(options.set, sums, options.sums.parent) if options.set.is_dir() else ():
        _say(f"warning: {path}: has no checksum")
    return compared, differing


def _sums(options: argparse.Namespace) -> int:
    target: Path = options.set
    if target.is_dir():
        out = options.output or target / sums_name(options.algorithm)
        files = [path for path in sorted(target.rglob("*")) if path.is_file() and path.resolve() != out.resolve()]
        named = [(path.relative_to(target).as_posix(), path) for path in files]
    else:
        out = options.output or target.with_name(f"{target.name}.{options.algorithm}")
        named = [(target.name, target)]
    if not named:
        raise DataError(f"{target}: holds no files")
    total = sum(path.stat().st_size for _, path in named if path.is_file())
    with _reporter(options).bar("checksums", total) as advance:
        write_sums(named, out, options.algorithm, advance)
    _say(f"{out}: {numbered(len(named), 'checksum')}")
    return DONE


def _left_out(dest: Path, broken: int, faults: int = 0) -> str:
    told = [f"{numbered(broken, 'picture')} left out"] if broken else []
    told += [f"{numbered(faults, 'fault')} passed over"] if faults else []
    return f"; {' and '.join(told)}, see {dest / BROKEN}" if told else ""


def _there(new: bool) -> str:
    return "" if new else " (was there already)"


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def _source(options: argparse.Namespace) -> Source:
    path = options.source if "source" in options else options.set
    return open_source(path, SourceOptions(options.format, options.root, options.image_field, options.label_field))


def _reporter(options: argparse.Namespace) -> Reporter:
    return Reporter(quiet=options.quiet)


def _say(text: str) -> None:
    print(printable(text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedface-data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (run, add, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        add(command)
        command.add_argument("-q", "--quiet", action="store_true", help="no progress, even on a terminal")
        command.set_defaults(run=run)
    return parser


_Command = tuple[Callable[[argparse.Namespace], int], Callable[[argparse.ArgumentParser], None], str]
_COMMANDS: dict[str, _Command] = {
    "inspect": (_inspect, arguments.add_inspect, "Count what a set holds and list what is broken or double."),
    "convert": (_convert, arguments.add_convert, "Make a RecordIO set of a set in another format."),
    "pack": (_pack, arguments.add_pack, "Make a verification pack of pairs of pictures."),
    "split": (_split, arguments.add_split, "Split a set into disjoint, even RecordIO sets."),
    "align": (_align, arguments.add_align, "Cut aligned faces out of raw pictures by five points."),
    "verify": (_verify, arguments.add_verify, "Check a set's files against checksums and every record."),
    "sums": (_sums, arguments.add_sums, "Write a set's checksum file."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the ``fedface-data`` command; errors end it with one line."""
    options = _parser().parse_args(argv)
    try:
        result: int = options.run(options)
        return result
    except (FedFaceError, OSError) as error:
        print(printable("; ".join([f"fedface-data: {error}", *_notes(error)])), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt as interrupt:
        print(printable("; ".join(["fedface-data: interrupted", *_notes(interrupt)])), file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
