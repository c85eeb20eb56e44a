# SPDX-License-Identifier: Apache-2.0
"""A server that asks for what silos must not give, against real silos with real data."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faces import RUN, TRAINERS, VALIDATORS, write_faces
from federation import Deployment
from submitted import Submitted, members_of

from fedface_flwr.compose import compose_config
from fedface_flwr.config import Config

HOSTILE = Path(__file__).parent / "hostile"
TRAINER, VALIDATOR = TRAINERS[0], VALIDATORS[0]
AGREED = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_faces(tmp_path_factory.mktemp("faces"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Path]) -> Iterator[Deployment]:
    members = [member for member in members_of(data) if member.name in (TRAINER, VALIDATOR)]
    policy = {"max_candidates": AGREED, "score_resolution": 0.5}
    with Deployment(tmp_path_factory.mktemp("federation"), members, door=False, policy=policy) as up:
        yield up


def config_with(*overrides: str) -> Config:
    names = [f"data.silos=[{TRAINER}]", f"data.validators=[{VALIDATOR}.bin]", f"data.tests=[{VALIDATOR}.bin]"]
    own = {"run.dir": "/nowhere", "run.token": f"t{time.time_ns()}"}
    return compose_config([*RUN, *names, "federation=deploy", "superlink=x", *overrides], own)


def ask(federation: Deployment, folder: Path, config: Config, only: str = "") -> list[dict[str, Any]]:
    out, options = folder / "told.json", folder / "run-config.toml"
    texts = {"config": config.to_json(), "out": str(out), "only": only}
    options.write_text("".join(f"{key} = {json.dumps(text)}\n" for key, text in texts.items()))
    federation.flwr("run", str(HOSTILE), federation.link, "--run-config", str(options))
    federation.wait_for(out.exists, "the hostile run has its answers")
    told = json.loads(out.read_text())
    assert isinstance(told, list)
    return told


@pytest.fixture(scope="module")
def told(federation: Deployment, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ask(federation, tmp_path_factory.mktemp("hostile"), config_with())


def test_nothing_but_an_honest_round_and_the_agreed_scores_is_answered(told: list[dict[str, Any]]) -> None:
    answered = [outcome for outcome in told if "arrays" in outcome]
    candidates = [outcome for outcome in answered if outcome["question"].endswith("of one round")]
    assert len(candidates) == AGREED
    assert [o["question"] for o in answered if o not in candidates] == ["an honest round"]
    for outcome in candidates:
        assert outcome["arrays"] == {}
        assert set(outcome["scalars"]) == {"score", "seconds"}
        assert outcome["scalars"]["score"] % 0.5 == 0
    assert set(answered[-1]["arrays"]) == {"difference", "statistics", "counters"}
    assert len(told) > 45


def test_refusals_tell_nothing_of_paths_files_or_people(
    told: list[dict[str, Any]], federation: Deployment, data: dict[str, Path]
) -> None:
    texts = [outcome["refused"] for outcome in told if "refused" in outcome]
    assert len(texts) > 40
    secrets = [
        str(federation.kits),
        str(data[TRAINER].parent),
        "person-",
        ".png",
        "round-0",
        "Traceback",
        "site-packages",
    ]
    for text in texts:
        assert not [secret for secret in secrets if secret in text], text


def test_the_silos_wrote_down_every_refusal(told: list[dict[str, Any]], federation: Deployment) -> None:
    for party in (TRAINER, VALIDATOR):
        log = federation.kits / party / "state" / "privacy.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        refused = [outcome for outcome in told if outcome["party"] == party and "refused" in outcome]
        assert sum("error" in line for line in lines) == len(refused)
        assert len(lines) == sum(outcome["party"] == party for outcome in told if "unsent" not in outcome)
        assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("fv.pairs=10", "fewer than 100 pairs"),
        ("fv.candidates=5", "above the 4 that"),
        ("optimizer.rate=1000", "above the 10.0 that"),
    ],
)
def test_a_run_that_asks_for_more_than_was_agreed_gets_nothing(
    federation: Deployment, tmp_path: Path, override: str, complaint: str
) -> None:
    question = "honest round" if "rate" in override else "candidate 0"
    (outcome,) = ask(federation, tmp_path, config_with(override), question)
    assert complaint in outcome["refused"]


@pytest.mark.parametrize(
    ("line", "lie", "complaint"),
    [
        ("role=trainer", "role=validator", "node alpha says that alpha is a validator, the run has it as trainer"),
        (f"party={TRAINER}", "party=beta", "is registered as alpha and says that it acts for beta; it stays out"),
    ],
)
def test_a_registered_party_that_declares_itself_another_is_refused(
    federation: Deployment, tmp_path: Path, line: str, lie: str, complaint: str
) -> None:
    script = federation.kits / TRAINER / "start.sh"
    honest = script.read_text()
    federation.stop(TRAINER)
    try:
        script.write_text(honest.replace(f"\n{line}\n", f"\n{lie}\n"))
        assert script.read_text() != honest
        federation.start(TRAINER)
        federation.wait_for(lambda: "is connected to federation" in federation.console(TRAINER), "it has connected")
        names = (f"data.silos=[{TRAINER}]", f"data.validators=[{VALIDATOR}.bin]", f"data.tests=[{VALIDATOR}.bin]")
        with Submitted(federation, tmp_path / "run", *names) as run:
            printed = run.finish(expected=1)
        assert complaint in printed.splitlines()[-1]
    finally:
        federation.stop(TRAINER)
        script.write_text(honest)
        federation.start(TRAINER)
        federation.wait_connected(TRAINER)
