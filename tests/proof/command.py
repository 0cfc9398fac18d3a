"""Run the program as people do: as a process of its own, or in this one where a process would only cost time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dprankdiag.cli import main

# Source: prctl(2), PR_CAPBSET_DROP; capabilities(7): with these gone from the bounding set even root is held to the
# permission bits of its own files once it has executed a program.
_RENOUNCE = """
import ctypes, os, sys
bound = ctypes.CDLL(None)
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    bound.prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
LONGEST_S = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def is_refusal(self) -> bool:
        """Tell a clean refusal: exit code 3, nothing printed, one line of error, no traceback."""
        return self.code == 3 and not self.stdout and self.stderr.count("\n") == 1 and self.is_calm

    @property
    def is_calm(self) -> bool:
        """Tell that no inner error shows."""
        shown = self.stdout + self.stderr
        return self.code in (0, 1, 2, 3) and "Traceback" not in shown and "internal error" not in shown


def run_here(*arguments: object) -> Answer:
    """Run a command line in this process."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return Answer(result.exit_code, result.stdout, result.stderr)


def run_process(*arguments: object) -> Answer:
    """Run a command line in a process that has no more rights than an ordinary user."""
    words = ["-c", _RENOUNCE, "-m", "dprankdiag", *(str(argument) for argument in arguments)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=LONGEST_S, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def take_print(folder: Path) -> dict[str, tuple[str, int]]:
    """Take the content and time of change of every file in a folder, to see later that nothing touched it."""
    return {
        path.name: (sha256(path.read_bytes()).hexdigest() if path.is_file() else "", path.lstat().st_mtime_ns)
        for path in sorted(folder.iterdir())
    }


def analyze_here(*arguments: object) -> dict[str, Any]:
    """Run `analyze` in this process and read its answer."""
    answer = run_here("analyze", *arguments, "--format", "json")
    assert answer.code == 0, answer.stderr
    said: dict[str, Any] = json.loads(answer.stdout)
    return said
