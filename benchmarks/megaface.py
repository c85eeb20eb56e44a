# SPDX-License-Identifier: Apache-2.0
"""How near MegaFace with a million distractors comes to the machine's own matrix product, and in how much memory.

3,530 made-up probes of 80 persons, one in thirty of them noise, against made-up distractors, all of 512 dimensions. The
yardstick is the faster of NumPy's and torch's float32 product of the same matrices, in blocks of the same size into one
buffer and on the same threads; they take turns in one process. Ours gives the ranks of all 152,358 searches for four
sets of distractors, the CMC, and TAR at FAR 1e-4 to 1e-6, raw and refined in both ways, in one pass.

    python benchmarks/megaface.py [--distractors 1000000] [--repeats 3] [--hopeless]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from timing import in_turns, ratio

from fedface_flwr.evaluation.megaface import Distractors, evaluate
from fedface_flwr.evaluation.megaface_probes import Probes
from fedface_flwr.evaluation.megaface_thresholds import Floats

DIM, FACES, PERSONS = 512, 3530, 80
BLOCK = 8192


def unit(rows: Floats) -> Floats:
    norms: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= norms
    return rows


def made_up_probes(hopeless: bool) -> Probes:
    """Faces of a person with cosines from 0.05 to 0.65, or, of a hopeless network, with nothing in common."""
    generator = np.random.default_rng(0)
    identities = np.sort(np.arange(FACES) % PERSONS)
    features = unit(generator.standard_normal((FACES, DIM), np.float32))
    noisy = np.arange(FACES) % 30 == 0
    if not hopeless:
        centres = unit(generator.standard_normal((PERSONS, DIM), np.float32))
        likeness = generator.uniform(0.25, 1.4, (FACES, 1)).astype(np.float32)
        features += np.where(noisy[:, None], 0, likeness * centres[identities]).astype(np.float32)
    return Probes(unit(features), identities, noisy)


def made_up_distractors(count: int) -> Distractors:
    generator = np.random.default_rng(1)
    features = np.empty((count, DIM), np.float32)
    for start in range(0, count, BLOCK):
        part = features[start : start + BLOCK]
        part[:] = unit(generator.standard_normal(part.shape, np.float32))
    sets = {str(size): size for size in (1000, 10_000, 100_000) if size < count} | {str(count): count}
    return Distractors(features, sets, np.arange(count) % 1400 == 0)


def products(probes: Floats, strangers: Floats) -> dict[str, Callable[[], object]]:
    """Return NumPy's and torch's whole product, block by block."""
    buffer = np.empty(len(probes) * BLOCK, np.float32)

    def blocks() -> list[tuple[Floats, Floats]]:
        parts = [strangers[start : start + BLOCK] for start in range(0, len(strangers), BLOCK)]
        return [(part, buffer[: len(probes) * len(part)].reshape(len(probes), -1)) for part in parts]

    def numpy_product() -> None:
        for part, out in blocks():
            np.matmul(probes, part.T, out=out)

    def torch_product() -> None:
        for part, out in blocks():
            torch.mm(torch.from_numpy(probes), torch.from_numpy(part).T, out=torch.from_numpy(out))

    return {"numpy": numpy_product, "torch": torch_product}


def peak_above(work: Callable[[], object]) -> float:
    """Return the GiB that the process's resident memory grows to above what it is now."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 2**20


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distractors", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hopeless", action="store_true", help="probes of one person have nothing in common")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    probes, distractors = made_up_probes(options.hopeless), made_up_distractors(options.distractors)

    peak = peak_above(lambda: evaluate(probes, distractors))
    for found in evaluate(probes, distractors):
        rates = " ".join(f"{100 * point.tar:.2f}" for point in found.verification)
        print(f"  {found.distractors:>8} {found.noise.value:24} rank 1 {100 * found.cmc[0]:6.2f}, TAR {rates}")
    cases = products(probes.features, distractors.features) | {"ours": lambda: evaluate(probes, distractors)}
    times = in_turns(cases, options.repeats)
    fastest = np.minimum(times["numpy"], times["torch"]).tolist()
    print(f"{options.distractors} distractors, {options.repeats} turns: median ratio [middle half]")
    print(f"  speed of the faster product / ours (wanted: at least 0.7): {ratio(fastest, times['ours'])}")
    print(f"  NumPy's product / torch's: {ratio(times['numpy'], times['torch'])}")
    print(f"  peak memory above features (wanted: at most 2 GiB): {peak:.2f} GiB")


if __name__ == "__main__":
    main()
