# SPDX-License-Identifier: Apache-2.0
import io
import math
from pathlib import Path

import numpy as np
import pytest
from ijb_folder import Small, write_small
from PIL import Image
from sklearn.metrics import roc_curve

from fedface_flwr.data.alignment import align
from fedface_flwr.errors import ConfigError, DataError
from fedface_flwr.evaluation.figures import Figure, Outcome
from fedface_flwr.evaluation.pictures import Embedded, Pictures
from fedface_flwr.protocols.ijb import from_options

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
NAMES = [f"N{n}D{d}F{f}" for n in "10" for d in "10" for f in "10"]


def pooled(small: Small, flags: str) -> dict[int, np.ndarray]:
    """Template features, template by template and media by media, as the field's scripts loop."""
    plain, mirrored = np.split(small.features.astype(np.float64), 2, axis=1)
    vectors = plain + mirrored if flags[5] == "1" else plain
    if flags[1] == "0":
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    if flags[3] == "1":
        vectors = vectors * small.detector[:, None]
    result = {}
    for template in np.unique(small.template):
        own = small.template == template
        means = [vectors[own & (small.media == media)].mean(axis=0) for media in np.unique(small.media[own])]
        total = np.sum(means, axis=0)
        result[int(template)] = total / np.linalg.norm(total)
    return result


def value(outcome: Outcome, metric: str, **conditions: str) -> float:
    wanted = {key.replace("_", " "): text for key, text in conditions.items()}
    found = [f for f in outcome.figures if f.metric == metric and wanted.items() <= f.conditions.items()]
    assert len(found) == 1, (metric, conditions, [f.full_name for f in found])
    return found[0].value


def run(small: Small, **options: object) -> Outcome:
    root = small.meta.parent
    chosen = {"protocol": "C", "meta": "meta", "features": "features.npy", **options}
    return from_options("c", chosen, root).run(None)


def test_verification_by_all_flags_and_rules(tmp_path: Path) -> None:
    small = write_small(tmp_path)
    outcome = run(small)
    labels = np.array([same for _, _, same in small.pairs])
    for flags in NAMES:
        features = pooled(small, flags)
        scores = np.array([features[a] @ features[b] for a, b, _ in small.pairs])
        far, tar, _ = roc_curve(labels, scores)
        all_far, all_tar, _ = roc_curve(labels, scores, drop_intermediate=False)
        for target in FARS[:2]:
            metric, down = f"TAR at FAR {target:.0e}", far[::-1]
            nearest = tar[::-1][min(range(len(down)), key=lambda i: (abs(down[i] - target), i))]
            assert value(outcome, metric, **{"N/D/F": flags}, FAR_rule="nearest") == nearest
            assert value(outcome, metric, **{"N/D/F": flags}, FAR_rule="at most") == all_tar[all_far <= target][-1]
            assert value(outcome, metric, **{"N/D/F": flags}, FAR_rule="interpolated") == pytest.approx(
                np.interp(target, all_far, all_tar), abs=1e-12
            )
    assert len({figure.full_name for figure in outcome.figures}) == len(outcome.figures) == 8 * 6 * 3
    assert outcome.figures[0].full_name.startswith("c: TAR at FAR 1e-01 (IJB-C 1:1, N/D/F N1D1F1, FAR rule nearest")
    assert [curve.label for curve in outcome.curves] == NAMES


def test_a_far_that_the_pairs_cannot_show_is_not_told(tmp_path: Path) -> None:
    outcome = run(write_small(tmp_path), flags="N1D1F1", far_rules=["at most"])
    by_far = {figure.metric: figure for figure in outcome.figures}
    assert math.isnan(by_far["TAR at FAR 1e-06"].value)
    assert "not decided" in by_far["TAR at FAR 1e-06"].note
    assert "uncertain" in by_far["TAR at FAR 1e-02"].note


