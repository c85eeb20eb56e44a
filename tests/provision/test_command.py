# SPDX-License-Identifier: Apache-2.0
"""``fedface-provision`` on real folders: what kits hold, and what a second run leaves alone."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from fedface_flwr.provision.command import main

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/bin")
ALPHA = {"name": "alpha", "role": "trainer", "data": "/data/alpha", "gpus": [0, 1]}
BETA = {"name": "beta.2", "role": "trainer", "data": "/data/beta"}
DELTA = {"name": "delta", "role": "validator", "data": "/data/delta"}


@pytest.fixture(autouse=True)
def _umask() -> Any:
    # The command narrows its process's umask, which here is the tests'.
    before = os.umask(0o022)
    yield
    os.umask(before)


class Folder:
    """A folder of kits and the description that they are made from."""

    def __init__(self, folder: Path) -> None:
        self.kits, self.description = folder / "kits", folder / "FEDERATION.yaml"

    def provision(self, *parties: dict[str, Any], address: str = "fl.example.org", **top: Any) -> int:
        content = {"name": "faces", "server": {"address": address}, "parties": parties, **top}
        self.description.write_text(json.dumps(content))
        return main([str(self.description), "-o", str(self.kits)])

    def files(self, kit: str = "") -> dict[str, tuple[bytes, int]]:
        """Return every file's content and time of change."""
        paths = [path for path in (self.kits / kit).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.kits)): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}

    def changed(self, before: dict[str, tuple[bytes, int]]) -> set[str]:
        after = self.files()
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    assert folder.provision(ALPHA, DELTA) == 0
    return folder


def test_every_kit_holds_what_it_needs(folder: Folder) -> None:
    kits = {kit: {name.removeprefix(f"{kit}/") for name in folder.files(kit)} for kit in ("server", "alpha", "delta")}
    party = {"start.sh", "policy.toml", "README.md", "ca.pem", "party.key"}
    assert kits["alpha"] == party | {"fedface-alpha.service"}
    assert kits["delta"] == party | {"fedface-delta.service"}
    assert kits["server"] == {
        *("start.sh", "register.sh", "nginx.conf", "README.md", "fedface-server.service", "flwr/config.toml"),
        *("tls/ca.pem", "tls/server.pem", "tls/server.key", "keys/alpha.pub", "keys/delta.pub"),
    }
    assert {path.name for path in folder.kits.iterdir()} == {".lock", "authority", "server", "alpha", "delta"}


def test_a_secret_is_in_the_one_kit_whose_it_is(folder: Folder) -> None:
    secret = {name for name, (content, _) in folder.files().items() if b"PRIVATE KEY" in content}
    assert secret == {"authority/ca.key", "server/tls/server.key", "alpha/party.key", "delta/party.key"}
    contents = [folder.files()[name][0] for name in secret]
    assert len(set(contents)) == 4


def test_everything_is_private(folder: Folder) -> None:
    for path in [folder.kits, *folder.kits.rglob("*")]:
        private = 0o700 if path.is_dir() or path.suffix == ".sh" else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == private, path


def test_a_file_that_was_opened_up_is_private_again(folder: Folder) -> None:
    (folder.kits / "alpha/party.key").chmod(0o644)
    (folder.kits / "alpha/start.sh").chmod(0o644)
    assert folder.provision(ALPHA, DELTA) == 0
    assert stat.S_IMODE((folder.kits / "alpha/start.sh").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.kits / "alpha/party.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("fl.example.org", x509.DNSName("fl.example.org")),
        ("192.0.2.7", x509.IPAddress(ip_address("192.0.2.7"))),
        ("2001:db8::7", x509.IPAddress(ip_address("2001:db8::7"))),
        ("localhost", x509.DNSName("localhost")),
    ],
)
def test_the_servers_certificate_is_good_for_its_address_and_the_loopback_interface(
    tmp_path: Path, address: str, name: x509.GeneralName
) -> None:
    folder = Folder(tmp_path)
    folder.provision(ALPHA, address=address)
    store = Store([x509.load_pem_x509_certificate((folder.kits / "alpha/ca.pem").read_bytes())])
    certificate = x509.load_pem_x509_certificate((folder.kits / "server/tls/server.pem").read_bytes())
    for subject in (name, x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))):
        verifier = PolicyBuilder().store(store).time(datetime.now(UTC)).build_server_verifier(subject)
        assert len(verifier.verify(certificate, [])) == 2


