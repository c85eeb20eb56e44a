# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import asdict

import pytest
from grid import deployed_node, tiny_config

from clients.node import Node, check_agreed, deployed, parties_of, simulated
from clients.policy import SiloPolicy
from fedface_flwr.errors import ConfigError, ProtocolError


@pytest.fixture
def config(tmp_path):
    return tiny_config(tmp_path / "run", "fedface", "data.cache=")


def test_a_simulation_s_parties_are_dealt_out_and_have_no_policy(config, tmp_path):
    assert deployed({"partition-id": 1, "num-partitions": 2}) is None
    nodes = simulated({"partition-id": 1, "num-partitions": 2}, config)
    silos = tmp_path / "run" / "silos"
    cache = tmp_path / "run" / "cache"
    assert nodes == {
        "beta": Node("beta", "trainer", silos / "beta", cache=cache),
        "delta": Node("delta", "validator", silos / "delta", cache=cache),
    }
    assert nodes["beta"].private_dir(config) == silos / "beta" / config.run.token
    assert parties_of({"partition-id": 1, "num-partitions": 2}, config) == nodes


def test_a_deployed_node_is_what_it_was_started_as(config, tmp_path):
    node = deployed(deployed_node(tmp_path, "beta", "trainer", data="/faces/celeba"))
    assert (node.party, node.role, node.silo_dir) == ("beta", "trainer", tmp_path / "beta")
    assert (node.data, node.service, node.policy) == ("/faces/celeba", False, SiloPolicy(min_images=1))
    assert node.cache_dir == tmp_path / "beta" / "cache"
    assert parties_of(deployed_node(tmp_path, "nobody", "validator"), config).keys() == {"nobody"}
    assert deployed({"party": "beta", "role": "trainer", "silo-dir": "/x"}).service


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"role": "spy"}, "role='spy': must be trainer or validator"),
        ({"role": ""}, "role='': must be trainer or validator"),
        ({"party": "../beta"}, "party='../beta': must be a name of letters"),
        ({"party": ""}, "party='': must be a name"),
        ({"party": ".hidden"}, "party='.hidden': must be a name"),
        ({"silo-dir": "beta"}, "silo-dir='beta': must be an absolute path"),
        ({"silo-dir": ""}, "silo-dir='': must be an absolute path"),
    ],
)
def test_a_node_configuration_that_cannot_be_is_refused(tmp_path, change, complaint):
    node = deployed_node(tmp_path, "beta", "trainer") | change
    with pytest.raises(ConfigError, match=rf"^node configuration: {re.escape(complaint)}"):
        deployed(node)


@pytest.mark.parametrize("key", ["role", "silo-dir"])
def test_a_node_configuration_must_be_whole(tmp_path, key):
    node = deployed_node(tmp_path, "beta", "trainer")
    del node[key]
    with pytest.raises(ConfigError, match=f"^node configuration: {key}=''"):
        deployed(node)


