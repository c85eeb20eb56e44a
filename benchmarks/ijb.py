# SPDX-License-Identifier: Apache-2.0
"""How many times faster than the field's script for one combination of flags all eight of IJB 1:1 are.

Synthetic features and lists of IJB-C's size and form: 3,531 gallery and 19,593 probe templates of 469,375 faces, and
15,658,489 pairs of a gallery with a probe template, of which 19,557 are genuine.

The yardstick is an own, plain writing of what the public scripts do (insightface's ``eval_ijbc.py``) for N1D1F1: a
search of all faces for each template and of the template's faces for each media, scores of 100,000 gathered pairs at a
time, scikit-learn's ``roc_curve``, and a scan of the whole curve for each rate. ``--script`` takes the functions of a
copy of that script instead, of which nothing else is run. Both start from arrays in memory. Memory is the process's
highest resident set (VmHWM) after ours, less the feature matrix.
"""

from __future__ import annotations

import argparse
import ast
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import auc, roc_curve
from sklearn.preprocessing import normalize

from fedface_flwr.evaluation.figures import Figure
from fedface_flwr.evaluation.templates import ALL_FLAGS, Faces, TemplatePairs, template_features
from fedface_flwr.protocols.ijb_verification import FAR_RULES, verify_templates

GALLERY, TEMPLATES, FACES, PAIRS, GENUINE = 3531, 23124, 469_375, 15_658_489, 19_557
FARS = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]

