# SPDX-License-Identifier: Apache-2.0
"""FEDERATION.yaml at the door."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from clients.policy import SiloPolicy
from fedface_flwr.errors import ConfigError
from fedface_flwr.provision.federation import Federation, Party, Server, read_federation

WHOLE: dict[str, Any] = {
    "name": "faces",
    "server": {"address": "fl.example.org"},
    "policy": {"max_candidates": 4},
    "parties": [
        {"name": "alpha", "role": "trainer", "data": "/data/alpha", "gpus": [0, 1]},
        {"name": "delta", "role": "validator", "data": "/data/delta", "gpus": "none"},
    ],
}


def read(tmp_path: Path, content: Any) -> Federation:
    path = tmp_path / "FEDERATION.yaml"
    OmegaConf.save(OmegaConf.create(content), path)
    return read_federation(path)


def test_a_whole_description(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE) == Federation(
        "faces",
        Server("fl.example.org", 9443, 8000),
        (Party("alpha", "trainer", "/data/alpha", (0, 1)), Party("delta", "validator", "/data/delta")),
        SiloPolicy(max_candidates=4),
    )


def test_an_ipv6_address_is_written_as_flower_wants_it(tmp_path: Path) -> None:
    assert read(tmp_path, {**WHOLE, "server": {"address": "2001:db8::7", "port": 443}}).server.endpoint == (
        "[2001:db8::7]:443"
    )


@pytest.mark.parametrize(
    ("where", "value", "reason"),
    [
        (["name"], "My Faces", "name='My Faces': must match"),
        (["name"], "default", "name='default'"),
        (["name"], 7, "name=7: must be text"),
        (["name"], "a" * 41, "at most 40 characters"),
        (["server", "address"], "fl.example.org:9443", "without a port"),
        (["server", "address"], "https://fl.example.org", "must be a host name"),
        (["server", "address"], "0.0.0.0", "the parties can reach"),
        (["server", "address"], "fe80::1%a b", "without a zone"),
        (["server", "address"], "fe80::1%eth0", "without a zone"),
        (["server", "port"], 0, "server.port=0"),
        (["server", "port"], "9443", "server.port='9443'"),
        (["server", "control_port"], 9443, "must differ from server.port"),
        (["server", "prot"], 9443, "server: no such key: prot"),
        (["policy", "max_candidate"], 4, "policy: no such key: max_candidate"),
        (["policy", "max_candidates"], -1, "max_candidates=-1"),
        (["parties"], [], "at least one party"),
        (["parties", 0, "name"], "../alpha", "parties[0].name='../alpha': must match"),
        (["parties", 0, "name"], "Alpha", "must match"),
        (["parties", 0, "name"], "server", "is reserved"),
        (["parties", 0, "name"], "global", "is reserved"),
        (["parties", 0, "name"], "authority", "is reserved"),
        (["parties", 0, "name"], "delta", "two are named 'delta'"),
        (["parties", 0, "role"], "boss", "must be one of trainer, validator"),
        (["parties", 0, "data"], "data/alpha", "must be an absolute path"),
        (["parties", 0, "data"], '/data/"alpha', "without quotes"),
        (["parties", 0, "data"], "/data\n/alpha", "without quotes"),
        (["parties", 0, "gpus"], [0, 0], "different GPU numbers"),
        (["parties", 0, "gpus"], [-1], "different GPU numbers"),
        (["parties", 0, "gpus"], 2, "different GPU numbers"),
        (["parties", 0, "gpu"], [0], "parties[0]: no such key: gpu"),
    ],
)
def test_what_cannot_work_is_named(tmp_path: Path, where: list[Any], value: Any, reason: str) -> None:
    content = copy.deepcopy(WHOLE)
    inner: Any = content
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "FEDERATION.yaml"))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: [", "not a readable YAML file"),
        ("name: a\nname: b", "not a readable YAML file"),
        ("name: " + "[" * 3000, "not a readable YAML file"),
        ("", "name and server and parties missing"),
        ("- a", "must be a mapping"),
        ("name: a\nserver: {address: h}", "parties missing"),
        ("name: ${oc.env:NOT_THERE_AT_ALL}", "not a readable YAML file"),
    ],
)
def test_a_file_that_is_no_description_is_named(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "FEDERATION.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_federation(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_federation(tmp_path / "nowhere.yaml")
