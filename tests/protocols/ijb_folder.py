# SPDX-License-Identifier: Apache-2.0
"""A small IJB-C in its public files, for tests."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Small:
    meta: Path
    template: np.ndarray
    media: np.ndarray
    detector: np.ndarray
    points: np.ndarray
    features: np.ndarray  # plain and mirrored, side by side
    pairs: list[tuple[int, int, int]]
    subject: dict[int, int]
    galleries: dict[str, list[int]]
    probes: list[int]


def write_small(folder: Path, seed: int = 0, subjects: int = 12, dim: int = 8, noise: float = 1.0) -> Small:
    """Subjects 0, 1 .. alternate between the galleries; each has one gallery template and three probes."""
    rng = np.random.default_rng(seed)
    meta = folder / "meta"
    meta.mkdir(parents=True)
    ids = rng.permutation(np.arange(100, 100 + 4 * subjects)).tolist()
    subject = {template: 7000 + place % subjects for place, template in enumerate(ids)}
    galleries = {"G1": ids[0:subjects:2], "G2": ids[1:subjects:2]}
    probes = ids[subjects:]
    template = np.repeat(ids, rng.integers(1, 6, len(ids)))
    count = len(template)
    media, detector = rng.integers(1, 4, count), rng.uniform(0.3, 1, count).round(4)
    points = (rng.uniform(0, 5, (count, 5, 2)) + 40).round(3)
    centres = rng.normal(size=(subjects, dim))
    plain = centres[[subject[int(t)] - 7000 for t in template]] * detector[:, None] + rng.normal(0, noise, (count, dim))
    features = np.hstack([plain, plain + rng.normal(0, 0.3, plain.shape)]).astype(np.float32)

    names = [f"{face}.png" for face in range(1, count + 1)]
    lines = [f"{n} {t} {m}" for n, t, m in zip(names, template, media, strict=True)]
    (meta / "ijbc_face_tid_mid.txt").write_text("\n".join(lines) + "\n")
    lines = [
        " ".join([name, *(f"{x:.3f}" for x in five.ravel()), f"{score:.4f}"])
        for name, five, score in zip(names, points, detector, strict=True)
    ]
    (meta / "ijbc_name_5pts_score.txt").write_text("\n".join(lines) + "\n")
    couples = [(a, b) for a in galleries["G1"] + galleries["G2"] for b in probes if rng.random() < 0.7]
    pairs = [(a, b, int(subject[a] == subject[b])) for a, b in couples]
    (meta / "ijbc_template_pair_label.txt").write_text("".join(f"{a} {b} {same}\n" for a, b, same in pairs))
    for name, members in {**{f"gallery_{g}": m for g, m in galleries.items()}, "probe_mixed": probes}.items():
        records = [f'{t},{subject[t]},img/{t}.jpg,"a, b",{k}' for t in members for k in range(2)]
        (meta / f"ijbc_1N_{name}.csv").write_text(
            "\n".join(["TEMPLATE_ID,SUBJECT_ID,FILENAME,NOTE,SIGHTING_ID", *records]) + "\n"
        )
    np.save(folder / "features.npy", features)
    return Small(meta, template, media, detector, points, features, pairs, subject, galleries, probes)