Ints = npt.NDArray[np.int64]
Pooling = Callable[..., tuple[npt.NDArray[np.float64], Ints]]
Scoring = Callable[..., npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Synthetic:
    """Features, plain and mirrored side by side, and lists."""

    features: npt.NDArray[np.float32]
    faces: Faces
    first: Ints
    second: Ints
    label: Ints


def synthetic(scale: float, dim: int) -> Synthetic:
    """Subjects of one gallery template each; probes of random subjects; sharper faces have longer features."""
    rng = np.random.default_rng(0)
    gallery, templates, faces, pairs = (int(n * scale) for n in (GALLERY, TEMPLATES, FACES, PAIRS * scale))
    genuine = min(int(GENUINE * scale), templates - gallery)
    sizes = 1 + rng.multinomial(faces - templates, rng.dirichlet(np.full(templates, 0.6)))
    template, media = np.repeat(np.arange(templates), sizes), np.cumsum(rng.random(faces) < 0.45)
    detector = np.clip(rng.beta(8, 1, faces), 0.05, 1)
    subject = np.concatenate([np.arange(gallery), rng.integers(0, gallery, templates - gallery)])
    centres = rng.standard_normal((gallery, dim), dtype=np.float32)
    features = np.empty((faces, 2 * dim), np.float32)
    for start in range(0, faces, 20_000):
        part = slice(start, start + 20_000)
        sharp = detector[part, None].astype(np.float32)
        plain = 0.6 * sharp * centres[subject[template[part]]]
        plain += 1.6 * rng.standard_normal(plain.shape, dtype=np.float32)
        features[part, :dim] = plain
        features[part, dim:] = plain + 0.5 * rng.standard_normal(plain.shape, dtype=np.float32)
    mates = np.arange(gallery, gallery + genuine)
    first, second = rng.integers(0, gallery, pairs - genuine), rng.integers(gallery, templates, pairs - genuine)
    first += subject[second] == first
    first[first == gallery] = 0
    label = np.zeros(pairs, dtype=np.int64)
    label[:genuine] = 1
    first, second = np.concatenate([subject[mates], first]), np.concatenate([mates, second])
    return Synthetic(features, Faces(template, media, detector), first, second, label)


def all_flags(data: Synthetic) -> dict[str, float]:
    """Return every figure of all eight combinations, by name."""
    dim = data.features.shape[1] // 2
    _, pooled = template_features(data.features[:, :dim], data.features[:, dim:], data.faces, ALL_FLAGS)
    same = data.label == 1
    pairs = tuple(TemplatePairs.of(data.first[kind], data.second[kind]) for kind in (same, ~same))
    figures: tuple[Figure, ...] = verify_templates("c", "IJB-C", pooled, (pairs[0], pairs[1]), FAR_RULES).figures
    return {figure.full_name: figure.value for figure in figures}


def pool_plainly(vectors: Any, templates: Any, medias: Any) -> tuple[npt.NDArray[np.float64], Ints]:
    unique = np.unique(templates)
    pooled = np.zeros((len(unique), vectors.shape[1]))
    for row, template in enumerate(unique):
        (own,) = np.where(templates == template)
        means = [vectors[own[medias[own] == media]].mean(axis=0) for media in np.unique(medias[own])]
        pooled[row] = np.sum(means, axis=0)
    return normalize(pooled), unique


def score_plainly(pooled: Any, unique: Any, first: Any, second: Any) -> npt.NDArray[np.float64]:
    row = np.zeros(unique.max() + 1, dtype=int)
    row[unique] = np.arange(len(unique))
    scores = np.zeros(len(first))
    for start in range(0, len(first), 100_000):
        part = slice(start, start + 100_000)
        scores[part] = np.sum(pooled[row[first[part]]] * pooled[row[second[part]]], axis=-1)
    return scores


def one_combination(data: Synthetic, pool: Pooling, score: Scoring) -> list[str]:
    """Return what the public script prints for N1D1F1: TAR at each FAR, in percent."""
    dim = data.features.shape[1] // 2
    vectors = data.features[:, :dim] + data.features[:, dim:]
    vectors = vectors * data.faces.detector.astype(np.float32)[:, None]
    pooled, unique = pool(vectors, data.faces.template, data.faces.media)
    far, tar, _ = roc_curve(data.label, score(pooled, unique, data.first, data.second))
    auc(far, tar)
    far, tar = np.flipud(far), np.flipud(tar)
    return [f"{100 * tar[min(zip(abs(far - target), range(len(far)), strict=True))[1]]:.2f}" for target in FARS]


def functions_of(script: Path) -> tuple[Pooling, Scoring]:
    """Take the two functions of a copy of the public script, without running the rest of it."""
    tree = ast.parse(script.read_text())
    names = ("image2template_feature", "verification")
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    import sklearn.preprocessing

    scope: dict[str, Any] = {"np": np, "sklearn": sklearn, "normalize": normalize, "print": lambda *_: None}
    exec(compile(ast.Module(wanted, []), str(script), "exec"), scope)
    return scope[names[0]], scope[names[1]]


def highest_memory() -> int:
    """Return VmHWM in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def timed(what: str, work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    print(f"  {what}: {seconds:.1f} s", flush=True)
    return seconds, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of faces and templates")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=2, help="turns of ours, the quickest of which counts")
    parser.add_argument("--script", type=Path, help="a copy of insightface's eval_ijbc.py to compare with")
    arguments = parser.parse_args()
    pool, score = functions_of(arguments.script) if arguments.script else (pool_plainly, score_plainly)

    data = synthetic(arguments.scale, arguments.dim)
    print(f"{len(data.features)} faces, {len(data.first)} pairs, {arguments.dim} dimensions", flush=True)
    turns = [timed("ours, 8 combinations", lambda: all_flags(data)) for _ in range(arguments.repeats)]
    above = highest_memory() - data.features.nbytes
    usual, printed = timed("the usual script, 1 combination", lambda: one_combination(data, pool, score))
    figures = turns[0][1]
    names = [f"c: TAR at FAR {target:.0e} (IJB-C 1:1, N/D/F N1D1F1, FAR rule nearest)" for target in FARS]
    ours = [f"{100 * figures[name]:.2f}" for name in names]
    print(f"  TAR at FAR {FARS}: ours {ours}, theirs {printed}")
    print(f"  usual / ours: {usual / min(seconds for seconds, _ in turns):.1f}")
    print(f"  memory above the feature matrix: {above / 2**30:.2f} GiB")
    if any(our != their for our, their in zip(ours, printed, strict=True) if our != "nan"):
        raise SystemExit("the figures differ")


if __name__ == "__main__":
    main()