def slow_ranks(features: dict[int, np.ndarray], small: Small, gallery: list[int]) -> list[tuple[int, float, float]]:
    """For each probe: rank of its mate (0 without one), the mate's score, the best other score."""
    found = []
    for probe in sorted(small.probes):
        scores = {t: float(features[t] @ features[probe]) for t in gallery}
        mate = [s for t, s in scores.items() if small.subject[t] == small.subject[probe]]
        others = [s for t, s in scores.items() if small.subject[t] != small.subject[probe]]
        rank = 1 + sum(s >= mate[0] for s in others) if mate else 0
        found.append((rank, mate[0] if mate else -math.inf, max(others)))
    return found


def slow_tpir(found: list[tuple[int, float, float]], target: float) -> float:
    """Share of mated probes found at rank 1 above the lowest threshold that so many strangers' searches stay below."""
    alarms = [other for rank, _, other in found if rank == 0]
    mated = [(rank, mate) for rank, mate, _ in found if rank]
    for threshold in sorted(alarms):
        if sum(alarm > threshold for alarm in alarms) / len(alarms) <= target:
            return sum(rank == 1 and mate > threshold for rank, mate in mated) / len(mated)
    raise AssertionError


def test_identification_in_each_gallery_their_mean_and_merged(tmp_path: Path) -> None:
    # 204 probes, of which 102 have no mate in a gallery: enough for an FPIR of 0.01.
    small = write_small(tmp_path, subjects=68, noise=1.5)
    outcome = run(small, tasks=["1:N"], flags=["N1D1F1", "N0D0F0"])
    curves = [(curve.kind, curve.label) for curve in outcome.curves if curve.label.startswith("N1D1F1")]
    names = ("G1", "G2", "merged")
    assert sorted(curves) == [("cmc", f"N1D1F1, {n}") for n in names] + [("tpir", f"N1D1F1, {n}") for n in names[:2]]
    for curve in outcome.curves:
        if curve.kind == "tpir":
            flags, gallery = curve.label.split(", ")
            searches = slow_ranks(pooled(small, flags), small, small.galleries[gallery])
            assert (curve.x[0], curve.x[1]) == (0, 1 / 102)
            for fpir, tpir in zip(curve.x[::20], curve.y[::20], strict=True):
                assert tpir == slow_tpir(searches, fpir)
    assert len({figure.full_name for figure in outcome.figures}) == len(outcome.figures) == 2 * 4 * 5
    for flags in ("N1D1F1", "N0D0F0"):
        features = pooled(small, flags)
        found = {name: slow_ranks(features, small, gallery) for name, gallery in small.galleries.items()}
        both = found["merged"] = slow_ranks(features, small, small.galleries["G1"] + small.galleries["G2"])
        values: dict[str, list[float]] = {}
        for name, searches in found.items():
            ranks = [rank for rank, _, _ in searches if rank]
            for rank in (1, 5, 10):
                expected = sum(r <= rank for r in ranks) / len(ranks)
                values.setdefault(f"rank {rank}", []).append(expected)
                assert value(outcome, f"rank {rank}", **{"N/D/F": flags}, gallery=name) == expected
            for target in (0.1, 0.01) if name != "merged" else ():
                metric, expected = f"TPIR at FPIR {target:g}", slow_tpir(searches, target)
                values.setdefault(metric, []).append(expected)
                told = {"N/D/F": flags, "gallery": name, "FPIR of": "non-mated searches"}
                assert value(outcome, metric, **told) == expected
        for metric, (first, second, *_) in values.items():
            told = {"N/D/F": flags, "gallery": "mean of G1 and G2"}
            assert value(outcome, metric, **told) == pytest.approx((first + second) / 2, abs=1e-15)
        gallery = small.galleries["G1"] + small.galleries["G2"]
        strangers = sorted(
            (
                float(features[t] @ features[p])
                for p in small.probes
                for t in gallery
                if small.subject[t] != small.subject[p]
            ),
            reverse=True,
        )
        for target in (0.1, 0.01):
            threshold = strangers[math.ceil(len(small.probes) * target) - 1]
            expected = sum(mate > threshold for _, mate, _ in both) / len(both)
            told = {"N/D/F": flags, "gallery": "merged", "FPIR of": "pairs of strangers, pooled"}
            assert value(outcome, f"TPIR at FPIR {target:g}", **told) == expected


