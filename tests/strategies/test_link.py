# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import pytest
from flwr.app import Error, Message
from grid import PartyGrid, SilenceError, deployed_node, tiny_config

from clients.adapter import read_reply
from clients.contract import PREPARE, write_request
from fedface_flwr.errors import ProtocolError
from fedface_flwr.training.backbone import build_backbone
from fedface_flwr.training.flat import FlatModel
from strategies.link import UNANSWERED, Link


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path, "fedface")


@pytest.fixture
def layout(config):
    return FlatModel(build_backbone(config.model)).layout


def deployment(config, folder, parties, **roles):
    """Return a grid of SuperNodes that act for these parties, each in its own role unless ``roles`` says another."""
    nodes = [deployed_node(folder, party, roles.get(party, config.roles[party])) for party in parties]
    return PartyGrid(config, node_configs=nodes)


def link_to(grid, config):
    return Link(grid, config.roles, poll=0.002, ttl=60)


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


def test_a_party_without_a_node_is_named(config, tmp_path):
    with deployment(config, tmp_path, ("alpha", "gamma", "delta")) as grid:
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


def test_two_nodes_for_one_party_are_refused(config, tmp_path):
    with deployment(config, tmp_path, ("alpha", "alpha")) as grid:
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
        replies = iter(link.exchange([prepare(link, layout, party) for party in ("alpha", "delta")], 60))
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


def test_more_may_be_sent_while_replies_come(config, layout):
    with PartyGrid(config) as grid:
        link = link_to(grid, config)
        link.discover(60)
        exchange = link.exchange([prepare(link, layout, "alpha")], 60)
        answered = []
        for reply in exchange:
            answered.append(link.party_of(reply))
            if len(answered) < 3:
                exchange.add(prepare(link, layout, ("beta", "gamma")[len(answered) - 1]))
    assert answered == ["alpha", "beta", "gamma"]


@pytest.mark.parametrize(("party", "role"), [("delta", "trainer"), ("alpha", "validator")])
def test_a_node_in_another_role_than_the_run_s_is_refused(config, tmp_path, party, role):
    with deployment(config, tmp_path, config.parties, **{party: role}) as grid:
        complaint = f"says that {party} is a {role}, the run has it as {config.roles[party]}; it stays out"
        with pytest.raises(ProtocolError, match=complaint):
            link_to(grid, config).discover(60)


def test_a_node_that_acts_for_another_party_than_it_is_registered_as_is_refused(config, tmp_path):
    with deployment(config, tmp_path, config.parties) as grid:
        grid.names = {1000 + number: party for number, party in enumerate(config.parties)} | {1003: "epsilon"}
        complaint = "node 1003 is registered as epsilon and says that it acts for delta; it stays out"
        with pytest.raises(ProtocolError, match=complaint):
            link_to(grid, config).discover(60)


def test_registered_names_that_agree_are_taken(config, tmp_path):
    with deployment(config, tmp_path, config.parties) as grid:
        grid.names = {1000 + number: party for number, party in enumerate(config.parties)}
        link_to(grid, config).discover(60)


def test_a_party_that_is_gone_is_known_as_such_at_once_and_found_again_on_another_node(config, layout, tmp_path):
    with deployment(config, tmp_path, config.parties) as grid:
        link = link_to(grid, config)
        link.discover(60)
        beta = grid.disconnect(1001)
        assert link.refresh(60) == []
        (reply,) = link.exchange([prepare(link, layout, "beta")], 60)
        assert link.party_of(reply) == "beta"
        with pytest.raises(ProtocolError, match="it is not connected"):
            read_reply(reply)
        assert grid.connect(beta) == 1005
        assert link.refresh(60) == []
        (reply,) = link.exchange([prepare(link, layout, "beta")], 60)
        assert reply.metadata.reply_to_message_id == grid.messages("query.prepare", "beta")[-1].metadata.message_id
        assert read_reply(reply)[1] == {"samples": 24}


def test_a_bad_node_that_comes_stays_out_and_does_not_keep_out_the_good_one_beside_it(config, layout, tmp_path):
    with deployment(config, tmp_path, config.parties) as grid:
        link = link_to(grid, config)
        link.discover(60)
        beta = grid.disconnect(1001)
        link.refresh(60)
        grid.connect(deployed_node(tmp_path / "other", "alpha", "trainer"))
        grid.connect({"party": "beta", "role": "spy", "silo-dir": str(tmp_path)})
        grid.connect(beta)
        faults = sorted(link.refresh(60))
        assert faults[0].startswith("node 1006 cannot take part: ConfigError")
        assert faults[1:] == ["nodes 1000 and 1005 both act for alpha"]
        (reply,) = link.exchange([prepare(link, layout, "beta")], 60)
        assert read_reply(reply)[1] == {"samples": 24}
        # They are known, and not asked again.
        assert link.refresh(60) == []


def test_a_node_whose_question_was_lost_is_asked_again(config):
    losses = list(UNANSWERED)

    def lose(message, reply):
        return Message(Error(losses.pop(), "gone"), reply_to=message) if losses else reply

    with PartyGrid(config) as grid:
        grid.after[""] = lose
        link_to(grid, config).discover(60)
        assert len(grid.sent) == len(config.parties) + len(UNANSWERED)
    assert losses == []


def test_a_party_that_comes_back_before_its_old_node_has_gone_is_taken_when_that_goes(config, layout, tmp_path):
    with deployment(config, tmp_path, config.parties) as grid:
        link = link_to(grid, config)
        link.discover(60)
        grid.connect(deployed_node(tmp_path, "beta", "trainer"))
        assert link.refresh(60) == ["nodes 1001 and 1005 both act for beta"]
        grid.disconnect(1001)
        assert link.refresh(60) == []
        (reply,) = link.exchange([prepare(link, layout, "beta")], 60)
        assert read_reply(reply)[1] == {"samples": 24}
