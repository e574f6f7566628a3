"""The compiled program in this package, and the console script that becomes it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).resolve().parent / "program" / "foretoken"


def command() -> list[str]:
    """What starts the tool. FORETOKEN_PROGRAM names another executable, for instance bin/foretoken of a checkout."""
    given = os.environ.get("FORETOKEN_PROGRAM")
    if given:
        return [given]
    if not PROGRAM.is_file():
        raise FileNotFoundError(f"{PROGRAM} is missing: install a wheel of foretoken, or set FORETOKEN_PROGRAM")
    return [str(PROGRAM)]


def environment() -> dict[str, str]:
    """`foretoken up` finds the vLLM of this Python's environment, also when that is not activated."""
    env = dict(os.environ)
    vllm = Path(sys.executable).parent / "vllm"
    if vllm.is_file():
        env.setdefault("FORETOKEN_VLLM", str(vllm))
    return env


def main() -> NoReturn:
    """Replaces this process, so that signals and the exit status are the program's."""
    program = command()
    os.execve(program[0], [*program, *sys.argv[1:]], environment())
