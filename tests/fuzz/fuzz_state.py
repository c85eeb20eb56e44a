# SPDX-License-Identifier: Apache-2.0
"""Targets: what servers and silos keep between rounds, what owners write, and what a run leaves in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fuzz_models import safetensors_header
from fuzz_mutation import odd_values
from fuzz_pairs import YAML
from fuzz_protocols import _JSON
from fuzz_target import Target
from omegaconf import OmegaConf

from clients.ledger import Ledger
from clients.policy import SiloPolicy
from fedface_flwr.compose import compose_config
from fedface_flwr.export.history import History
from fedface_flwr.export.results import read_results, summary_figures
from fedface_flwr.federation.run_state import load_state, save_state
from fedface_flwr.provision.federation import read_federation
from fedface_flwr.reporting.evaluation import FORMAT
from fedface_flwr.reporting.metrics import read_metrics
from fedface_flwr.reporting.summary import Account, TestFigures, read_summary
from fedface_flwr.training.store import SiloStore

_ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3), "c": np.ones(4, np.float64)}


def _run_state(root: Path) -> Sequence[Path]:
    save_state(root / "state.safetensors", _ARRAYS, {"round": 3, "weights": [0.1, 0.2]})
    return [root / "state.safetensors"]


def _read_run_state(root: Path) -> None:
    arrays, values = load_state(root / "state.safetensors")
    assert isinstance(values, dict)
    assert all(np.array_equal(arrays[name], array) for name, array in _ARRAYS.items())


def _silo_store(root: Path) -> Sequence[Path]:
    SiloStore(root).save(1, _ARRAYS, 0)
    return [root / "round-000001.safetensors"]


def _read_silo_store(root: Path) -> None:
    state = SiloStore(root).load(1)
    size = (root / "round-000001.safetensors").stat().st_size
    assert sum(array.nbytes for array in state.values()) <= size


def _ledger(root: Path) -> Sequence[Path]:
    answers = {"tests": {"first 12ab": {"lfw": 99.5}}, "first validation 3": {"ab": {}, "cd": {"cfp": 90.0}}}
    (root / "ledger.json").write_text(json.dumps(answers))
    return [root / "ledger.json"]


def _read_ledger(root: Path) -> None:
    answers = Ledger(root / "ledger.json", SiloPolicy())._load()
    for known in answers.values():
        for figures in known.values():
            assert all(isinstance(value, float) for value in figures.values())


_FEDERATION = """
name: faces
server: {address: faces.example.org, port: 9443}
policy:
  max_candidates: 4
  score_resolution: 0.05
parties:
- {name: a, role: trainer, data: /data/a, gpus: [0, 1]}
- name: b
  role: validator
  data: "/data/b"
  gpus: none
"""


def _federation(root: Path) -> Sequence[Path]:
    (root / "FEDERATION.yaml").write_text(_FEDERATION)
    return [root / "FEDERATION.yaml"]


def _read_federation(root: Path) -> None:
    federation = read_federation(root / "FEDERATION.yaml")
    assert len({party.name for party in federation.parties}) == len(federation.parties) > 0


def _policy(root: Path) -> Sequence[Path]:
    (root / "policy.toml").write_text(SiloPolicy().to_toml())
    return [root / "policy.toml"]


def _read_policy(root: Path) -> None:
    policy = SiloPolicy.load(root / "policy.toml")
    assert policy.max_candidates >= 1
    assert policy.score_resolution > 0


_FIGURE = {
    "benchmark": "lfw", "protocol": "verification", "metric": "accuracy", "value": 0.995, "conditions": {"flip": "on"},
    "interval": [0.99, 1.0], "spread": 0.001, "note": "",
}  # fmt: skip


def _results(root: Path) -> Sequence[Path]:
    content = {
        "format": FORMAT, "date": "2026-01-01", "suite": {"file": "s.yaml"},
        "model": {"title": "m", "digest": "cd", "weights": "ab"},
        "figures": [_FIGURE, {**_FIGURE, "value": None, "interval": None, "spread": None}],
    }  # fmt: skip
    (root / "results.json").write_text(json.dumps(content, indent=1))
    return [root / "results.json"]


def _read_results(root: Path) -> None:
    for figure in read_results(root / "results.json", ["ab"]).figures:
        assert isinstance(figure.value, float)


def _run_folder(root: Path) -> Sequence[Path]:
    summary = _whole_summary()
    (root / "summary.json").write_text(json.dumps(summary, indent=1))
    events = [{"event": "round", "time": 1.5, "round": at, "loss": None} for at in range(3)]
    (root / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return [root / "summary.json", root / "metrics.jsonl"]


def _whole_summary() -> dict[str, object]:
    tests = {"lfw": dict.fromkeys(TestFigures.__required_keys__, 1.0)}
    return {
        **{"method": "fedface", "seed": 1, "rounds": 2, "steps_per_round": 3, "seconds": 4.5, "fold_half": "first"},
        **{"loss_ema": {"a": 0.5, "b": None}, "bytes_sent": {"a": 1}, "weights": {"a": 1.0}, "rejected": {"b": 2}},
        "account": dict.fromkeys(Account.__required_keys__, 1.0),
        "tests": tests,
        "tests_by_silo": {"a": tests},
    }


def _read_run_folder(root: Path) -> None:
    assert all(isinstance(event["event"], str) for event in read_metrics(root / "metrics.jsonl"))
    summary = read_summary(root / "summary.json")
    assert summary_figures(summary, "").figures or not summary["tests"]
    summary_figures(summary, "a")


def _run_config(root: Path) -> Sequence[Path]:
    config = compose_config([], {})
    (root / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(json.loads(config.to_json()))))
    (root / "summary.json").write_text(json.dumps(_whole_summary()))
    return [root / "config.yaml"]


def _read_run_config(root: Path) -> None:
    history = History.read(root)
    assert history.hyper_parameters
    assert history.parties


_TOML = (*b"[x]|[[x]]|= 1|0x1|1979-05-27|inf|nan|true|[1,|{a=1}|'''|max_rate = 1|a.b.c = 1|1_000|+1|1e400".split(b"|"),
         b"a = " + b"[" * 5000, b"x." * 2000 + b"y = 1")  # fmt: skip

TARGETS = (
    Target("run-state", _run_state, _read_run_state, 500, tailor=safetensors_header),
    Target("silo-store", _silo_store, _read_silo_store, 500, tailor=safetensors_header),
    Target("ledger", _ledger, _read_ledger, 400, words=_JSON, tailor=odd_values),
    Target("federation", _federation, _read_federation, 300, words=YAML, tailor=odd_values),
    Target("policy", _policy, _read_policy, 400, words=_TOML),
    Target("results", _results, _read_results, 300, words=_JSON, tailor=odd_values),
    Target("run-config", _run_config, _read_run_config, 80, words=YAML, tailor=odd_values),
    Target("run-folder", _run_folder, _read_run_folder, 300, words=_JSON, tailor=odd_values),
)