def test_the_policy_is_the_owner_s_file(tmp_path):
    home = tmp_path / "beta"
    home.mkdir()
    (home / "policy.toml").write_text("max_candidates = 3\nscore_resolution = 1e-05\nmax_rate = 1\n")
    policy = deployed(deployed_node(tmp_path, "beta", "trainer")).policy
    assert policy == SiloPolicy(max_candidates=3, score_resolution=1e-5, max_rate=1.0)
    (home / "policy.toml").write_text(policy.to_toml())
    assert deployed(deployed_node(tmp_path, "beta", "trainer")).policy == policy


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_candidate = 3", r"policy\.toml: no such key: max_candidate; known are max_candidates, max_tests"),
        ("max_candidates = 0", r"policy\.toml: max_candidates=0: must be a whole number of at least 1"),
        ("max_candidates = 2.5", r"max_candidates=2\.5: must be a whole number"),
        ("max_candidates = true", "max_candidates=True: must be a whole number"),
        ("max_tests = '3'", "max_tests='3': must be a whole number"),
        ("score_resolution = 0.0", r"score_resolution=0\.0: must be a number above 0"),
        ("score_resolution = nan", "score_resolution=nan: must be a number above 0"),
        ("max_rate = inf", "max_rate=inf: must be a number above 0"),
        ("max_candidates =", r"policy\.toml: not a readable TOML file"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_and_never_taken_for_none(tmp_path, text, complaint):
    home = tmp_path / "beta"
    home.mkdir()
    (home / "policy.toml").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        deployed(deployed_node(tmp_path, "beta", "trainer"))


def test_every_bound_has_a_default_and_survives_its_file():
    assert SiloPolicy.read({}, "nowhere") == SiloPolicy()
    assert SiloPolicy.read(asdict(SiloPolicy(min_pairs=7)), "nowhere") == SiloPolicy(min_pairs=7)


def own(role, **bounds):
    return Node(
        {"trainer": "beta", "validator": "delta"}[role], role, None, policy=SiloPolicy(**{"min_images": 1, **bounds})
    )


@pytest.mark.parametrize(
    ("node", "overrides", "complaint"),
    [
        (own("trainer", max_rounds=7), ["training.rounds=8"], "training.rounds=8: above the 7 that beta has agreed to"),
        (own("validator", max_rounds=7), ["training.rounds=8"], "training.rounds=8: above the 7 that delta"),
        (own("trainer", max_rate=0.5), ["optimizer.rate=0.6"], "optimizer.rate=0.6: above the 0.5 that beta"),
        (own("validator"), ["fv.candidates=9"], "fv.candidates=9: above the 8 that delta has agreed to"),
        (own("trainer", min_images=16), [], "a round over 4 images: beta gives no figures over fewer than 16"),
        (own("validator"), ["fv.pairs=99"], "fv.pairs=99: delta gives no score over fewer than 100 pairs"),
    ],
)
def test_a_run_that_asks_for_more_than_was_agreed_is_refused(tmp_path, node, overrides, complaint):
    with pytest.raises(ProtocolError, match=f"^{re.escape(complaint)}"):
        check_agreed(node, tiny_config(tmp_path, "fedface", *overrides))


@pytest.mark.parametrize(
    ("node", "overrides"),
    [
        (own("trainer", max_rounds=8, max_rate=0.5), ["training.rounds=8", "optimizer.rate=0.5"]),
        # What concerns the other role alone.
        (own("trainer"), ["fv.candidates=9", "fv.pairs=10"]),
        (own("validator"), ["optimizer.rate=11"]),
        (own("validator"), ["fv.candidates=8", "fv.pairs=100"]),
        (own("validator"), ["fv.pairs=0"]),
        # In a simulation nobody has agreed to anything.
        (Node("delta", "validator", None), ["fv.candidates=100", "fv.pairs=10"]),
    ],
)
def test_a_run_within_the_bounds_is_taken(tmp_path, node, overrides):
    check_agreed(node, tiny_config(tmp_path, "fedface", *overrides))


@pytest.mark.parametrize("method", ["pfm", "fedface"])
def test_a_validator_s_bounds_hold_whatever_the_method(tmp_path, method):
    """A hostile server can ask for scores in a run of any method."""
    with pytest.raises(ProtocolError, match="fewer than 100 pairs"):
        check_agreed(own("validator"), tiny_config(tmp_path, method, "fv.pairs=10"))


@pytest.mark.parametrize("policy", [None, SiloPolicy()])
def test_a_party_takes_part_only_as_what_it_is(config, policy):
    with pytest.raises(ProtocolError, match=r"^zeta is no party of this run, which has alpha, beta, gamma, delta"):
        check_agreed(Node("zeta", "trainer", None, policy=policy), config)
    with pytest.raises(ProtocolError, match=r"^delta is a trainer, the run wants it as validator"):
        check_agreed(Node("delta", "trainer", None, policy=policy), config)
