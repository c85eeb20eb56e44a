# SPDX-License-Identifier: Apache-2.0
"""An inspection as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedface_flwr.dataprep.inspecting import Duplicates, Inspection
from fedface_flwr.wording import numbered

_BAR = 40
_SHOWN = 5


def inspection_lines(name: str, seen: Inspection, *, everything: bool = False) -> Iterator[str]:
    """Yield the lines; ``everything`` lists all broken records and duplicates instead of the first few."""
    shown = None if everything else _SHOWN
    yield f"{name}: {seen.kind}"
    yield f"  images      {seen.images:,} ({seen.bytes / 2**20:,.1f} MiB encoded)"
    if seen.pairs:
        pairs = seen.pairs
        yield f"  pairs       {pairs['matching']:,} matching, {pairs['differing']:,} differing"
        if pairs["identical"]:
            one = pairs["identical"] == 1
            yield f"  identical   {pairs['identical']:,} {'pair shows' if one else 'pairs show'} one picture twice"
    else:
        yield f"  identities  {seen.identities:,}"
        yield from _per_identity(seen.per_identity)
    yield f"  formats     {_counts(seen.formats)}; pixels {_counts(seen.modes)}"
    yield f"  sizes       {_counts(seen.sizes)}"
    if seen.not_square:
        yield f"  not square  {seen.not_square:,}"
    colour = seen.colour
    yield (
        f"  colours     {colour.order} ({colour.sureness}: red above blue in {colour.redder} of {colour.coloured} "
        f"coloured faces, {colour.looked_at} looked at)"
    )
    yield from _duplicates("equal bytes", seen.duplicates, shown)
    if seen.pixel_duplicates is not None:
        yield from _duplicates("equal pixels", seen.pixel_duplicates, shown)
    yield f"  broken      {len(seen.broken):,}"
    yield from _first(seen.broken, shown)
    yield f"  faults      {len(seen.faults):,}"
    yield from _first(seen.faults, shown)


def _per_identity(counts: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"  of each     min {counts['min']}, median {counts['median']:g}, mean {counts['mean']:.1f}, "
        f"max {counts['max']} images"
    )
    histogram: Mapping[str, int] = counts["histogram"]
    most = max(histogram.values())
    for images, identities in histogram.items():
        yield f"  {images:>11} {'#' * -(-identities * _BAR // most)} {identities:,}"


def _counts(counts: Mapping[str, int]) -> str:
    listed = [f"{name} {count:,}" for name, count in list(counts.items())[:_SHOWN]]
    more = len(counts) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "") or "none"


def _duplicates(what: str, found: Duplicates, shown: int | None) -> Iterator[str]:
    yield f"  duplicates  {found.extra:,} by {what}, in {numbered(len(found.groups), 'group')}"
    yield from _first([" = ".join(group) for group in found.groups if group], shown)
    if found.across:
        is_one = len(found.across) == 1
        yield f"  across      {len(found.across):,} of the groups {'is' if is_one else 'are'} under several identities"
        yield from _first([" = ".join(group) for group in found.across], shown)


def _first(texts: list[str], shown: int | None) -> Iterator[str]:
    for text in texts[:shown]:
        yield f"    {text}"
    if shown is not None and len(texts) > shown:
        yield f"    and {len(texts) - shown:,} more (--all lists them)"