def test_a_fpir_that_the_searches_cannot_show_is_not_told(tmp_path: Path) -> None:
    """18 of 36 probes have no mate in a gallery: at 0.1 one may pass, at 0.01 none; of all probes 3 and none."""
    outcome = run(write_small(tmp_path), tasks=["1:N"], flags="N1D1F1")
    by_name = {(figure.metric[-4:].strip(), figure.conditions["gallery"]): figure for figure in outcome.figures}
    for gallery in ("G1", "G2"):
        assert math.isnan(by_name["0.01", gallery].value)
        assert by_name["0.01", gallery].note == "not decided: 18 non-mated searches cannot show an FPIR of 1e-02"
        assert by_name["0.1", gallery].note == "uncertain: it rests on the 1 nearest of 18 non-mated searches"
        assert by_name["0.1", gallery].value >= 0
    mean = by_name["0.01", "mean of G1 and G2"]
    assert math.isnan(mean.value)
    assert mean.note.startswith("G1: not decided: 18 non-mated searches")
    assert by_name["0.01", "merged"].note == "not decided: 36 probes cannot show an FPIR of 1e-02"
    assert by_name["0.1", "merged"].note == "uncertain: it rests on the 3 nearest of 36 probes"


def test_a_task_that_cannot_be_run_leaves_the_others_figures(tmp_path: Path) -> None:
    small = write_small(tmp_path)
    probes = small.meta / "ijbc_1N_probe_mixed.csv"
    probes.write_text(probes.read_text().splitlines()[0] + "\n")
    outcome = run(small, tasks=["1:1", "1:N"], flags="N1D1F1")
    alone = run(small, flags="N1D1F1")
    np.testing.assert_array_equal([f.value for f in outcome.figures], [f.value for f in alone.figures])
    assert list(outcome.failures) == ["1:N"]
    assert "ijbc_1N_probe_mixed.csv" in outcome.failures["1:N"]
    with pytest.raises(DataError, match=r"ijbc_1N_probe_mixed\.csv"):
        run(small, tasks=["1:N"], flags="N1D1F1")


class ColourEmbedder:
    """Embeds a face by the mean colours of its quarters, of a picture and of its mirror image."""

    def __init__(self) -> None:
        self.recipes: list[bytes] = []

    def __call__(self, pictures: Pictures, *, flip: bool, what: str) -> Embedded:
        faces = []
        for index in range(len(pictures)):
            data, where = pictures.read(index)
            self.recipes.append(pictures.recipe(index))
            faces.append(pictures.pixels(data, index, 112, where))
        images = np.stack(faces)
        return Embedded(self._colours(images), self._colours(images[..., ::-1]) if flip else None)

    def _colours(self, images: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), 3, 2, 56, 2, 56).mean(axis=(3, 5)).reshape(len(images), 12).astype("f4") + 1


def write_crops(small: Small) -> list[np.ndarray]:
    folder = small.meta.parent / "loose_crop"
    folder.mkdir()
    rng = np.random.default_rng(9)
    crops = [rng.integers(0, 256, (90, 70, 3), dtype=np.uint8) for _ in small.template]
    for face, crop in enumerate(crops, start=1):
        Image.fromarray(crop).save(folder / f"{face}.png")
    return crops


def test_loose_crops_are_aligned_and_embedded(tmp_path: Path) -> None:
    small = write_small(tmp_path)
    crops = write_crops(small)
    options = {"protocol": "C", "meta": "meta", "images": "loose_crop", "flags": ["N1D1F1", "N0D0F0"]}
    embed = ColourEmbedder()
    outcome = from_options("c", options, tmp_path).run(embed)
    assert len(set(embed.recipes)) == len(crops)

    aligned = np.stack([align(crop, five, 112) for crop, five in zip(crops, small.points, strict=True)])
    colours = [ColourEmbedder()._colours(images) for images in (aligned, aligned[..., ::-1])]
    np.save(tmp_path / "features.npy", np.hstack(colours))
    expected = run(small, flags=["N1D1F1", "N0D0F0"])
    assert [(f.full_name, f.value) for f in expected.figures if f.value == f.value] == [
        (f.full_name, f.value) for f in outcome.figures if f.value == f.value
    ]


