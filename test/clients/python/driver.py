"""What the drivers share: the server's address, the steps that they report, and plain calls to look at the server.

A driver runs a trainer's own classes, unmodified, against a server that looks like one `vllm serve`. Each step prints
one line, or ends the driver with the reason.
"""

import argparse
import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "model" / "hf"
EOS = "<|end|>"


class Driver:
    """One trainer: its options, and the steps done so far."""

    def __init__(self, name: str) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--server", required=True)
        parser.add_argument("--weights", required=True, help="a folder with other weights of the bundled model")
        parser.add_argument("--engine", choices=["llama", "vllm"], default="llama")
        options = parser.parse_args()
        self.name = name
        self.server: str = options.server.rstrip("/")
        self.weights: str = options.weights
        self.engine: str = options.engine
        self.steps = 0

    def did(self, what: str) -> None:
        self.steps += 1
        print(f"{self.name}: {what}", flush=True)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A call beside the trainer's own."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.server + path, data=data, method=method, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    @property
    def model(self) -> str:
        return self.call("GET", "/v1/models")["data"][0]["id"]

    @property
    def version(self) -> str:
        return self.call("GET", "/weight_info")["weight_version"]

    def reload(self, folder: str | Path) -> None:
        """Weights by path, for trainers whose own way is a broadcast between GPUs."""
        self.call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})

    @property
    def running(self) -> int:
        return self.call("GET", "/load")["server_load"]

    def until(self, holds: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds} s")
            time.sleep(0.01)

    async def until_running(self, count: int = 1) -> None:
        await asyncio.to_thread(self.until, lambda: self.running >= count)

    def finish(self) -> None:
        print(json.dumps({"trainer": self.name, "steps": self.steps}), flush=True)


def run(name: str, main: Callable[[Driver], Awaitable[None]]) -> None:
    driver = Driver(name)
    asyncio.run(main(driver))
    driver.finish()
    sys.stdout.flush()


def prompts(kind: str, count: int) -> list[str]:
    """User messages of the bundled prompts."""
    lines = (ROOT / "model" / "prompts.jsonl").read_text(encoding="utf-8").split("\n")
    found = [json.loads(line)["prompt"] for line in lines if line.strip()]
    texts = [text.removeprefix("<|user|>").removesuffix("<|assistant|>") for text in found]
    return [text for text in texts if text.startswith(kind)][:count]


def check(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)
