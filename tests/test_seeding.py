# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedface_flwr.seeding import derive_seed

names = st.lists(st.one_of(st.text(st.characters(codec="utf-8", min_codepoint=32)), st.integers()), max_size=4)


def test_against_the_definition_written_out() -> None:
    digest = hashlib.sha256(b"3\x1fflip\x1fceleba\x1f12").hexdigest()
    assert derive_seed(3, "flip", "celeba", 12) == int(digest[:16], 16) // 2


def test_the_same_in_another_process() -> None:
    code = "from fedface_flwr.seeding import derive_seed; print(derive_seed(1, 'head', 'lag'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == derive_seed(1, "head", "lag")


@given(st.integers(0, 2**32 - 1), names)
def test_every_generator_takes_the_seed(seed: int, use: list[str | int]) -> None:
    derived = derive_seed(seed, *use)
    assert 0 <= derived < 2**63
    torch.Generator().manual_seed(derived)
    np.random.default_rng(derived)


def test_no_two_uses_share_a_stream() -> None:
    uses = [(use, name, step) for use in ("flip", "sampler") for name in ("a", "b", "ab") for step in range(200)]
    seeds = {derive_seed(seed, *use) for seed in range(5) for use in uses}
    assert len(seeds) == 5 * len(uses)


def test_where_one_name_ends_and_the_next_begins_matters() -> None:
    assert len({derive_seed(1, "ab", "c"), derive_seed(1, "a", "bc"), derive_seed(1, "abc"), derive_seed(1)}) == 4
    assert derive_seed(1, 23) != derive_seed(12, 3) != derive_seed(123)