def test_a_damaged_crop_is_named(tmp_path: Path) -> None:
    small = write_small(tmp_path)
    write_crops(small)
    (tmp_path / "loose_crop" / "3.png").write_bytes(b"\x89PNG")
    options = {"protocol": "C", "meta": "meta", "images": "loose_crop"}
    with pytest.raises(DataError, match=r"3\.png"):
        from_options("c", options, tmp_path).run(ColourEmbedder())
    with pytest.raises(ConfigError, match="need a model"):
        from_options("c", options, tmp_path).run(None)


def test_a_plain_matrix_has_no_flip(tmp_path: Path) -> None:
    small = write_small(tmp_path)
    both = run(small)
    np.save(tmp_path / "plain.npy", small.features[:, :8])
    plain = run(small, features="plain.npy", layout="plain")
    without: list[Figure] = [figure for figure in both.figures if figure.conditions["N/D/F"].endswith("F0")]
    assert [figure.full_name for figure in plain.figures] == [figure.full_name for figure in without]
    np.testing.assert_array_equal([f.value for f in plain.figures], [f.value for f in without])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"protocol": "D"}, "protocol='D': must be one of B, C"),
        ({"meta": "absent"}, "absent is no folder"),
        ({"features": "absent.npy"}, "absent.npy is no file"),
        ({"images": "meta"}, "and not both"),
        ({"features": None}, "and not both"),
        ({"protocol": "B"}, "there is no .*ijbb_face_tid_mid.txt"),
        ({"flags": ["N1D1"]}, "must list some of N1D1F1"),
        ({"layout": "plain", "flags": ["N1D1F1"]}, "must list some of N1D1F0"),
        ({"tasks": ["1:2"]}, "must list some of 1:1, 1:N"),
        ({"far_rules": "exact"}, "must list some of nearest"),
        ({"colour": "BGR"}, "no such option: colour"),
    ],
)
def test_wrong_options_name_benchmark_and_key(tmp_path: Path, options: dict[str, object], why: str) -> None:
    write_small(tmp_path)
    chosen = {"protocol": "C", "meta": "meta", "features": "features.npy", **options}
    with pytest.raises(ConfigError, match=f"^c: .*{why}"):
        from_options("c", chosen, tmp_path)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a .npy file"),
        (b"no matrix at all", "not a .npy file"),
        (npy(np.ones((3, 4)))[:-1], "not a .npy file"),
        (npy(np.ones((3, 4))).replace(b"(3, 4)", b"(1 << 40, 4)"), "not a .npy file"),
        (npy(np.ones((3, 4))).replace(b"(3, 4), }      ", b"(9999999, 4), }"), "not a .npy file"),
        (npy(np.ones((3, 4))).replace(b"'<f8'", b"'|O8'"), "not a .npy file"),
        (npy(np.ones((3, 5))), "5 columns cannot be"),
        (npy(np.ones(8)), "float64 of shape"),
        (npy(np.ones((3, 4), dtype=np.int64)), "int64 of shape"),
        (npy(np.ones((0, 4))), "shape"),
    ],
)
def test_files_that_are_no_matrix_are_refused_when_opened(tmp_path: Path, content: bytes, why: str) -> None:
    write_small(tmp_path)
    (tmp_path / "features.npy").write_bytes(content)
    with pytest.raises(DataError, match=f"^c: .*features.npy: .*{why}"):
        from_options("c", {"protocol": "C", "meta": "meta", "features": "features.npy"}, tmp_path)


def test_an_archive_or_a_matrix_of_other_faces_is_refused(tmp_path: Path) -> None:
    small = write_small(tmp_path)
    np.savez(tmp_path / "features.npz", small.features)
    with pytest.raises(DataError, match="an archive of arrays"):
        run(small, features="features.npz")
    np.save(tmp_path / "features.npy", small.features[1:])
    with pytest.raises(DataError, match=f"{len(small.template) - 1} rows, but {len(small.template)} faces listed"):
        run(small)
