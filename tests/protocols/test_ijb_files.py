# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

import numpy as np
import pytest
from ijb_folder import Small, write_small

from fedface_flwr.errors import DataError
from fedface_flwr.protocols.ijb_files import read_faces, read_gallery, read_pairs


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return write_small(tmp_path)


def ids(small: Small) -> np.ndarray:
    return np.unique(small.template)


def edit(small: Small, file: str, line: int, change) -> None:
    """Change a line, counted from 1; None takes it away."""
    path = small.meta / f"ijbc_{file}"
    lines = path.read_text().splitlines()
    changed = change(lines[line - 1])
    lines[line - 1 : line] = [] if changed is None else [changed]
    path.write_text("\n".join(lines) + "\n")


def test_faces_come_as_written(small: Small) -> None:
    listed = read_faces(small.meta, "C")
    assert listed.names[:2] == ["1.png", "2.png"]
    np.testing.assert_array_equal(listed.faces.template, small.template)
    np.testing.assert_array_equal(listed.faces.media, small.media)
    np.testing.assert_allclose(listed.faces.detector, small.detector, rtol=0, atol=1e-15)
    np.testing.assert_allclose(listed.points, small.points, rtol=0, atol=1e-12)


def test_pairs_come_by_kind(small: Small) -> None:
    templates = ids(small)
    for label, kind in zip((1, 0), read_pairs(small.meta, "C", templates), strict=True):
        couples = list(zip(templates[kind.first].tolist(), templates[kind.second].tolist(), strict=True))
        assert sorted(couples) == sorted((a, b) for a, b, same in small.pairs if same == label)


def test_galleries_list_each_template_once(small: Small) -> None:
    for name, members in {**small.galleries, "probe_mixed": small.probes}.items():
        gallery = read_gallery(small.meta, "C", name, ids(small))
        assert gallery.templates.tolist() == sorted(members)
        assert gallery.subjects.tolist() == [small.subject[template] for template in sorted(members)]


@pytest.mark.parametrize(
    ("file", "change", "why"),
    [
        ("face_tid_mid.txt", lambda line: line + " 1", "Row #3: Expected 3 columns, got 4"),
        ("face_tid_mid.txt", lambda line: line.rsplit(" ", 1)[0], "Row #3: Expected 3 columns, got 2"),
        ("face_tid_mid.txt", lambda line: "3.png x 1", "Row #3"),
        ("face_tid_mid.txt", lambda line: "3.png  1", "Row #3"),
        ("face_tid_mid.txt", lambda line: "3.png 1 99999999999999999999", "Row #3"),
        ("face_tid_mid.txt", lambda line: "other.png 100 1", "line 3 is of 3.png, but .*tid_mid.txt has other.png"),
        ("face_tid_mid.txt", lambda line: None, r"lists \d+ faces, but .*face_tid_mid.txt lists \d+"),
        ("name_5pts_score.txt", lambda line: line.rsplit(" ", 1)[0], "Row #3: Expected 12 columns, got 11"),
        ("name_5pts_score.txt", lambda line: line.rsplit(" ", 1)[0] + " nan", "line 3: a point or the score is not"),
        ("name_5pts_score.txt", lambda line: line.replace(" 4", " inf", 1), "Row #3|line 3: a point or"),
        ("name_5pts_score.txt", lambda line: '"' + line, 'line 3 is of "3.png, but'),
    ],
)
def test_damaged_lists_of_faces_name_file_and_line(small: Small, file: str, change, why: str) -> None:
    edit(small, file, 3, change)
    with pytest.raises(DataError, match=f"^{re.escape(str(small.meta))}/ijbc_.*txt: .*{why}"):
        read_faces(small.meta, "C")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda line: line[:-1] + "2", "line 3: the label is 2, neither 0 nor 1"),
        (lambda line: line[:-1] + "-1", "line 3: the label is -1"),
        (lambda line: line[:-1] + "1.0", "Row #3"),
        (lambda line: "99 " + line.split(" ", 1)[1], "line 3: template 99 has no face"),
        (lambda line: "100 100000 0", "line 3: template 100000 has no face"),
        (lambda line: "-5 100 0", "line 3: template -5 has no face"),
        (lambda line: "100 101", "Row #3: Expected 3 columns, got 2"),
    ],
)
def test_damaged_pairs_name_file_and_line(small: Small, change, why: str) -> None:
    edit(small, "template_pair_label.txt", 3, change)
    with pytest.raises(DataError, match=f"ijbc_template_pair_label.txt: .*{why}"):
        read_pairs(small.meta, "C", ids(small))


def test_pairs_of_one_kind_verify_nothing(small: Small) -> None:
    path = small.meta / "ijbc_template_pair_label.txt"
    path.write_text("".join(f"{a} {b} 0\n" for a, b, _ in small.pairs))
    with pytest.raises(DataError, match=r"0 of \d+ pairs genuine: nothing can be verified"):
        read_pairs(small.meta, "C", ids(small))


@pytest.mark.parametrize(
    ("line", "change", "why"),
    [
        (1, lambda line: None, "line 1 is a record, where the names"),
        (3, lambda line: "99" + line[3:], "record 2: template 99 has no face"),
        (3, lambda line: line[:4] + "1" + line[5:], "is of subject"),
        (3, lambda line: "x" + line, "Row #3|conversion error"),
        (3, lambda line: "101", "Row #3|Expected 5 columns"),
    ],
)
def test_damaged_galleries_name_file_and_record(small: Small, line: int, change, why: str) -> None:
    edit(small, "1N_gallery_G1.csv", line, change)
    with pytest.raises(DataError, match=f"ijbc_1N_gallery_G1.csv: .*({why})"):
        read_gallery(small.meta, "C", "G1", ids(small))


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00 1 1\n", b"a" * 3_000_000, b"\0" * 100])
def test_files_that_are_no_tables_are_data_errors(small: Small, content: bytes) -> None:
    for name in ("face_tid_mid.txt", "template_pair_label.txt", "1N_gallery_G2.csv"):
        (small.meta / f"ijbc_{name}").write_bytes(content)
    with pytest.raises(DataError):
        read_faces(small.meta, "C")
    with pytest.raises(DataError):
        read_pairs(small.meta, "C", ids(small))
    with pytest.raises(DataError):
        read_gallery(small.meta, "C", "G2", ids(small))


@pytest.mark.parametrize("name", ["/etc/3.png", "../3.png", "a/../../3.png", "3.p\0ng"])
def test_pictures_outside_their_folder_are_refused(small: Small, name: str) -> None:
    for file in ("face_tid_mid.txt", "name_5pts_score.txt"):
        edit(small, file, 3, lambda line: line.replace("3.png", name, 1))
    with pytest.raises(DataError, match=r"line 3: .* is no path within"):
        read_faces(small.meta, "C")


def test_an_absent_file_is_a_data_error(small: Small) -> None:
    (small.meta / "ijbc_name_5pts_score.txt").unlink()
    with pytest.raises(DataError, match=r"ijbc_name_5pts_score\.txt: "):
        read_faces(small.meta, "C")
