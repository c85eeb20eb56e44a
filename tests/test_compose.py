# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from fedface_flwr.compose import CONF, compose_config, validate
from fedface_flwr.config import Config
from fedface_flwr.errors import ConfigError

GROUPS = ("strategy", "model", "head", "optimizer", "data", "wire", "federation", "experiment")
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes_and_validates(group: str, choice: str) -> None:
    place = ["superlink=lab"] if choice == "deploy" else []
    config = compose_config([f"{group}={choice}", "data.root=/faces", *place], {})
    assert isinstance(config, Config)
    assert config.data.root == "/faces"


def test_the_six_methods_are_the_strategies_and_each_names_itself() -> None:
    names = [choice for group, choice in CHOICES if group == "strategy"]
    assert names == ["central", "fedavg", "fedavg_fv", "fedface", "pfm", "solo"]
    for name in names:
        assert compose_config([f"strategy={name}"], {}).strategy.name == name


@pytest.mark.parametrize(("model", "depth"), [("ir18", 18), ("ir34", 34), ("ir50", 50)])
def test_full_models_are_the_papers(model: str, depth: int) -> None:
    config = compose_config([f"model={model}"], {}).model
    assert (config.depth, config.width, config.input_size, config.embedding) == (depth, 64, 112, 512)


@pytest.mark.parametrize(("head", "scale", "margin"), [("arcface", 64, 0.5), ("cosface", 64, 0.35)])
def test_full_heads_are_the_papers(head: str, scale: float, margin: float) -> None:
    config = compose_config([f"head={head}"], {}).head
    assert (config.kind, config.scale, config.margin) == (head, scale, margin)


def test_optimizer_and_validation_are_the_papers_where_a_short_run_allows() -> None:
    config = compose_config([], {})
    assert (config.optimizer.rate, config.optimizer.momentum, config.optimizer.weight_decay) == (0.1, 0.9, 5e-4)
    assert (config.fv.candidates, config.fv.epsilon, config.fv.gamma) == (3, 0.001, 0.01)
    assert config.training.flip == 0.5


def test_overrides_reach_the_configuration() -> None:
    config = compose_config(["seed=7", "data.silos=[a,b]", "strategy=fedavg", "fv.mode=sync", "run.dir=here"], {})
    assert (config.seed, config.data.silos, config.fv.mode, config.run.dir) == (7, ("a", "b"), "sync", "here")


def test_changes_win_over_overrides() -> None:
    config = compose_config(["seed=7", "run.dir=here"], {"run.dir": "there", "run.launched": 1.5})
    assert (config.seed, config.run.dir, config.run.launched) == (7, "there", 1.5)


def test_the_default_folder_tells_method_and_seed() -> None:
    assert compose_config(["strategy=pfm", "seed=3"], {}).run.dir.endswith("-pfm-seed3")


def test_real_faces_need_a_root() -> None:
    with pytest.raises(ConfigError, match=r"^data\.root: has no default; give it, as in data\.root=VALUE$"):
        compose_config(["data=faces"], {})
    assert compose_config(["data=faces"], {"data.root": "/faces"}).data.root == "/faces"


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("strategy=fedprox", "fedprox"),
        ("model=resnet", "resnet"),
        ("nonsense.key=1", "nonsense"),
        ("fv.modus=sync", "modus"),
        ("seed=[", "seed=[: not an override"),
        ("seed", "seed: not an override"),
    ],
)
def test_an_override_that_hydra_refuses_is_quoted(override: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config([override], {})
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("training.rounds=0", "training.rounds=0:"),
        ("+fv.extra=1", "fv.extra: no such key"),
        ("~training.flip", "training.flip: missing"),
        ("seed=true", "seed=True:"),
        ("model.depth=20", "model.depth=20:"),
    ],
)
def test_an_override_that_hydra_takes_is_still_validated(override: str, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config([override], {})
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize("override", ["run.dir=${nowhere}", "run.dir=${oc.env:FEDFACE_NO_SUCH_VARIABLE}"])
def test_an_interpolation_that_leads_nowhere_is_one_line(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config([override], {})
    assert "\n" not in str(caught.value)


def test_validate_leaves_what_hydra_composed_as_it_was() -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base=None):
        composed = compose("config", overrides=["run.dir=here"])
    assert validate(composed, {"run.dir": "there"}).run.dir == "there"
    assert composed.run.dir == "here"


def test_a_change_of_a_key_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        compose_config([], {"run.nowhere": 1})


def test_a_deployment_needs_its_superlink_and_sends_differences_in_16_bits() -> None:
    config = compose_config(["federation=deploy", "superlink=lab"], {})
    assert (config.federation.kind, config.federation.superlink) == ("deploy", "lab")
    assert (config.wire.differences, config.wire.dtype) == (True, "bfloat16")
    assert compose_config(["federation=deploy", "superlink=lab", "wire=weights"], {}).wire.dtype == "float32"
    for overrides in (["federation=deploy"], ["superlink=lab"]):
        with pytest.raises(ConfigError, match=r"^superlink='(lab)?': names the SuperLink of federation=deploy"):
            compose_config(overrides, {})


def test_keys_of_the_launch_are_no_part_of_the_run() -> None:
    config = compose_config(["resume=runs/first", "run.dir=here"], {})
    assert "resume" not in {field for field in json.loads(config.to_json()) if field != "run"}
    assert config == compose_config(["run.dir=here"], {})


def test_the_configuration_tree_lies_beside_the_package() -> None:
    assert Path("conf/config.yaml") == (CONF / "config.yaml").relative_to(CONF.parent)
    assert (CONF / "config.yaml").is_file()
