"""The GPU bench without a server: its requests, flags and figures, and servers that do not start."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foretoken_vllm import gpu_bench
from foretoken_vllm.gpu_bench import Bench, Server, figures, launch, measure, metrics, parsed
from sidecar import bun

MODEL = Path(__file__).resolve().parents[3] / "model" / "hf"
CPU = ["--cpu", "--batches", "2", "16"]


def test_no_wave_has_the_prompt_of_another_and_every_request_its_own_seed() -> None:
    plan = Bench(parsed([*CPU, "--group", "4", "--waves", "3"])).plan
    assert [len(plan[f"{batch}-{number}"]) for batch in (2, 16) for number in range(4)] == [4] * 4 + [16] * 4
    seen: set[str] = set()
    for name, bodies in plan.items():
        groups: dict[str, set[str]] = {}
        for body in bodies:
            groups.setdefault(body["vllm_xargs"]["foretoken_group"], set()).add(body["prompt"])
        assert all(len(prompts) == 1 for prompts in groups.values()), name
        fresh = set().union(*groups.values())
        assert not fresh & seen and len(fresh) == len(groups), name
        seen |= fresh
    drawn = [body["seed"] for name, bodies in plan.items() if name != "greedy" for body in bodies]
    assert len(set(drawn)) == len(drawn)


def test_what_became_more_makes_a_row_and_what_is_not_counted_is_none() -> None:
    text = """# HELP vllm:spec_decode_num_draft_tokens_total Drafts.
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 60.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 9.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 5e+01
"""
    after = {**metrics(text), "compiled": 2, "propose_us": 900.0, "steps": 30, "graph_steps": 9, "outside_steps": 1}
    before = {"spec_decode_num_draft_tokens_total": 20.0, "compiled": 2, "steps": 10, "propose_us": 100.0}
    runs = [{"wall_s": 1.0, "requests": 8, "tokens": 68}, {"wall_s": 3.0, "requests": 8, "tokens": 68}]
    assert figures(runs, before, after) == {
        "tokens_per_s": 34.0,
        "by_wave": "68 23",
        "ms_per_step": 80.0,
        "tokens_per_step": 2.0,
        "accepted": 0.6,
        "host_us": 40.0,
        "in_graphs": 0.9,
        "note": None,
    }
    plain = figures(runs, {"compiled": 0}, {"compiled": 1, "iteration_tokens_total_count": 40.0})
    assert (plain["accepted"], plain["host_us"], plain["in_graphs"]) == (None, None, None)
    assert (plain["tokens_per_step"], plain["note"]) == (1.0, "1 kernels were compiled meanwhile")


def on_gpu(batches: list[int]) -> argparse.Namespace:
    head = {"draft": Path("/draft"), "draft_method": "draft_model"}
    return argparse.Namespace(batches=batches, max_tokens=512, cpu=False, more=["--last"], **head)


def test_servers_differ_in_what_their_drafts_need_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETOKEN_DRAFTS", "0")
    started = {name: launch(name, 2, MODEL, on_gpu([1, 250])) for name in gpu_bench.SYSTEMS}
    plain, plugin = started["plain"][0], started["plugin"][0]
    assert "--speculative-config" not in plain and plain[plain.index("--max-num-seqs") + 1] == "256"
    assert all(flags[-1] == "--last" for flags, _ in started.values())
    # Any of its variables would let the plugin work in a server without it.
    settings = {name: [key for key in env if key.startswith("FORETOKEN_")] for name, (_, env) in started.items()}
    own = {"plugin": ["FORETOKEN_EXACT"], "exact": ["FORETOKEN_EXACT"]}
    own["draft_model+plugin"] = ["FORETOKEN_EXACT", "FORETOKEN_BESIDE"]
    assert settings == {"plain": [], "ngram_gpu": [], "suffix": [], "draft_model": [], **own}
    assert started["exact"][0] == plugin and started["exact"][1]["FORETOKEN_EXACT"] == "1"
    _, sizes = gpu_bench.drafting("plugin", 2, 256)
    assert sizes[0] == 8 and sizes[-1] == 2048 and not any(size % 8 for size in sizes)
    assert sizes == gpu_bench.drafting("ngram_gpu", 2, 256)[1]
    assert "[[1, 252, 7], [253, 253, 0], [254, 254, 1], [255, 255, 3], [256, 256, 7]]" in plugin[-2]


def test_a_draft_model_drafts_alone_or_with_the_plugin_beside_it() -> None:
    head = {"method": "draft_model", "model": "/draft"}
    alone, beside = (
        json.loads(launch(system, 2, MODEL, on_gpu([256]))[0][-2]) for system in ("draft_model", "draft_model+plugin")
    )
    assert alone == {**head, "num_speculative_tokens": 4}
    _, sizes = gpu_bench.drafting("draft_model", 2, 256, head)
    assert sizes[0] == 5 and sizes[-1] == 1280 and not any(size % 5 for size in sizes)
    plugin = json.loads(launch("plugin", 2, MODEL, on_gpu([256]))[0][-2])
    assert beside == {**plugin, **head}
    # A head is no drafter of the first runner's, and no model that is served as it is has one.
    given = parsed([*CPU, "--as-is", "--systems", "draft_model"])
    bench = Bench(given)
    measure(bench, MODEL, 2, lambda: None)
    assert [row["note"] for row in bench.rows] == ["a model that is served as it is takes a --draft"]


def test_a_server_that_does_not_start_is_a_row_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = parsed([*CPU, "--systems", "plain", "plugin", "--out", str(tmp_path / "r.json"), "--", "--no-such-flag"])
    bench, saved = Bench(given), []
    measure(bench, MODEL, 1, lambda: saved.append(len(bench.rows)))
    assert [(row["system"], row["note"][:17]) for row in bench.rows] == [
        ("plain", "vLLM ended with 1"),
        ("plugin", "vLLM ended with 1"),
    ]
    assert saved == [1, 2]
    # Why: the end of its log.
    assert capfd.readouterr().err.count("No module named") == 2
    assert bench.table().count("vLLM ended with 1") == 2


def test_nothing_begins_when_the_time_is_up(tmp_path: Path) -> None:
    given = parsed([*CPU, "--out", str(tmp_path / "r.json")])
    given.limit_s = 0
    bench = Bench(given)
    measure(bench, MODEL, 1, lambda: None)
    assert {row["note"] for row in bench.rows} == {"nothing more began after 0 s"} and len(bench.rows) == 7


def test_a_server_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, child = tmp_path / "server", tmp_path / "child"
    program.write_text(f"#!/bin/sh\n(trap '' TERM; echo >{child}; sleep 60) &\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(KeyboardInterrupt), Server([], dict(os.environ), tmp_path / "log") as server:
        until = time.monotonic() + 10
        while not child.exists() and time.monotonic() < until:
            time.sleep(0.01)
        group = server._process.pid
        os.killpg(group, 0)
        raise KeyboardInterrupt
    until = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--batches", "0"], "--batches: 0 is not a whole number between 1 and 1024"),
        (["--waves", "1"], "--waves: 1 is not a whole number between 2 and 100"),
        (["--systems", "eagle"], "invalid choice: 'eagle'"),
        (["--model", "/none"], "--model: there is no /none/config.json"),
        (["--draft", "/none"], "--draft: there is no /none/config.json"),
        (["--prompts", str(MODEL / "config.json")], "--prompts: "),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(["--cpu", *arguments])
    assert problem in capsys.readouterr().err


@pytest.mark.skipif(bun() is None, reason="there is no bun")
@pytest.mark.parametrize("requests", [8, 32, 256])
def test_servers_with_the_plugin_draft_as_those_that_up_starts_on_a_gpu(requests: int) -> None:
    options = {"command": "vllm", "build": {"version": "0.32.0", "isCpu": False}, "model": "m", "host": "h", "port": 1}
    options |= dict.fromkeys(("gpus", "contextTokens", "servedName", "apiKey"))
    options["plugin"] = {"draftUrl": "", "token": None, "statsFile": "", "runner": 2}
    options["extraArgs"] = ["--max-num-seqs", str(requests)]
    script = f"console.log(JSON.stringify(require('./src/tools/up/launch.ts').launchOf({json.dumps(options)}).command))"
    said = subprocess.run([str(bun()), "-e", script], cwd=MODEL.parents[1], check=True, capture_output=True, text=True)
    command = json.loads(said.stdout)
    speculation, sizes = gpu_bench.drafting("plugin", 2, requests)
    assert json.loads(command[command.index("--speculative-config") + 1]) == speculation
    begin = command.index("--cudagraph-capture-sizes") + 1
    assert [int(size) for size in itertools.takewhile(str.isdecimal, command[begin:])] == sizes
