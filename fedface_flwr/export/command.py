# SPDX-License-Identifier: Apache-2.0
"""``fedface-export``: a model out of the federation, in the formats of others, with a model card."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fedface_flwr.errors import ConfigError, FedFaceError
from fedface_flwr.evaluation.backbones import TorchBackbone
from fedface_flwr.evaluation.stored import KINDS, Stored, open_weights
from fedface_flwr.export.card import Card
from fedface_flwr.export.files import FORMATS, Target, reopen, weights_digests, write_model
from fedface_flwr.export.history import History
from fedface_flwr.export.onnx_file import OPSETS
from fedface_flwr.export.parity import LIMIT, PICTURES, Parity, check, sample
from fedface_flwr.export.results import Measured, read_results, summary_figures, without_repeated
from fedface_flwr.files import replacing, write_text
from fedface_flwr.protocols.steering import noted, steered


def export(options: argparse.Namespace) -> list[str]:
    """Write a model and its card; return what was done, a line for each thing.

    Raises
    ------
    FedFaceError
        If an option cannot work, a file cannot be used, or what was written does not embed as the model does; then
        nothing is left behind.
    """
    out: Path = options.out
    card_path = out.with_name(f"{out.name}.md")
    target = Target.of(out, options.format, options.preprocessing, options.opset)
    for path in (out, card_path):
        if path.exists() and not options.force:
            raise ConfigError(f"{path}: is already there; --force replaces it")
    stored = open_weights(
        options.model,
        kind=options.kind,
        model=options.which,
        input_size=options.input_size,
        colour_order=options.colour_order,
    )
    history = History.read(stored.run) if stored.run else None
    measured = _measured(stored, history, options.results)
    with replacing(out) as temporary:
        write_model(stored, target, temporary)
        parity = _parity(stored, target, temporary, options.pictures)
        digest = _sha256(temporary)
        card = Card(
            name=options.name or out.stem,
            file=out.name,
            sha256=digest,
            stored=stored,
            target=target,
            parity=parity,
            history=history,
            measured=measured,
            licence=options.licence,
        )
    write_text(card_path, card.markdown())
    off = [name for part in measured for name in part.left_out]
    told = [f"not on the card, for feature files may be any model's: {', '.join(off)}"] if off else []
    done = f"written: {out} (SHA-256 {digest}), {card_path}"
    return [f"{stored.title}: {stored.description}", str(parity), *told, done]


def _measured(stored: Stored, history: History | None, results: Sequence[Path]) -> tuple[Measured, ...]:
    """Return the figures of the run, and those of evaluations of the model or of an export of it."""
    own = [summary_figures(history.summary, stored.silo)] if history else []
    weights = weights_digests(stored) if results else ()
    read = [_told(read_results(path, weights), stored.run) for path in results]
    return without_repeated([*own, *read])


def _told(part: Measured, run: Path | None) -> Measured:
    """Note which packs steered the model: who evaluated an export of it could not know."""
    notes = steered(run, part.packs) if run else {}
    return replace(part, figures=tuple(noted(figure, notes) for figure in part.figures))


def _parity(stored: Stored, target: Target, path: Path, pictures: Path | None) -> Parity:
    reference = TorchBackbone(stored, device=torch.device("cpu"), precision="float32", batch_size=PICTURES)
    faces = sample(pictures, stored.network.architecture.input_size)
    return check(reference, partial(reopen, stored, target, path), faces)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedface-export",
        usage="%(prog)s [option ...] MODEL OUT",
        description="Write a model in another format, with a model card beside it. What was written is read again and "
        f"must embed as the model does: no value may differ by more than {LIMIT}.",
    )
    add = parser.add_argument
    # Not required here: argparse would say that they are missing of every line with an unknown option.
    add(
        "model",
        metavar="MODEL",
        type=Path,
        nargs="?",
        help="run folder, .safetensors checkpoint, or insightface's or TFace's state dict",
    )
    add("out", metavar="OUT", type=Path, nargs="?", help="file to write; the card is OUT.md")
    add("--format", choices=FORMATS, help="by default told by OUT's ending: .onnx or .safetensors")
    add(
        "--preprocessing", choices=("inside", "outside"), default="inside", help="ONNX: who normalises (default inside)"
    )
    add(
        "--opset", type=int, default=OPSETS.start, help=f"ONNX: {OPSETS.start} to {OPSETS[-1]} (default {OPSETS.start})"
    )
    add("--pictures", type=Path, help="faces to check with: .bin pack, RecordIO folder or folder of identities")
    add(
        "--results",
        type=Path,
        action="append",
        default=[],
        help="results.json of fedface-eval, for the card; repeatable",
    )
    add("--licence", default="", help="terms of the weights, for the card")
    add("--name", default="", help="the model's name, for the card (default OUT without its ending)")
    add(
        "--kind",
        choices=[kind for kind in KINDS if kind != "onnx"],
        default="auto",
        help="what MODEL is (default auto)",
    )
    add("--which", default="", help="which of a run's models, where there are several")
    add("--input-size", type=int, help="side of the input in pixels, where MODEL leaves it open")
    add(
        "--colour-order",
        choices=("RGB", "BGR"),
        default="RGB",
        help="in which a public MODEL was trained (default RGB)",
    )
    add("--force", action="store_true", help="replace OUT and its card")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the ``fedface-export`` command."""
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    if options.out is None:
        parser.error(f"{'OUT is' if options.model else 'MODEL and OUT are'} missing")
    try:
        for line in export(options):
            print(line)
    except (FedFaceError, OSError) as error:
        print(f"fedface-export: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print("fedface-export: interrupted; nothing was written", file=sys.stderr, flush=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
