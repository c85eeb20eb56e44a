# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``fedface-data``, a function for each of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from fedface_flwr.data.own_files import ALGORITHMS
from fedface_flwr.dataprep import aligning, pack
from fedface_flwr.dataprep.pictures import QUALITY
from fedface_flwr.dataprep.sources import FORMATS
from fedface_flwr.dataprep.split import KINDS


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``inspect``."""
    parser.add_argument("set", type=Path, help="RecordIO or picture folder, .bin, TFRecord, list or parquet")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="list all broken records and duplicates")
    parser.add_argument("--pixels", action="store_true", help="find duplicates by decoded pixels too")
    _add_source(parser)


def add_convert(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``convert``."""
    parser.add_argument("source", type=Path, help="picture or RecordIO folder, TFRecord, list or parquet")
    parser.add_argument("dest", type=Path, help="folder that is made")
    parser.add_argument("--skip-broken", action="store_true", help="leave broken pictures out, listed in broken.txt")
    _add_encoding(parser)
    _add_source(parser)


def add_pack(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pack``."""
    parser.add_argument("pairs", type=Path, help="CSV with left,right,same; LFW's pairs.txt; or lines '0|1 LEFT RIGHT'")
    parser.add_argument("dest", type=Path, metavar="DEST.bin", help="file that is made")
    parser.add_argument("--images", type=Path, help="folder of the pictures (default: that of PAIRS)")
    parser.add_argument("--format", choices=pack.FORMATS, default="", help="told by the first line if left out")
    parser.add_argument("--extension", default="jpg", help="of LFW's pictures (default jpg)")
    _add_encoding(parser)


def add_split(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``split``."""
    parser.add_argument("set", type=Path, help="any set that convert takes")
    parser.add_argument("dest", type=Path, help="folder that is made, of one set a part")
    parser.add_argument("--parts", type=_whole(2, 256), required=True, metavar="N", help="how many")
    parser.add_argument("--by", choices=KINDS, default="identity", help="what stays whole (default identity)")
    parser.add_argument("--seed", type=_whole(0, 2**63 - 1), default=0, help="of the draw (default 0)")
    parser.add_argument("--name", default="", help="parts are NAME-1, NAME-2, ... (default: the set's name)")
    _add_source(parser)


def add_align(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``align``."""
    parser.add_argument("source", type=Path, help="folder of raw pictures")
    parser.add_argument("points", type=Path, help="lines of name, x1 y1 ... x5 y5 and perhaps a score")
    parser.add_argument("dest", type=Path, help="folder that is made")
    parser.add_argument("--to", choices=aligning.TARGETS, default="folder", help="JPEG tree (default) or RecordIO")
    parser.add_argument("--identities", type=Path, metavar="LIST", help="lines 'name identity'; default: the folders")
    parser.add_argument("--size", type=_whole(8, 4096), default=112, metavar="PIXELS", help="side (default 112)")
    parser.add_argument("--quality", type=_whole(1, 100), default=QUALITY, metavar="Q", help=f"of JPEG ({QUALITY})")
    parser.add_argument("--strict", action="store_true", help="stop at the first broken picture")


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``verify``."""
    parser.add_argument("set", type=Path, help="any set that inspect takes")
    parser.add_argument("--sums", type=Path, metavar="FILE", help="checksum file")
    _add_source(parser)


def add_sums(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``sums``."""
    parser.add_argument("set", type=Path, help="folder or file")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="default SET/SHA256SUMS or SET.sha256")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="sha256", help="default sha256")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def convert_text(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}")
        return number

    convert_text.__name__ = "whole number"
    return convert_text


def _add_source(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("source")
    group.add_argument("--format", choices=FORMATS, default="", help="told by names and content if left out")
    group.add_argument("--root", type=Path, help="folder that a list's pictures or an index's shards are in")
    group.add_argument("--image-field", default="", metavar="NAME", help="parquet column or TFRecord feature: pictures")
    group.add_argument("--label-field", default="", metavar="NAME", help="parquet column or TFRecord feature: labels")


def _add_encoding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=_whole(8, 4096), metavar="PIXELS", help="resize pictures of another side")
    parser.add_argument("--exchange-colours", action="store_true", help="exchange red and blue of every picture")
    parser.add_argument(
        "--quality", type=_whole(1, 100), metavar="Q", help=f"encode all anew as JPEG (what must be: {QUALITY})"
    )
