# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest
from grid import PartyGrid, SilenceError, tiny_config

from clients.adapter import read_reply
from clients.contract import PREPARE, write_request
from fedface_flwr.errors import ProtocolError
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies.link import Link


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path, "fedface")


@pytest.fixture
def layout(config):
    return FlatModel(build_backbone(config.model)).layout


def link_to(grid, config):
    return Link(grid, config.parties, poll=0.002, ttl=60)


def prepare(link, layout, party):
    return link.message(party, f"query.{PREPARE}", {}, write_request(party, "first", layout), PREPARE)


@pytest.mark.parametrize("nodes", [1, 2, 5, 7])
def test_every_party_is_reached_however_the_nodes_share_them(config, layout, nodes):
    with PartyGrid(config, nodes) as grid:
        link = link_to(grid, config)
        link.discover(60)
        replies = list(link.exchange([prepare(link, layout, party) for party in config.parties], 60))
        samples = {link.party_of(reply): read_reply(reply)[1]["samples"] for reply in replies}
    assert samples == {"alpha": 24, "beta": 24, "gamma": 24, "delta": 20, "epsilon": 20}


def test_a_party_without_a_node_is_named(config):
    with PartyGrid(config, node_configs=[{"party": party} for party in ("alpha", "gamma", "delta")]) as grid:
        complaint = r"no node acts for (alpha, )?beta, (gamma, )?(delta, )?epsilon after 0\.5 s; start it"
        with pytest.raises(ProtocolError, match=complaint):
            link_to(grid, config).discover(0.5)


def test_a_node_that_comes_later_is_found(config):
    class LateGrid(PartyGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            return list(self.contexts)[: self.looks]

    with LateGrid(config) as grid:
        link_to(grid, config).discover(60)
        assert grid.looks == 5
        assert len(grid.sent) == 5


def test_two_nodes_for_one_party_are_refused(config):
    with PartyGrid(config, node_configs=[{"party": "alpha"}, {"party": "alpha"}]) as grid:
        link = link_to(grid, config)
        with pytest.raises(ProtocolError, match=r"nodes 100[01] and 100[01] both act for alpha"):
            link.discover(60)


def test_a_node_that_cannot_even_say_who_it_is_ends_the_search(config):
    with PartyGrid(config) as grid:
        grid.contexts[1002].run_config = {"config": "{", "overrides": ""}
        with pytest.raises(ProtocolError, match="node 1002 cannot take part: the run's configuration is not JSON"):
            link_to(grid, config).discover(60)


def test_replies_come_as_they_arrive_and_silence_ends_at_the_timeout(config, layout):
    fast = threading.Event()

    def wait(message):
        assert fast.wait(30)

    def stay_silent(message):
        raise SilenceError

    with PartyGrid(config) as grid:
        link = link_to(grid, config)
        link.discover(60)
        grid.before |= {"alpha": wait, "beta": stay_silent}
        replies = link.exchange([prepare(link, layout, party) for party in ("alpha", "delta")], 60)
        assert link.party_of(next(replies)) == "delta"
        fast.set()
        assert [link.party_of(reply) for reply in replies] == ["alpha"]
        assert list(link.exchange([prepare(link, layout, "beta")], 0.2)) == []


def test_a_message_that_is_not_taken_is_answered_by_an_error_of_that_party(config, layout):
    with PartyGrid(config) as grid:
        link = link_to(grid, config)
        link.discover(60)
        grid.refused = {"beta"}
        replies = list(link.exchange([prepare(link, layout, party) for party in ("beta", "alpha")], 60))
    assert [link.party_of(reply) for reply in replies] == ["beta", "alpha"]
    with pytest.raises(ProtocolError, match="the SuperLink refused"):
        read_reply(replies[0])
