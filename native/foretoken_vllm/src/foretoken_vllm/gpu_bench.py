"""`python -m foretoken_vllm.gpu_bench`: what drafts gain on this machine's GPU, in about ten minutes.

Run it with the Python of an environment that has vLLM and this package. It widens the small model to the price of a
large one (--as-is: serves --model itself), starts one server after another, so that each has the GPU to itself, and
asks all of them for the same waves: groups of responses to one prompt at temperature 1, with the same prompts and
seeds, and each response as long as the first system made it. A wave of other prompts and the same shapes comes before
those that are measured. Arguments after `--` go to every `vllm serve`, and win.

In the table, a step's time is the wave's over vLLM's steps: prefill and the client are in it. `host_us` is what the
plugin takes of the host's time in a step. `same` are responses that are the first system's, token for token.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from .widen import Widened

Row = dict[str, Any]
SYSTEMS = ("plain", "plugin", "ngram_gpu", "exact", "suffix", "draft_model", "draft_model+plugin")
COLUMNS = (
    *("requests", "system", "tokens_per_s", "by_wave", "of_plain", "ms_per_step", "tokens_per_step", "accepted"),
    *("host_us", "in_graphs", "greedy_same", "same", "note"),
)
# Of a request in a step.
ROWS = (1, 2, 4, 8)
# Draft tokens of a head alone, as it is used.
_HEAD_TOKENS = 4
# So the draft model's first token is right in 60 % of the small model's own text.
_NOISE = 0.95
GREEDY = 12
_PROMPT_TOKENS_MAX = 512
_MODEL = Path(os.path.abspath(f"{__file__}/../../../../../model"))
# With --cpu: small enough for Triton's interpreter.
_SMALL = {"hidden": 1024, "layers": 5, "size": 0.05, "batches": [1, 4], "group": 2, "max_tokens": 16}
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _BEGAN:6.1f} s  {text}", file=sys.stderr, flush=True)


def drafting(system: str, runner: int, requests: int, head: Row | None = None) -> tuple[Row, list[int]]:
    """A server's speculative configuration, and the rows of the steps that get a CUDA graph.

    The plugin's are those of `foretoken up --plugin` (src/tools/up/launch.ts says why): a step
    has 1, 2, 4 or 8 rows a request, and each number is named once, for one of the largest batches.
    `head`: method and model.
    """
    tokens = {"num_speculative_tokens": ROWS[-1] - 1}
    counts = [*range(1, 16), *range(16, 64, 4), *range(64, requests, 8), requests]
    counts = [count for count in counts if count <= requests]
    if system == "draft_model":
        return {**(head or {}), "num_speculative_tokens": _HEAD_TOKENS}, [(_HEAD_TOKENS + 1) * n for n in counts]
    sizes = {ROWS[-1] * count for count in counts} | {requests * rows for rows in ROWS}
    if system == "suffix":
        return {"method": "suffix"}, []
    if system == "ngram_gpu":
        lookup = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
        return {"method": "ngram_gpu" if runner == 2 else "ngram", **tokens, **lookup}, sorted(sizes)
    if runner == 1 and head is None:
        tokens = {"num_speculative_tokens": 16}
        return {"method": "custom_class", "model": "foretoken_vllm.proposer.ForetokenProposer", **tokens}, []
    last = [[requests - len(ROWS) + i] * 2 + [rows - 1] for i, rows in enumerate(ROWS, 1)]
    lengths = {"num_speculative_tokens_per_batch_size": [[1, requests - len(ROWS), ROWS[-1] - 1], *last]}
    drafter = head or {"method": "ngram_gpu", "model": "foretoken_vllm.speculator"}
    return {**drafter, **tokens, **lengths}, sorted(sizes)


def launch(system: str, runner: int, model: Path, given: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Arguments of `vllm serve`, and its environment."""
    # A multiple of 8, as all capture sizes are.
    requests = -(-max(given.batches) // ROWS[-1]) * ROWS[-1]
    flags = [str(model), "--served-model-name", "m", "--generation-config", "vllm", "--disable-uvicorn-access-log"]
    flags += ["--max-num-seqs", str(requests), "--max-model-len", str(given.max_tokens + _PROMPT_TOKENS_MAX)]
    head = {"method": given.draft_method, "model": str(given.draft)} if "draft_model" in system else None
    config, sizes = ({}, []) if system == "plain" else drafting(system, runner, requests, head)
    env = {name: value for name, value in os.environ.items() if not name.startswith("FORETOKEN_")}
    env |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # In the others the plugin does nothing.
    if system in ("plugin", "exact", "draft_model+plugin"):
        env["FORETOKEN_EXACT"] = str(int(system == "exact"))
        env |= {"FORETOKEN_BESIDE": "1"} if head else {}
    # vLLM drafts from suffix trees on its first runner alone.
    env |= {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner == 2 and system != "suffix"))}
    if given.cpu:
        # As `foretoken up` starts them, without graphs; drafts are lossless there with the plugin's repair alone.
        config.pop("num_speculative_tokens_per_batch_size", None)
        flags += ["--dtype", "float32", "--enforce-eager", "--distributed-executor-backend", "uni"]
        flags += ["--block-size", "32", "--no-enable-chunked-prefill"]
        env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        env |= {"FORETOKEN_REPAIR": "1"} if config else {}
    else:
        # Without torch.compile a server starts a minute sooner; breakable graphs replace its piecewise ones.
        graphs: Row = {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE"}
        if sizes:
            graphs["cudagraph_capture_sizes"] = sizes
        env |= {"VLLM_USE_BREAKABLE_CUDAGRAPH": "1"}
        flags += ["--dtype", "bfloat16", "--compilation-config", json.dumps(graphs), "--max-num-batched-tokens", "8192"]
    if config:
        flags += ["--speculative-config", json.dumps(config)]
    return flags + given.more, env


class Server:
    """One `vllm serve` in a process group of its own, which ends with the `with` block."""

    def __init__(self, flags: list[str], env: dict[str, str], log: Path) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self._log, self._stats, self._url = log, log.with_suffix(".stats.json"), f"http://127.0.0.1:{port}"
        self._stats.unlink(missing_ok=True)
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *flags]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        if "FORETOKEN_EXACT" in env:
            env = {**env, "FORETOKEN_STATS_FILE": str(self._stats)}
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_error: object) -> None:
        for last in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, last)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)

    def wait(self, limit_s: float) -> None:
        """Until it answers. Raises RuntimeError: it ended, or did not answer in time."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"vLLM ended with {self._process.returncode}")
            with contextlib.suppress(OSError):
                self.get("/health")
                return
            time.sleep(0.2)
        raise RuntimeError(f"vLLM did not answer in {limit_s:.0f} s")

    def get(self, path: str) -> str:
        with _HTTP.open(self._url + path, timeout=10) as answer:
            return str(answer.read(), "utf-8")

    def counters(self) -> Row:
        """Of /metrics, of the log, and of the plugin's file, which is written anew every two seconds."""
        found: Row = {**metrics(self.get("/metrics"))}
        found["compiled"] = self._log.read_text(errors="replace").count("JIT compilation during inference")
        now = time.time()
        while self._stats.exists() and time.time() < now + 4:
            if self._stats.stat().st_mtime > now:
                return {**json.loads(self._stats.read_text()), **found}
            time.sleep(0.05)
        return found

    def ask(self, bodies: Sequence[Row], concurrent: int, limit_s: float) -> list[list[int]]:
        """Tokens of each response. Raises OSError: a request failed, or had no answer in time."""
        until = time.monotonic() + limit_s

        def one(body: Row) -> list[int]:
            data, headers = json.dumps({"model": "m", **body}).encode(), {"content-type": "application/json"}
            request = urllib.request.Request(f"{self._url}/v1/completions", data, headers)
            with _HTTP.open(request, timeout=max(0.1, until - time.monotonic())) as answer:
                return list(json.load(answer)["choices"][0]["token_ids"])

        pool = ThreadPoolExecutor(concurrent)
        try:
            return list(pool.map(one, bodies))
        finally:
            # Requests that still run end with the server.
            pool.shutdown(wait=False, cancel_futures=True)


