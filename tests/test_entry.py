# SPDX-License-Identifier: Apache-2.0
"""The commands' entries: an interrupt at any moment is one line and status 130."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]

INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            list(range(1000))
        except BaseException:
            pass  # as careless imports have it
        return None

from {place} import {function}
sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {arguments!r}
sys.exit({function}())
"""


def ended(code: str, **options: object) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", SCRIPTS)
def test_interrupt_while_a_command_is_being_imported(command):
    place, function = SCRIPTS[command].split(":")
    code = INTERRUPTED.format(place=place, function=function, arguments=["--help"])
    assert ended(code) == (130, "", f"{command}: interrupted\n")


def test_interrupt_that_a_command_does_not_handle_itself(tmp_path):
    (tmp_path / "work.py").write_text("def main():\n    raise KeyboardInterrupt\n")
    code = "import sys; from fedface_flwr.entry import _run; sys.exit(_run('fedface-x', 'work'))"
    assert ended(code, cwd=tmp_path) == (130, "", "fedface-x: interrupted\n")


@pytest.mark.parametrize(
    "moment",
    [
        "import atexit\natexit.register(os.kill, os.getpid(), signal.SIGINT)\n",
        # Python has let go of its own handlers by the time that modules' contents go.
        "class Last:\n    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGINT):\n"
        "        kill(me, number)\nlast = Last()\n",
    ],
    ids=["at exit", "at the very end"],
)
@pytest.mark.parametrize(("body", "status"), [("return 3", 3), ("sys.exit(4)", 4), ("raise KeyboardInterrupt", 130)])
def test_interrupt_while_python_ends_a_finished_command(tmp_path, moment, body, status):
    (tmp_path / "work.py").write_text(f"import os, signal, sys\n{moment}def main():\n    print('done')\n    {body}\n")
    code = "import sys; from fedface_flwr.entry import _run; sys.exit(_run('fedface-x', 'work'))"
    said = "fedface-x: interrupted\n" if status == 130 else ""
    assert ended(code, cwd=tmp_path) == (status, "done\n", said)


def test_interrupt_while_fedface_composes_says_so():
    code = (
        "import sys; from fedface_flwr import launch\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt()); sys.argv[1:] = ['--cfg', 'job']\n"
        "launch.main()"
    )
    assert ended(code) == (130, "", "fedface: interrupted\n")


def test_ignored_interrupts_stay_ignored(tmp_path):
    (tmp_path / "work.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main():\n    print('done')\n    return 3\n"
    )
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); from fedface_flwr.entry import _run; "
        "sys.exit(_run('fedface-x', 'work'))"
    )
    assert ended(code, cwd=tmp_path) == (3, "done\n", "")


def test_entries_import_nothing_of_what_they_run():
    loaded = "import sys; before = set(sys.modules); import fedface_flwr.entry; print(*set(sys.modules) - before)"
    code, out, _ = ended(loaded)
    assert code == 0
    assert {name.partition(".")[0] for name in out.split()} <= {"fedface_flwr", *sys.stdlib_module_names}
