# SPDX-License-Identifier: Apache-2.0
"""``fedface-eval``: a model on a suite of benchmarks, as one table and a folder of results."""

from __future__ import annotations

import argparse
import platform
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from fedface_flwr.errors import ConfigError, DataError, FedFaceError
from fedface_flwr.evaluation.backbones import TorchBackbone, open_backbone
from fedface_flwr.evaluation.embedder import BATCH_SIZE, CachingEmbedder, default_cache
from fedface_flwr.evaluation.onnx_backbone import OnnxBackbone
from fedface_flwr.protocols.protocol import Benchmark
from fedface_flwr.protocols.runner import Evaluation, evaluate
from fedface_flwr.protocols.steering import Packs, known_packs, steered
from fedface_flwr.protocols.suite import Suite, open_benchmarks, read_suite
from fedface_flwr.reporting.evaluation import Header, check_folder, results_table
from fedface_flwr.reporting.evaluation_html import write_evaluation
from fedface_flwr.reporting.terminal import open_console

_NO_MODEL = "-"
_MODELS = (".safetensors", ".onnx", ".pth", ".pt")

Opened = TorchBackbone | OnnxBackbone


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedface-eval",
        usage="%(prog)s [option ...] [MODEL] SUITE.yaml",
        description="Evaluate a face-recognition model on the benchmarks of a suite.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="a run's folder, a .safetensors checkpoint, an .onnx file, or a state dict of insightface or TFace; "
        "- or nothing if every benchmark brings feature files",
    )
    parser.add_argument("suite", metavar="SUITE.yaml", nargs="?", help="what to evaluate on, see docs/evaluation.md")
    parser.add_argument("-o", "--out", type=Path, help="folder of the results (default: evaluation-SUITE here)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="benchmarks of the suite to run")
    parser.add_argument("--force", action="store_true", help="replace results of another model or suite in the folder")
    embedding = parser.add_argument_group("embedding")
    embedding.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    embedding.add_argument("--precision", default="float32", choices=("float32", "bfloat16", "float16"))
    embedding.add_argument("--batch-size", type=int, default=BATCH_SIZE, metavar="N", help=f"default {BATCH_SIZE}")
    kept = embedding.add_mutually_exclusive_group()
    kept.add_argument("--cache", type=Path, metavar="DIR", help=f"folder of embeddings (default {default_cache()})")
    kept.add_argument("--no-cache", action="store_true", help="keep no embeddings after this evaluation")
    weights = parser.add_argument_group("what a model's file does not say")
    weights.add_argument("--kind", default="auto", help="kind of the model's file (default: told by its content)")
    weights.add_argument("--which", default="", metavar="NAME", help="which model of a run that has several")
    weights.add_argument("--input-size", type=int, metavar="N", help="side of its input where the file leaves it open")
    weights.add_argument("--colour-order", default="RGB", choices=("RGB", "BGR"), help="that a foreign model takes")
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, and end it with status 2 if it cannot be meant.

    That SUITE.yaml is missing is found here: argparse would say so of every line with an unknown option.
    """
    parser = _parser()
    arguments = parser.parse_intermixed_args(argv)
    if arguments.suite is None:
        # One alone is the suite, unless it is plainly a model.
        only = arguments.model
        if only is None or Path(only).is_dir() or Path(only).suffix in _MODELS:
            parser.error(f"SUITE.yaml is missing: {parser.prog} {only or '[MODEL]'} SUITE.yaml")
        arguments.model, arguments.suite = _NO_MODEL, only
    if arguments.batch_size < 1:
        parser.error(f"--batch-size {arguments.batch_size}: must be at least 1")
    arguments.suite = Path(arguments.suite)
    return arguments


def run(arguments: argparse.Namespace, console: Console) -> Evaluation:
    """Evaluate, print the table and write the results' folder.

    Raises
    ------
    FedFaceError
        If the suite, the model or the folder cannot be used.
    """
    suite = read_suite(arguments.suite)
    benchmarks = open_benchmarks(suite, arguments.only)
    backbone = _backbone(arguments, benchmarks)
    if backbone is None and arguments.model != _NO_MODEL:
        _say(console, f"{arguments.model}: not used, for every benchmark brings feature files")
    packs = {benchmark.name: known_packs(benchmark.packs) for benchmark in benchmarks if benchmark.packs}
    notes = {} if backbone is None else _notes(backbone, packs, console)
    header = _header(suite, backbone, benchmarks, packs, arguments.only)
    folder = (arguments.out or Path(f"evaluation-{suite.path.stem}")).absolute()
    if not arguments.force:
        check_folder(folder, header)
    with _cache(arguments) as cache:
        embed = None if backbone is None else CachingEmbedder(backbone, cache, arguments.batch_size)
        # Before all the work, not after it.
        folder.mkdir(parents=True, exist_ok=True)
        found = evaluate(benchmarks, embed, partial(_say, console), notes)
    console.print(results_table(found.figures, expand=console.is_terminal))
    report = write_evaluation(folder, header, found.figures, found.curves, found.failures, found.seconds)
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    return found


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def _backbone(arguments: argparse.Namespace, benchmarks: Sequence[Benchmark]) -> Opened | None:
    """Open the model, if a benchmark embeds anything by it."""
    needing = [benchmark.name for benchmark in benchmarks if not benchmark.feature_files]
    if not needing:
        return None
    if arguments.model == _NO_MODEL:
        raise ConfigError(f"{', '.join(needing)}: pictures need a model to embed them; give MODEL, or others by --only")
    return open_backbone(
        Path(arguments.model),
        device=arguments.device,
        precision=arguments.precision,
        batch_size=arguments.batch_size,
        kind=arguments.kind,
        model=arguments.which,
        input_size=arguments.input_size,
        colour_order=arguments.colour_order,
    )


def _notes(backbone: Opened, packs: Mapping[str, Packs], console: Console) -> dict[str, str]:
    """Tell which benchmarks steered the model, as far as its run's folder says."""
    if backbone.run is None:
        return {}
    try:
        return steered(backbone.run, packs)
    except DataError as error:
        _say(console, f"whether a benchmark's pack steered the averaging weights is not known: {error}")
        return {}


def _header(
    suite: Suite,
    backbone: Opened | None,
    benchmarks: Sequence[Benchmark],
    packs: Mapping[str, Packs],
    only: Sequence[str],
) -> Header:
    return Header(
        model="" if backbone is None else backbone.title,
        model_digest="" if backbone is None else backbone.digest,
        suite=suite.path.name,
        suite_digest=suite.digest,
        only=tuple(entry.name for entry in suite.entries if entry.name in only),
        versions={
            "fedface-flwr": version("fedface-flwr"),
            "Python": platform.python_version(),
            "torch": version("torch"),
            "numpy": version("numpy"),
        },
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        model_weights="" if backbone is None else backbone.weights,
        sources={benchmark.name: benchmark.feature_files or "model" for benchmark in benchmarks},
        packs=packs,
    )


@contextmanager
def _cache(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yield the folder of embeddings; without a cache one that lasts as long as the evaluation."""
    if not arguments.no_cache:
        yield (arguments.cache or default_cache()).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="fedface-embeddings-") as folder:
        yield Path(folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry of the ``fedface-eval`` command."""
    arguments = _parse(argv)
    # So that what is to be removed at the end is removed when the process is told to end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        failures = run(arguments, open_console()).failures
    except (FedFaceError, OSError) as error:
        print(f"fedface-eval: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print("fedface-eval: interrupted; what has been embedded is kept in the cache", file=sys.stderr, flush=True)
        sys.exit(130)
    if failures:
        print(f"fedface-eval: {', '.join(failures)} could not be run, see above", file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