def metrics(text: str) -> dict[str, float]:
    """Sums over labels."""
    sums: dict[str, float] = {}
    for name, value in re.findall(r"^vllm:(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def wave(name: str, size: int, prompts: Sequence[str], group: int, max_tokens: int) -> list[Row]:
    """Requests of groups as the sidecar sends them. Seeds come from the name."""
    bodies: list[Row] = []
    for i in range(size):
        own, sample = divmod(i, group)
        extra = {"foretoken_group": f"{name}-{own}", "foretoken_sample": sample, "foretoken_offset": 0}
        body = {"prompt": prompts[own % len(prompts)], "max_tokens": max_tokens, "return_token_ids": True}
        seed = int.from_bytes(f"{name}-{i}".encode(), "big") % (2**31 - 1)
        bodies.append({**body, "seed": seed, "temperature": 1, "vllm_xargs": extra})
    return bodies


def figures(runs: Sequence[Row], before: Row, after: Row) -> Row:
    """Of measured waves, and of the counters before and after them."""
    gained = {name: value - before.get(name, 0) for name, value in after.items() if isinstance(value, (int, float))}

    def ratio(part: str, whole: str, digits: int) -> float | None:
        return round(gained.get(part, 0) / gained[whole], digits) if gained.get(whole, 0) > 0 else None

    tokens, gained["wall_ms"] = sum(run["tokens"] for run in runs), sum(1000 * run["wall_s"] for run in runs)
    # A request's prefill gives it one token, without drafts.
    gained["decoded"] = tokens - sum(run["requests"] for run in runs)
    gained["request_steps"] = gained["decoded"] - gained.get("spec_decode_num_accepted_tokens_total", 0)
    gained["graph_and_outside"] = gained.get("graph_steps", 0) + gained.get("outside_steps", 0)
    compiled = gained["compiled"]
    return {
        "tokens_per_s": round(1000 * tokens / gained["wall_ms"], 1),
        "by_wave": " ".join(f"{run['tokens'] / run['wall_s']:.0f}" for run in runs),
        "ms_per_step": ratio("wall_ms", "iteration_tokens_total_count", 2),
        "tokens_per_step": ratio("decoded", "request_steps", 2),
        "accepted": ratio("spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total", 3),
        "host_us": ratio("propose_us", "steps", 0),
        "in_graphs": ratio("graph_steps", "graph_and_outside", 3),
        "note": f"{compiled} kernels were compiled meanwhile" if compiled else None,
    }


class Bench:
    """The rows, and what the first system made: lengths for the others, and what they are compared with."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.rows: list[Row] = []
        self._made: dict[str, list[list[int]]] = {}
        prompts, tokens, at = given.texts, given.max_tokens, GREEDY
        greedy = wave("greedy", GREEDY, prompts, 1, tokens)
        self.plan = {"greedy": [{**body, "temperature": 0} for body in greedy]}
        for batch in given.batches:
            # Of one request at a time a part of a group is enough.
            size = max(batch, min(given.group, 4 * batch))
            for name in (f"{batch}-{number}" for number in range(1 + given.waves)):
                mine = [prompts[(at + i) % len(prompts)] for i in range(-(-size // given.group))]
                self.plan[name] = wave(name, size, mine, given.group, tokens)
                at += len(mine)

    def run(self, server: Server, system: str) -> None:
        """Adds a row for each batch. Raises RuntimeError: the server failed, or there is no time."""
        is_first = not self._made
        greedy = self._wave(server, "greedy", GREEDY)["same"]
        for batch in self.given.batches:
            self.check_time()
            self._wave(server, f"{batch}-0", batch)
            before = server.counters()
            runs = [self._wave(server, f"{batch}-{number}", batch) for number in range(1, 1 + self.given.waves)]
            row = {"requests": batch, "system": system, **figures(runs, before, server.counters())}
            if not is_first:
                responses, same = sum(run["requests"] for run in runs), sum(run["same"] for run in runs)
                row |= {"greedy_same": f"{greedy}/{GREEDY}", "same": f"{same}/{responses}"}
            self.rows.append(row)
            plain = next((one for one in self.rows if one.get("requests") == batch and one["system"] == "plain"), None)
            row["of_plain"] = plain and round(row["tokens_per_s"] / plain["tokens_per_s"], 2)
            say(f"{system}: {batch} requests, {row['tokens_per_s']} tokens/s")

    def _wave(self, server: Server, name: str, concurrent: int) -> Row:
        bodies, made = self.plan[name], self._made.get(name)
        if made is not None:
            fixed = [{"max_tokens": len(one), "ignore_eos": True} for one in made]
            bodies = [{**body, **length} for body, length in zip(bodies, fixed, strict=True)]
        began = time.monotonic()
        tokens = server.ask(bodies, concurrent, self.given.wave_s)
        wall = time.monotonic() - began
        same = sum(one == other for one, other in zip(self._made.setdefault(name, tokens), tokens, strict=True))
        return {"wall_s": wall, "requests": len(bodies), "tokens": sum(map(len, tokens)), "same": same}

    def check_time(self) -> None:
        """Raises RuntimeError: nothing more may begin."""
        if time.monotonic() - _BEGAN > self.given.limit_s:
            raise RuntimeError(f"nothing more began after {self.given.limit_s} s")

    def table(self) -> str:
        """As Markdown."""
        lines: list[Sequence[object]] = [COLUMNS, ["---"] * len(COLUMNS)]
        for row in sorted(self.rows, key=lambda row: row.get("requests", 0)):
            lines.append(["-" if row.get(name) is None else row[name] for name in COLUMNS])
        return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def measure(bench: Bench, model: Path, runner: int, save: Callable[[], None]) -> None:
    """All systems, each as far as it gets: what ended it becomes a row."""
    given = bench.given
    for system in given.systems:
        log = given.out.with_name(f"{given.out.stem}-{system}.log")
        try:
            bench.check_time()
            if system == "suffix" and find_spec("arctic_inference") is None:
                raise RuntimeError("arctic-inference is not installed")
            if "draft_model" in system and given.draft is None:
                raise RuntimeError("a model that is served as it is takes a --draft")
            say(f"{system}: starts, log in {log}")
            with Server(*launch(system, runner, model, given), log) as server:
                try:
                    server.wait(given.start_s)
                    bench.run(server, system)
                except (RuntimeError, OSError):
                    print(*log.read_text(errors="replace").splitlines()[-30:], sep="\n", file=sys.stderr)
                    raise
        except (RuntimeError, OSError) as error:
            problem = f"{error} {error.read()[:300]!r}" if isinstance(error, HTTPError) else str(error)
            say(f"{system}: {problem}")
            bench.rows.append({"system": system, "note": problem})
        save()


def _between(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number between {low} and {high}")
        return int(text)

    return number


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Ends the process where one is wrong, with its name and bounds."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser("python -m foretoken_vllm.gpu_bench", description=__doc__, formatter_class=_Help)
    add = parser.add_argument
    add("--model", type=Path, default=_MODEL / "hf", help="the small model: model/hf of the repository")
    add("--prompts", type=Path, default=_MODEL / "prompts.jsonl", help='lines of {"prompt": TEXT}')
    add("--as-is", action="store_true", help="serve the model itself, not widened")
    add("--hidden", type=_between(1, 2**16), default=4096, help="hidden size: 1, 4, 16 or 64 times the model's")
    add("--layers", type=_between(1, 256), default=36, help=" ")
    add("--size", type=float, default=7.6, help="billions of parameters; the feed-forward part gets the rest")
    add("--draft", type=Path, help="draft model or head; else the small model, with noise on its weights")
    add("--draft-method", default="draft_model", help="vLLM's method for it: draft_model, eagle3, mtp, ...")
    add("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="in this order")
    add("--batches", nargs="+", type=_between(1, 1024), default=[1, 8, 32, 128, 256], help="requests at a time")
    add("--group", type=_between(1, 64), default=16, help="responses to a prompt")
    add("--waves", type=_between(2, 100), default=2, help="measured ones of a batch")
    add("--max-tokens", type=_between(2, 3500), default=512, help="of a response")
    add("--limit-s", type=_between(1, 86400), default=600, help="nothing more begins after that many seconds")
    add("--start-s", type=_between(1, 3600), default=240, help="limit of a server's start")
    add("--wave-s", type=_between(1, 3600), default=120, help="limit of a wave's requests")
    add("--out", type=Path, default="gpu-bench.json", help="written after every system; logs lie beside it")
    add("--json", action="store_true", help="print what --out holds, not a table")
    add("--cpu", action="store_true", help="try everything on a CPU build of vLLM, small: no figure is a speed")
    if "--cpu" in arguments[:at]:
        parser.set_defaults(**_SMALL)
    given = parser.parse_args(arguments[:at])
    given.more = arguments[at + 1 :]
    if not given.cpu and shutil.which("nvidia-smi") is None:
        parser.error("there is no NVIDIA GPU here: --cpu tries the bench without one")
    for name, folder in (("--model", given.model), ("--draft", given.draft)):
        if folder is not None and not (folder / "config.json").is_file():
            parser.error(f"{name}: there is no {folder}/config.json")
    try:
        given.texts = [str(json.loads(line)["prompt"]) for line in given.prompts.read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"--prompts: {error!r} in {given.prompts}, whose lines are objects with a prompt")
    if not given.texts:
        parser.error(f"--prompts: {given.prompts} has 0 lines; it takes 1")
    return given


@contextlib.contextmanager
def model_of(given: argparse.Namespace) -> Iterator[Path]:
    """The folder to serve, for as long as it is served. Raises ValueError, OSError: it cannot be made."""
    if given.as_is:
        yield given.model
        return
    model = Widened(given.model, given.hidden, given.layers, given.size)
    needed = model.parameters * 2.1
    rooms = ("/dev/shm", tempfile.gettempdir())
    room = next((one for one in rooms if os.path.isdir(one) and shutil.disk_usage(one).free > needed), None)
    if room is None:
        raise ValueError(f"size is {given.size}: neither {' nor '.join(rooms)} has {needed / 1e9:.1f} GB free")
    with tempfile.TemporaryDirectory(prefix="foretoken-", dir=room) as folder:
        model.write(Path(folder) / "model")
        if given.draft is None:
            given.draft = Path(folder) / "draft"
            Widened(given.model, noise=_NOISE).write(given.draft)
        say(f"made a model of {model.parameters / 1e9:.2f} G parameters in {room}")
        yield Path(folder) / "model"


def _last_line(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]


def main(arguments: list[str]) -> int:
    """0: something was measured."""
    given = parsed(arguments)
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.default_int_handler)
    runner = _last_line([sys.executable, "-m", "foretoken_vllm.runner_v2", "--choose"])
    say(runner)
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    about = {"date": time.strftime("%Y-%m-%d"), "device": "cpu" if given.cpu else _last_line(query), "runner": runner}
    options = {name: str(one) if isinstance(one, Path) else one for name, one in vars(given).items() if name != "texts"}
    bench = Bench(given)
    result = {"conditions": {**about, "vllm": version("vllm"), **options}, "rows": bench.rows}
    try:
        with model_of(given) as model:
            measure(bench, model, int(runner[7]), lambda: given.out.write_text(json.dumps(result, indent=1) + "\n"))
    except (OSError, ValueError) as error:
        say(f"gpu_bench: {error}")
    except KeyboardInterrupt:
        say("stopped")
    print(json.dumps(result) if given.json else bench.table())
    return 0 if any("tokens_per_s" in row for row in bench.rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
