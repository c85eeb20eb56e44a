# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import copy
import dataclasses
import json
import math
from functools import lru_cache
from typing import Any

import pytest

from fedface_flwr.compose import compose_config
from fedface_flwr.config import Config, from_container, from_json
from fedface_flwr.errors import ConfigError


@lru_cache
def default() -> Config:
    return compose_config([], {})


def container(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the default configuration as a container, with the values at dotted keys changed."""
    value: dict[str, Any] = json.loads(default().to_json())
    for key, new in changes.items():
        *path, last = key.split(".")
        section = value
        for name in path:
            section = section[name]
        section[last] = new
    return value


def keys(value: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, item in value.items():
        found.append(prefix + name)
        if isinstance(item, dict):
            found += keys(item, f"{prefix}{name}.")
    return found


ALL_KEYS = keys(json.loads(default().to_json()))

OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("seed", -1),
    ("seed", 2**32),
    ("model.depth", 19),
    ("model.width", 0),
    ("model.input_size", 15),
    ("model.embedding", 0),
    ("model.dropout", -0.1),
    ("model.dropout", 1.0),
    ("head.kind", "softmax"),
    ("head.scale", 0.0),
    ("head.margin", -0.1),
    ("head.margin", math.pi),
    ("optimizer.rate", 0.0),
    ("optimizer.milestones", [0.0, 0.5]),
    ("optimizer.milestones", [-0.5, 0.5]),
    ("optimizer.milestones", [0.5, 0.5]),
    ("optimizer.milestones", [0.7, 0.5]),
    ("optimizer.milestones", [0.5, 1.0]),
    ("optimizer.factor", 0.0),
    ("optimizer.factor", 1.1),
    ("optimizer.momentum", -0.1),
    ("optimizer.momentum", 1.0),
    ("optimizer.weight_decay", -1e-4),
    ("training.rounds", 0),
    ("training.steps_per_round", 0),
    ("training.batch_size", 1),
    ("training.flip", -0.1),
    ("training.flip", 1.1),
    ("training.precision", "float64"),
    ("training.loss_smoothing", -0.1),
    ("training.loss_smoothing", 1.0),
    ("data.kind", "mxnet"),
    ("data.silos", []),
    ("data.silos", ["a", "a"]),
    ("data.silos", ["x/a", "y/a"]),
    ("data.silos", [""]),
    ("data.validators", ["x/lfw.bin", "lfw.bin"]),
    ("data.validators", [""]),
    ("data.tests", ["lfw.bin", "lfw.bin"]),
    ("data.tests", [""]),
    ("data.tests", ["elsewhere/delta"]),
    ("data.fold_half", "third"),
    ("data.synthetic.identities", 1),
    ("data.synthetic.images_per_identity", 0),
    ("data.synthetic.pairs", 0),
    ("data.synthetic.pairs", 30),
    ("data.synthetic.pair_identities", 19),
    ("strategy.name", "fedprox"),
    ("strategy.weights", "equal"),
    ("strategy.keep_momentum", True),
    ("strategy.branch_weights", [1.0, 1.0]),
    ("strategy.branch_weights", [1.0, 1.0, 0.0]),
    ("fv.mode", "never"),
    ("fv.every", 0),
    ("fv.candidates", 0),
    ("fv.phi", -0.1),
    ("fv.phi", 1.1),
    ("fv.norm", "batch"),
    ("fv.epsilon", 0.0),
    ("fv.gamma", -0.1),
    ("fv.gamma", 1.1),
    ("fv.pairs", -1),
    ("federation.depth", 0),
    ("federation.actors", -1),
    ("federation.threads", 0),
    ("federation.gpus", -0.5),
    ("federation.start_timeout", 0.0),
    ("federation.round_timeout", 0.0),
    ("federation.round_timeout", 1e9),
    ("federation.round_timeout", float("inf")),
    ("federation.start_timeout", 1e9),
    ("federation.min_trainers", -1),
    ("federation.min_trainers", 4),
    ("federation.poll", 0.0),
    ("federation.lanes", 0),
    ("federation.kind", "cluster"),
    ("federation.max_update_ratio", -1.0),
    ("federation.max_update_ratio", 1.0),
    ("wire.dtype", "float64"),
    ("wire.dtype", "bfloat16"),
    ("run.token", ""),
    ("run.token", "../other"),
    ("run.token", "Upper"),
    ("run.token", "-first"),
    ("run.token", "x" * 65),
]

AT_THE_BORDER: list[tuple[str, Any]] = [
    ("seed", 0),
    ("seed", 2**32 - 1),
    ("model.width", 1),
    ("model.input_size", 16),
    ("model.dropout", 0.0),
    ("head.margin", 0.0),
    ("optimizer.milestones", []),
    ("optimizer.factor", 1.0),
    ("optimizer.momentum", 0.0),
    ("optimizer.weight_decay", 0.0),
    ("training.batch_size", 2),
    ("training.flip", 1.0),
    ("training.loss_smoothing", 0.0),
    ("data.tests", []),
    ("data.synthetic.pairs", 20),
    ("data.synthetic.pair_identities", 20),
    ("fv.phi", 1.0),
    ("fv.gamma", 0.0),
    ("fv.pairs", 0),
    ("federation.min_trainers", 3),
    ("federation.max_update_ratio", 0.0),
    ("federation.max_update_ratio", 1.5),
    ("wire.differences", True),
    ("run.token", "x" * 64),
    ("run.token", "0-a"),
]


@pytest.mark.parametrize(("key", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        from_container(container({key: value}))
    assert str(caught.value).startswith(f"{key}=")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("key", "value"), AT_THE_BORDER)
def test_a_value_at_the_border_is_taken(key: str, value: Any) -> None:
    changed = container({key: value})
    assert json.loads(from_container(changed).to_json()) == changed


@pytest.mark.parametrize("key", ALL_KEYS)
def test_a_missing_key_is_named(key: str) -> None:
    value = container({})
    *path, last = key.split(".")
    section = value
    for name in path:
        section = section[name]
    del section[last]
    with pytest.raises(ConfigError, match=rf"^{key}: missing"):
        from_container(value)


@pytest.mark.parametrize(
    "section", ["", *(k for k in ALL_KEYS if isinstance(container({})[k.split(".")[0]], dict) and "." not in k)]
)
def test_an_unknown_key_is_named_with_the_known_ones(section: str) -> None:
    key = f"{section}.learning_rate" if section else "learning_rate"
    with pytest.raises(ConfigError, match=rf"^{key}: no such key; known here: ") as caught:
        from_container(container({key: 0.1}))
    known = [f.name for f in dataclasses.fields(getattr(default(), section) if section else default())]
    assert all(name in str(caught.value) for name in known)


@pytest.mark.parametrize("key", ALL_KEYS)
@pytest.mark.parametrize("value", [None, {"a": 1}, [{}]], ids=["null", "mapping", "list of mappings"])
def test_a_value_of_the_wrong_type_is_refused_by_its_key(key: str, value: Any) -> None:
    if isinstance(value, dict) and any(k.startswith(f"{key}.") for k in ALL_KEYS):
        value = "text"
    with pytest.raises(ConfigError) as caught:
        from_container(container({key: value}))
    assert str(caught.value).startswith((f"{key}=", f"{key}[0]="))


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("seed", True, "seed"),
        ("seed", 1.0, "seed"),
        ("seed", "1", "seed"),
        ("training.rounds", True, "training.rounds"),
        ("model.depth", 18.0, "model.depth"),
        ("model.depth", "18", "model.depth"),
        ("optimizer.rate", True, "optimizer.rate"),
        ("optimizer.rate", "0.1", "optimizer.rate"),
        ("optimizer.rate", math.nan, "optimizer.rate"),
        ("optimizer.rate", math.inf, "optimizer.rate"),
        ("optimizer.milestones", 0.5, "optimizer.milestones"),
        ("optimizer.milestones", "0.5", "optimizer.milestones"),
        ("optimizer.milestones", [0.5, "0.6"], "optimizer.milestones[1]"),
        ("data.silos", "celeba", "data.silos"),
        ("data.silos", ["celeba", 3], "data.silos[1]"),
        ("data.root", 3, "data.root"),
        ("fv.flip", 1, "fv.flip"),
        ("fv.flip", "false", "fv.flip"),
        ("model", [18], "model"),
    ],
)
def test_types_are_exact_where_python_is_lenient(key: str, value: Any, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_container(container({key: value}))
    assert str(caught.value).startswith(f"{place}=")


def test_an_integer_is_taken_for_a_number_and_becomes_one() -> None:
    config = from_container(
        container({"head.scale": 64, "optimizer.weight_decay": 0, "strategy.branch_weights": [1, 2, 3]})
    )
    assert (config.head.scale, config.optimizer.weight_decay) == (64.0, 0.0)
    assert type(config.head.scale) is float
    assert [type(w) for w in config.strategy.branch_weights] == [float] * 3


@pytest.mark.parametrize("value", [None, [], 3, "text"])
def test_the_whole_must_be_a_mapping(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^config=.*must be a mapping"):
        from_container(value)


def test_json_round_trip() -> None:
    config = from_container(container({"strategy.branch_weights": [0.2, 0.3, 0.5], "run.dir": 'a "quoted" дир'}))
    assert from_json(config.to_json()) == config
    assert from_json(json.dumps(json.loads(config.to_json()), indent=2)) == config


def test_the_digest_tells_what_a_result_depends_on() -> None:
    changes = ({}, {"seed": 5}, {"fv.phi": 0.5}, {"data.silos": ["one"]}, {"wire.differences": True})
    assert len({from_container(container(change)).digest() for change in changes}) == len(changes)
    moved = container({"run.dir": "elsewhere", "data.root": "/mnt/faces", "federation.round_timeout": 7.0})
    assert from_container(moved).digest() == default().digest()


@pytest.mark.parametrize("text", ["", "{", "seed: 1"])
def test_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        from_json(text)


def test_json_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a mapping"):
        from_json("[1, 2]")


def test_a_configuration_is_hashable_and_equal_by_value() -> None:
    again = from_json(default().to_json())
    assert again is not default()
    assert {default(): 1}[again] == 1
    assert from_container(container({"seed": 1})) != default()


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        default().seed = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        default().model.width = 1  # type: ignore[misc]


def test_the_given_container_is_left_as_it_was() -> None:
    value = container({})
    before = copy.deepcopy(value)
    from_container(value)
    assert value == before


@pytest.mark.parametrize("name", ["pfm", "fedface"])
def test_pfm_has_no_local_momentum_to_keep(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^strategy.keep_momentum=True: {name} has one momentum"):
        from_container(container({"strategy.name": name, "strategy.keep_momentum": True}))


@pytest.mark.parametrize(
    ("name", "needs"),
    [("central", False), ("solo", False), ("fedavg", False), ("pfm", False), ("fedavg_fv", True), ("fedface", True)],
)
def test_only_federated_validation_needs_validators(name: str, needs: bool) -> None:
    value = container({"strategy.name": name, "data.validators": []})
    assert from_container(container({"strategy.name": name})).strategy.federated_validation == needs
    if needs:
        with pytest.raises(ConfigError, match=rf"^data.validators=\[\]: strategy {name} needs at least one"):
            from_container(value)
    else:
        assert from_container(value).data.scorers == ()


def test_pooled_data_are_one_party() -> None:
    value = container({"strategy.name": "central", "federation.min_trainers": 2})
    with pytest.raises(ConfigError, match=r"^federation.min_trainers=2: only 1 take part"):
        from_container(value)
    value["federation"]["min_trainers"] = 1
    config = from_container(value)
    assert config.trainers == ("central",)
    assert config.sets_of("central") == ("alpha", "beta", "gamma")
    assert config.parties == ("central", "delta", "epsilon")


def test_parties_are_named_by_their_files_and_trainers_are_sorted() -> None:
    config = from_container(
        container(
            {
                "data.silos": ["sets/lag", "celeba", "fiw.v2"],
                "data.validators": ["packs/lfw.bin"],
                "data.tests": ["packs/lfw.bin", "age_gap.bin"],
            }
        )
    )
    assert config.data.trainers == ("lag", "celeba", "fiw.v2")
    assert config.trainers == ("celeba", "fiw.v2", "lag")
    assert config.sets_of("lag") == ("lag",)
    assert config.data.scorers == ("lfw",)
    assert config.data.testers == ("lfw", "age_gap")
    assert config.data.packs == {"lfw": "packs/lfw.bin", "age_gap": "age_gap.bin"}
    assert config.parties == ("celeba", "fiw.v2", "lag", "lfw", "age_gap")


@pytest.mark.parametrize("key", ["data.validators", "data.tests"])
def test_a_party_cannot_train_and_validate(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^data.silos=\['beta'\]: a party cannot be"):
        from_container(container({key: ["beta.bin"]}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_differences_travel_in_any_wire_type_and_only_where_there_is_one_global_model(dtype: str) -> None:
    for name, shared in (("central", False), ("solo", False), ("fedavg", True), ("pfm", True), ("fedface", True)):
        config = from_container(container({"strategy.name": name, "wire.differences": True, "wire.dtype": dtype}))
        assert config.sends_differences == shared
        assert not from_container(container({"strategy.name": name})).sends_differences


def test_every_party_has_one_role() -> None:
    config = from_container(container({"data.tests": ["age_gap.bin"]}))
    assert config.roles == {
        **dict.fromkeys(("alpha", "beta", "gamma"), "trainer"),
        **dict.fromkeys(("delta", "epsilon", "age_gap"), "validator"),
    }
    assert tuple(config.roles) == config.parties
    pooled = from_container(container({"strategy.name": "central"}))
    assert pooled.roles["central"] == "trainer"
