# SPDX-License-Identifier: Apache-2.0
"""No damaged file crashes, hangs, takes memory without bound, runs anything, or is refused without its name."""

from __future__ import annotations

import pytest
from fuzz_target import Fuzzer
from fuzz_targets import FAULTY, TARGETS

SEED = 0


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused_by_name(fuzzer: Fuzzer, name: str) -> None:
    count = TARGETS[name].mutants
    found = fuzzer(name, SEED, 0, count)
    told = "\n".join(
        f"{text}\n  again: tests/fuzz/fuzz_worker.py {name} {SEED} {number} 1" for number, text in found["faults"]
    )
    assert not found["faults"], f"{len(found['faults'])} faults\n{told[:4000]}"
    assert found["read"] + found["refused"] == count
    # Damage that is always refused, or never, would say little about the reader.
    assert found["refused"] > count // 50
    assert found["read"] > 0


def test_ten_thousand_mutants_are_tried() -> None:
    assert sum(target.mutants for target in TARGETS.values()) >= 10_000


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("crash", "KeyError"),
        ("warning", "RuntimeWarning: odd"),
        ("hang", "Hang: not read within 0.2 s"),
        ("memory", "MemoryError"),
        ("swallowed", "took all memory"),
        ("nameless", "names no file: something is wrong"),
        ("executes", "Executed: os.system"),
        ("segfault", "ended by status"),
    ],
)
def test_the_fuzzer_finds_every_kind_of_fault(fuzzer: Fuzzer, fault: str, told: str) -> None:
    faults = fuzzer(f"faulty-{fault}", SEED, 0, FAULTY[f"faulty-{fault}"].mutants)["faults"]
    assert faults
    assert all(told in text for _, text in faults)
