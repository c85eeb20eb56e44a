# SPDX-License-Identifier: Apache-2.0
"""The frame of every HTML report: one self-contained page, light and dark, for screen and print."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

_STYLE = """
:root { color-scheme: light dark; --ink: #20262d; --soft: #5b6672; --ground: #ffffff; --line: #d8dee4;
  --panel: #f5f7f9; --bar: #0072B2; --good: #1a7f37; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e8ee; --soft: #9aa7b4; --ground: #14181d;
  --line: #333c46; --panel: #1c2229; --bar: #56B4E9; --good: #57c46f; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 62rem; background: var(--ground);
  color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .6rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
.lead { font-size: 1.15rem; margin: 0; max-width: 48rem; }
.facts, figcaption, .note { color: var(--soft); font-size: .88rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .4rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: .88rem; padding-bottom: .5rem; }
th, td { padding: .4rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { font-size: .88rem; vertical-align: bottom; white-space: normal; border-bottom-width: 2px; }
tr > :first-child { text-align: left; padding-left: 0; }
thead tr.groups > th { text-align: center; border-bottom-width: 1px; }
tbody th { font-weight: 600; }
tr.good td, tr.good th { color: var(--good); } tr.bad td, tr.bad th { color: var(--bad); }
.bar { display: inline-block; height: .7em; background: var(--bar); border-radius: 2px; min-width: 1px;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.bars td:last-child { width: 40%; text-align: left; }
figure { margin: 1rem 0 1.6rem; } figure svg { width: 100%; height: auto; display: block; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 1rem;
  overflow-x: auto; font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
summary { cursor: pointer; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; } }
"""

_PAGE = Template(
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
$body
</main>
</body>
</html>
"""
)


def page(title: str, body: Sequence[str]) -> str:
    """Return a whole page; `title` is plain text, `body` HTML blocks."""
    return _PAGE.substitute(title=escape(title), style=_STYLE, body="\n".join(body))


def section(title: str, *blocks: str) -> str:
    """Return a section under a heading; `title` is plain text, `blocks` HTML."""
    return "\n".join(["<section>", f"<h2>{escape(title)}</h2>", *blocks, "</section>"])


def paragraph(text: str, kind: str = "note") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>'


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    groups: Sequence[tuple[str, int]] = (),
) -> str:
    """Return a table of plain texts.

    Parameters
    ----------
    head
        One text a column.
    rows
        One text a column; the first names the row.
    caption
        What the table shows and how it was measured.
    groups
        Texts above the head and the number of columns that each spans.
    """
    parts = ['<div class="scroll"><table>']
    if caption:
        parts.append(f"<caption>{escape(caption)}</caption>")
    parts.append("<thead>")
    if groups:
        spans = "".join(f'<th scope="colgroup" colspan="{span}">{escape(text)}</th>' for text, span in groups)
        parts.append(f'<tr class="groups">{spans}</tr>')
    parts.append("<tr>" + "".join(f'<th scope="col">{escape(text)}</th>' for text in head) + "</tr></thead><tbody>")
    for name, *cells in rows:
        columns = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        parts.append(f'<tr><th scope="row">{escape(name)}</th>{columns}</tr>')
    parts.append("</tbody></table></div>")
    return "\n".join(parts)


def picture(svg: str, caption: str) -> str:
    """Return a figure; `svg` is an SVG element, `caption` plain text."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