def test_a_second_run_changes_nothing(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder.files()
    capsys.readouterr()
    assert folder.provision(ALPHA, DELTA) == 0
    assert folder.changed(before) == set()
    assert "nothing to change" in capsys.readouterr().out


def test_a_party_more_leaves_the_others_as_they_are(folder: Folder) -> None:
    before = folder.files()
    assert folder.provision(ALPHA, BETA, DELTA) == 0
    assert folder.changed(before) == {"server/keys/beta.2.pub", *folder.files("beta.2")}


def test_only_what_the_description_changes_is_rewritten(folder: Folder) -> None:
    before = folder.files()
    assert folder.provision(ALPHA | {"gpus": [3]}, DELTA) == 0
    assert folder.changed(before) == {"alpha/start.sh", "alpha/README.md"}
    before = folder.files()
    assert folder.provision(ALPHA | {"gpus": [3]}, DELTA, policy={"max_candidates": 2}) == 0
    assert folder.changed(before) == {"alpha/policy.toml", "delta/policy.toml"}


def test_a_new_address_needs_a_new_certificate_and_no_new_key(folder: Folder) -> None:
    before = folder.files()
    assert folder.provision(ALPHA, DELTA, address="192.0.2.7") == 0
    changed = folder.changed(before)
    assert "server/tls/server.pem" in changed
    assert changed == {
        *("server/tls/server.pem", "server/start.sh", "server/README.md"),
        *(f"{party}/{name}" for party in ("alpha", "delta") for name in ("start.sh", "README.md")),
    }


def test_a_party_that_left_is_told_and_its_kit_stays(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    before = folder.files()
    assert folder.provision(ALPHA) == 0
    assert folder.changed(before) == {"server/keys/delta.pub", "authority/retired/delta.pub"}
    assert not (folder.kits / "server/keys/delta.pub").exists()
    assert "left: delta" in capsys.readouterr().out


def test_a_party_that_returns_has_another_key(folder: Folder) -> None:
    former = (folder.kits / "delta/party.key").read_bytes()
    folder.provision(ALPHA)
    assert folder.provision(ALPHA, DELTA) == 0
    current = (folder.kits / "delta/party.key").read_bytes()
    assert current != former
    before = folder.files()
    assert folder.provision(ALPHA, DELTA) == 0
    assert folder.changed(before) == set()


def test_a_key_that_only_the_party_holds_is_not_replaced(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder.kits / "alpha")
    registered = (folder.kits / "server/keys/alpha.pub").read_bytes()
    assert folder.provision(ALPHA, DELTA) == 0
    assert "kept: the key of alpha" in capsys.readouterr().out
    assert not (folder.kits / "alpha/party.key").exists()
    assert (folder.kits / "server/keys/alpha.pub").read_bytes() == registered


def test_two_runs_at_once_do_not_mix(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder.kits / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = folder.files()
        assert folder.provision(ALPHA, BETA, DELTA) == 1
        assert folder.changed(before) == set()
    assert "another fedface-provision works there" in capsys.readouterr().err
    assert folder.provision(ALPHA, BETA, DELTA) == 0


@pytest.mark.parametrize("name", ["authority/ca.key", "authority/ca.pem", "server/tls/server.key", "alpha/party.key"])
def test_a_damaged_key_is_named_and_nothing_is_put_in_its_place(
    folder: Folder, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (folder.kits / name).write_text("damaged")
    before = folder.files()
    assert folder.provision(ALPHA, DELTA) == 1
    assert name in capsys.readouterr().err
    assert folder.changed(before) == set()


def test_kits_without_their_authority_are_not_given_another(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder.kits / "authority")
    assert folder.provision(ALPHA, DELTA) == 1
    assert "put ca.key and ca.pem back" in capsys.readouterr().err


def test_a_wrong_description_ends_with_one_line_and_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Folder(tmp_path)
    assert folder.provision(ALPHA | {"role": "boss"}) == 1
    assert not folder.kits.exists()
    assert capsys.readouterr().err.startswith("fedface-provision: ")


def test_the_shell_reads_a_strange_path_as_it_is(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    strange = "/data/all faces $(touch here) `x` ; & #1"
    folder.provision(ALPHA | {"data": strange})
    script = folder.kits / "alpha/start.sh"
    line = next(line for line in script.read_text().splitlines() if line.startswith("data="))
    read = subprocess.run(["bash", "-c", f'{line}; printf %s "$data"'], capture_output=True, text=True, cwd=tmp_path)
    assert (read.stdout, read.stderr) == (strange, "")


def test_scripts_are_bash_and_leave_no_place_unfilled(folder: Folder) -> None:
    for script in folder.kits.rglob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
    for name, (content, _) in folder.files().items():
        assert b"@FEDERATION@" not in content, name
    assert 'CUDA_VISIBLE_DEVICES=""' in (folder.kits / "delta/start.sh").read_text()
    assert "CUDA_VISIBLE_DEVICES=0,1" in (folder.kits / "alpha/start.sh").read_text()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize("address", ["fl.example.org", "127.0.0.1", "192.0.2.7"])
def test_nginx_accepts_its_configuration(tmp_path: Path, address: str) -> None:
    folder = Folder(tmp_path)
    folder.provision(ALPHA, address=address)
    kit = folder.kits / "server"
    for name in ("run", "logs"):
        (kit / name).mkdir()
    done = subprocess.run(
        [str(NGINX), "-t", "-p", f"{kit}/", "-c", "nginx.conf", "-e", "logs/door.log"], capture_output=True, text=True
    )
    assert "test is successful" in done.stderr, done.stderr
    assert "warn" not in done.stderr


def test_the_command_runs_as_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedface_flwr.provision.command", "nowhere.yaml", "-o", "kits"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "fedface-provision: nowhere.yaml: no such file\n"
