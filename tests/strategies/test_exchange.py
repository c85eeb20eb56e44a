# SPDX-License-Identifier: Apache-2.0
"""Replies that are fetched side by side, each upload at its own pace."""

from __future__ import annotations

import threading
import time

import pytest
from grid import PartyGrid, SilenceError, hurry, make_loop, of_kind, party_of, tiny_config
from test_link import prepare

from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies.exchange import Exchange
from strategies.link import Link

TRAINERS = ("alpha", "beta", "gamma")


class UploadingGrid(PartyGrid):
    """Waits in a pull, as Flower's does, until the replies that it has found are uploaded: one's not before it may."""

    def __init__(self, config, slow="beta"):
        super().__init__(config)
        self.slow = slow
        self.uploaded = threading.Event()
        self.uploading = threading.Event()

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        slow = {m.metadata.message_id for m in self.sent if party_of(m) == self.slow}
        if any(reply.metadata.reply_to_message_id in slow for reply in replies):
            self.uploading.set()
            assert self.uploaded.wait(30)
        return replies


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path, "fedface")


@pytest.fixture
def grid(config):
    with UploadingGrid(config) as grid:
        yield grid
        grid.uploaded.set()


@pytest.fixture
def layout(config):
    return FlatModel(build_backbone(config.model)).layout


def link_to(grid, config, lanes):
    link = Link(grid, config.roles, poll=0.002, ttl=60, lanes=lanes)
    link.discover(60)
    return link


def ask(link, layout, timeout, parties=TRAINERS):
    return link.exchange([prepare(link, layout, party) for party in parties], timeout)


def fetching():
    """Return the threads that fetch replies."""
    return [thread for thread in threading.enumerate() if thread.name == "replies"]


def ended():
    deadline = time.monotonic() + 30
    while fetching():
        assert time.monotonic() < deadline, "threads go on after their exchange"
        time.sleep(0.002)
    return True


def test_an_upload_that_takes_its_time_holds_up_no_other_lane(config, layout, grid):
    link = link_to(grid, config, lanes=3)
    replies = iter(ask(link, layout, 60))
    assert {link.party_of(next(replies)), link.party_of(next(replies))} == {"alpha", "gamma"}
    assert grid.uploading.wait(30)
    grid.uploaded.set()
    assert [link.party_of(reply) for reply in replies] == ["beta"]
    assert ended()


def test_an_upload_that_never_ends_is_waited_for_as_long_as_the_exchange_may_take(config, layout, grid):
    link = link_to(grid, config, lanes=3)
    exchange = ask(link, layout, 3)
    assert {link.party_of(reply) for reply in exchange} == {"alpha", "gamma"}
    grid.uploaded.set()
    # Its late reply reaches no later exchange.
    assert [link.party_of(reply) for reply in ask(link, layout, 60, ("alpha",))] == ["alpha"]
    assert ended()


@pytest.mark.parametrize("lanes", [1, 2, 7])
def test_every_reply_comes_once_however_many_lanes_there_are(config, layout, grid, lanes):
    grid.uploaded.set()
    link = link_to(grid, config, lanes)
    replies = [link.party_of(reply) for reply in ask(link, layout, 60, config.parties)]
    assert sorted(replies) == sorted(config.parties)
    assert ended()


def test_what_goes_wrong_in_a_lane_is_raised_where_replies_are_read(config, layout, grid):
    link = link_to(grid, config, lanes=2)

    def fail(message_ids):
        raise ConnectionResetError("the SuperLink is gone")

    grid.pull_messages = fail
    with pytest.raises(ConnectionResetError, match="the SuperLink is gone"):
        list(ask(link, layout, 60))
    assert ended()


def test_threads_end_with_a_reader_who_stops_early(config, layout, grid):
    grid.uploaded.set()
    link = link_to(grid, config, lanes=3)
    replies = iter(ask(link, layout, 60))
    next(replies)
    replies.close()
    assert ended()


def test_who_says_stop_ends_the_wait_for_what_does_not_come(config, layout, grid):
    def hush(message):
        raise SilenceError

    grid.before["beta"] = hush
    link, stop = link_to(grid, config, lanes=1), threading.Event()
    exchange = Exchange(link, 3600, stop=stop)
    for party in TRAINERS:
        exchange.add(prepare(link, layout, party))
    replies = iter(exchange)
    assert {link.party_of(next(replies)), link.party_of(next(replies))} == {"alpha", "gamma"}
    threading.Timer(0.05, stop.set).start()
    assert list(replies) == []
    assert ended()


def test_a_score_whose_upload_never_ends_holds_up_no_other_validator(tmp_path):
    config = tiny_config(
        tmp_path, "fedface", "training.rounds=1", "data.tests=[]", "federation.lanes=2", "federation.depth=1"
    )

    def on_event(loop, event):
        if event["event"] == "round":
            grid.slow = "delta"
            hurry(loop, 5)

    loop, events = make_loop(config, on_event)
    with UploadingGrid(config, slow="nobody") as grid:
        loop.start(grid)
        grid.uploaded.set()
    assert [set(event["scores"]) for event in of_kind(events, "validation")] == [{"epsilon"}]
    assert [event["message"] for event in of_kind(events, "warning")] == [
        "validation 1 goes on without delta: no score within 5 s"
    ]
    assert ended()
