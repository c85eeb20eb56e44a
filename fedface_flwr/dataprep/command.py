# SPDX-License-Identifier: Apache-2.0
"""``fedface-data``: looks at sets of faces, converts, packs, splits, aligns and checks them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedface_flwr.dataprep import aligning, arguments, pack
from fedface_flwr.dataprep.convert import convert
from fedface_flwr.dataprep.inspecting import inspect
from fedface_flwr.dataprep.inspection_text import inspection_lines
from fedface_flwr.dataprep.pictures import Encoding
from fedface_flwr.dataprep.source import Source, SourceOptions
from fedface_flwr.dataprep.sources import open_source
from fedface_flwr.dataprep.split import split
from fedface_flwr.dataprep.sums import read_sums, write_sums
from fedface_flwr.dataprep.verifying import unlisted, verify_structure, verify_sums
from fedface_flwr.errors import DataError, FedFaceError
from fedface_flwr.files import printable
from fedface_flwr.reporting.bars import Reporter

DONE, FAILED = 0, 1
"""Exit codes, beside argparse's 2 for a command line that cannot be meant and 130 for an interrupt."""


def _inspect(options: argparse.Namespace) -> int:
    seen = inspect(_source(options), pixels=options.pixels, reporter=_reporter(options))
    if options.json:
        print(json.dumps(seen.as_json(), indent=2))
    else:
        for line in inspection_lines(str(options.set), seen, everything=options.all):
            _say(line)
    return FAILED if seen.broken else DONE


def _convert(options: argparse.Namespace) -> int:
    encoding = Encoding(options.size, options.quality, options.exchange_colours)
    source = _source(options)
    made = convert(source, options.dest, encoding, skip_broken=options.skip_broken, reporter=_reporter(options))
    left_out = f"; {made.broken} left out, see {options.dest / 'broken.txt'}" if made.broken else ""
    there = "" if made.new else " (was there already)"
    _say(f"{options.dest}: {made.images} images of {made.identities} identities, {made.side} px{left_out}{there}")
    return DONE


def _pack(options: argparse.Namespace) -> int:
    images = options.images or options.pairs.parent
    pairs = pack.read_pairs(options.pairs, images, options.format, options.extension)
    encoding = Encoding(options.size, options.quality, options.exchange_colours)
    made = pack.write_pack(pairs, options.dest, encoding, _reporter(options))
    _say(f"{options.dest}: {made.pairs} pairs, {made.matching} matching, {made.side} px")
    return DONE


def _split(options: argparse.Namespace) -> int:
    name = options.name or options.set.absolute().name.split(".")[0]
    source, reporter = _source(options), _reporter(options)
    for part in split(source, options.dest, name, options.parts, options.by, options.seed, reporter):
        _say(f"{options.dest / part.name}: {part.images} images of {part.identities} identities")
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
    left_out = f"; {made.broken} left out, see {options.dest / 'broken.txt'}" if made.broken else ""
    _say(f"{options.dest}: {made.images} aligned faces{left_out}")
    return DONE


def _verify(options: argparse.Namespace) -> int:
    reporter = _reporter(options)
    faults = 0
    if options.sums is not None:
        sums = read_sums(options.sums)
        for fault in verify_sums(options.set, sums, options.sums.parent, reporter):
            faults += 1
            _say(f"FAILED {fault}")
        for path in unlisted(options.set, sums, options.sums.parent) if options.set.is_dir() else ():
            _say(f"warning: {path}: has no checksum")
    try:
        source = _source(options)
        for fault in verify_structure(source, reporter):
            faults += 1
            _say(f"FAILED {fault}")
        count = f"{len(source.labels)} pictures"
    except DataError as error:
        faults += 1
        _say(f"FAILED {error}")
        count = "set"
    _say(f"{options.set}: {f'{faults} faults' if faults else f'{count} whole'}")
    return FAILED if faults else DONE


def _sums(options: argparse.Namespace) -> int:
    target: Path = options.set
    if target.is_dir():
        out = options.output or target / f"{options.algorithm.upper()}SUMS"
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
    _say(f"{out}: checksums of {len(named)} files")
    return DONE


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
        print(printable(f"fedface-data: {error}"), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(
            "fedface-data: interrupted; the destination is not there, and the same command goes on",
            file=sys.stderr,
        )
        return 130


if __name__ == "__main__":
    sys.exit(main())
