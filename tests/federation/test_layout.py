# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedface_flwr.federation.layout import Entry, Kind, Layout, ModelState

WEIGHT = Entry("linear.weight", (2, 3), Kind.PARAMETER)
BIAS = Entry("linear.bias", (2,), Kind.PARAMETER)
MEAN = Entry("norm.running_mean", (2,), Kind.RUNNING_MEAN)
VARIANCE = Entry("norm.running_var", (2,), Kind.RUNNING_VARIANCE)
COUNTER = Entry("norm.num_batches_tracked", (), Kind.COUNTER)
ALL = (WEIGHT, BIAS, MEAN, VARIANCE, COUNTER)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    entries = [
        Entry(f"{kind}{i}", shape, kind)
        for kinds in ([Kind.PARAMETER], [Kind.RUNNING_MEAN, Kind.RUNNING_VARIANCE], [Kind.COUNTER])
        for i, (shape, kind) in enumerate(draw(st.lists(st.tuples(shapes, st.sampled_from(kinds)), max_size=4)))
    ]
    return Layout(tuple(entries))


def test_lengths_and_places_counted_by_hand() -> None:
    layout = Layout(ALL)
    assert (layout.num_parameters, layout.num_values, layout.num_counters) == (8, 12, 1)
    places = {entry.name: (place.start, place.stop) for entry, place in layout.items()}
    assert places == {
        "linear.weight": (0, 6),
        "linear.bias": (6, 8),
        "norm.running_mean": (8, 10),
        "norm.running_var": (10, 12),
        "norm.num_batches_tracked": (0, 1),
    }


def test_an_empty_shape_is_one_scalar() -> None:
    assert COUNTER.size == 1
    assert Entry("none", (3, 0), Kind.PARAMETER).size == 0


def test_tensors_have_their_shapes_and_values_and_are_views() -> None:
    state = ModelState(np.arange(12, dtype=np.float32), np.array([7]))
    tensors = state.tensors(Layout(ALL))
    assert list(tensors) == [entry.name for entry in ALL]
    np.testing.assert_array_equal(tensors["linear.weight"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(tensors["norm.running_var"], [10, 11])
    assert tensors["norm.num_batches_tracked"].shape == ()
    tensors["linear.bias"][1] = -1
    tensors["norm.num_batches_tracked"][...] = 8
    assert state.values[7] == -1
    assert state.counters[0] == 8


@given(layouts())
def test_places_partition_both_vectors_and_put_parameters_first(layout: Layout) -> None:
    values = [(entry, place) for entry, place in layout.items() if entry.kind is not Kind.COUNTER]
    counters = [(entry, place) for entry, place in layout.items() if entry.kind is Kind.COUNTER]
    for row, length in ((values, layout.num_values), (counters, layout.num_counters)):
        taken = [i for _, place in row for i in range(place.start, place.stop)]
        assert taken == list(range(length))
        assert all(place.stop - place.start == math.prod(entry.shape) for entry, place in row)
    assert all((place.stop <= layout.num_parameters) == (e.kind is Kind.PARAMETER) for e, place in values if e.size)


@given(layouts())
def test_vectors_cut_into_tensors_and_joined_again_are_the_same(layout: Layout) -> None:
    state = ModelState(
        np.arange(layout.num_values, dtype=np.float32), np.arange(layout.num_counters, dtype=np.int64) - 5
    )
    tensors = state.tensors(layout)
    assert {name: t.shape for name, t in tensors.items()} == {e.name: e.shape for e in layout.entries}
    kinds = {e.name: e.kind for e in layout.entries}
    parts = [t.ravel() for name, t in tensors.items() if kinds[name] is not Kind.COUNTER]
    counts = [t.ravel() for name, t in tensors.items() if kinds[name] is Kind.COUNTER]
    np.testing.assert_array_equal(np.concatenate([np.empty(0, np.float32), *parts]), state.values)
    np.testing.assert_array_equal(np.concatenate([np.empty(0, np.int64), *counts]), state.counters)


@pytest.mark.parametrize(
    "entries",
    [(MEAN, WEIGHT), (COUNTER, WEIGHT), (WEIGHT, COUNTER, VARIANCE)],
    ids=["statistic before parameter", "counter before parameter", "counter before statistic"],
)
def test_entries_out_of_order_are_refused(entries: tuple[Entry, ...]) -> None:
    with pytest.raises(ValueError, match="parameters, then running statistics, then counters"):
        Layout(entries)


def test_means_and_variances_may_alternate() -> None:
    other = Entry("norm2.running_mean", (2,), Kind.RUNNING_MEAN)
    assert Layout((WEIGHT, MEAN, VARIANCE, other)).num_values == 12


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="distinct names"):
        Layout((WEIGHT, Entry(WEIGHT.name, (1,), Kind.PARAMETER)))


def test_digest_is_the_same_for_equal_layouts() -> None:
    assert Layout(ALL).digest == Layout(tuple(Entry(e.name, e.shape, e.kind) for e in ALL)).digest


@pytest.mark.parametrize(
    "changed",
    [
        (Entry("linear.other", (2, 3), Kind.PARAMETER), *ALL[1:]),
        (Entry("linear.weight", (3, 2), Kind.PARAMETER), *ALL[1:]),
        (*ALL[:3], Entry("norm.running_var", (2,), Kind.RUNNING_MEAN), COUNTER),
        (BIAS, WEIGHT, *ALL[2:]),
        ALL[:4],
    ],
    ids=["name", "shape", "kind", "order", "number"],
)
def test_digest_tells_layouts_apart(changed: tuple[Entry, ...]) -> None:
    assert Layout(changed).digest != Layout(ALL).digest
