"""What a head brings alone, siblings alone, and both, counted on real vLLM servers without a GPU.

    python bench/lab/heads/beside.py --head DRAFT [--method eagle3] [--json]    # with the Python of vLLM's environment

Starts a server for each system, under vLLM's second model runner, whose kernels Triton's interpreter runs (`npm run
vllm:install`). All get the same requests: groups of 16 siblings at temperature 1, four of each group at a time, so that
the first four have no siblings but each other, and the last ones twelve that have ended. Every step verifies as many
draft tokens of a request (--tokens), whatever it takes: times say nothing here, and only tokens are counted.

tokens/step: accepted draft tokens of a request in a step, and one more. both/better: of the better of the other two.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "native" / "foretoken_vllm" / "src"
sys.path.insert(0, str(SOURCES))

from foretoken_vllm.gpu_bench import Server, say, wave  # noqa: E402

SYSTEMS = ("head", "table", "both")
SIBLINGS = 16
AT_A_TIME = 4
ROWS = {f"siblings {i + 1} to {i + 4}": (i // 4, i // 4 + 1) for i in range(0, SIBLINGS, 4)}
ROWS |= {"8 siblings": (0, 2), "16 siblings": (0, 4)}
# The first prompts that the heads were not trained on (acceptance.py).
HELD_OUT = 448
_DRAFTS, _DRAFTED, _ACCEPTED = (
    f"spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")
)


def launch(system: str, given: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Arguments of `vllm serve`, and its environment."""
    speculation: dict[str, Any] = {"num_speculative_tokens": given.tokens}
    if system == "table":
        speculation |= {"method": "ngram_gpu", "model": "foretoken_vllm.speculator"}
    else:
        speculation |= {"method": given.method, "model": str(given.head)}
    requests = AT_A_TIME * given.groups
    flags = [str(given.model), "--served-model-name", "m", "--generation-config", "vllm", "--dtype", "float32"]
    flags += ["--enforce-eager", "--distributed-executor-backend", "uni", "--block-size", "32"]
    flags += ["--max-num-seqs", str(requests), "--max-model-len", str(given.max_tokens + 128)]
    flags += [
        "--gpu-memory-utilization",
        "0.2",
        "--num-gpu-blocks-override",
        str(requests * (given.max_tokens // 32 + 8)),
    ]
    flags += ["--speculative-config", json.dumps(speculation)]
    triton, interpreter = ROOT / ".cache" / "vllm" / "triton", ROOT / "test" / "vllm" / "interpreter"
    env = {name: value for name, value in os.environ.items() if not name.startswith("FORETOKEN_")}
    env |= {"PYTHONPATH": f"{SOURCES}:{triton}:{interpreter}", "TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if system != "head":
        # With a least probability, step times do not decide what is drafted.
        env |= {"FORETOKEN_DRAFTS": "1", "FORETOKEN_PROBABILITY_MIN": "0.01"}
        env |= {"FORETOKEN_BESIDE": "1"} if system == "both" else {}
    return flags, env


def waves(given: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """Requests that are sent at the same time: the next siblings of every group."""
    lines = (ROOT / "model" / "prompts.jsonl").read_text().splitlines()[HELD_OUT : HELD_OUT + given.groups]
    prompts = [str(json.loads(line)["prompt"]) for line in lines]
    bodies = wave("beside", SIBLINGS * given.groups, prompts, SIBLINGS, given.max_tokens)
    of_group = [bodies[i : i + SIBLINGS] for i in range(0, len(bodies), SIBLINGS)]
    return [[body for group in of_group for body in group[i : i + AT_A_TIME]] for i in range(0, SIBLINGS, AT_A_TIME)]


def counted(system: str, given: argparse.Namespace) -> list[dict[str, float]]:
    """Of each wave: steps of a request, draft tokens verified, and accepted."""
    with tempfile.TemporaryDirectory() as folder:
        log = given.logs / f"{system}.log" if given.logs else Path(folder) / "server.log"
        with Server(*launch(system, given), log) as server:
            try:
                server.wait(600)
                found, before = [], server.counters()
                for bodies in waves(given):
                    server.ask(bodies, len(bodies), 3600)
                    after = server.counters()
                    found.append({name: after[name] - before.get(name, 0) for name in (_DRAFTS, _DRAFTED, _ACCEPTED)})
                    before = after
                    one = found[-1]
                    say(f"{system}: {1 + one[_ACCEPTED] / one[_DRAFTS]:.2f} tokens a step")
                return found
            except (RuntimeError, OSError):
                print(*log.read_text(errors="replace").splitlines()[-30:], sep="\n", file=sys.stderr)
                raise


def report(found: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    rows = []
    for name, (begin, end) in ROWS.items():
        row: dict[str, Any] = {"": name}
        for system, counts in found.items():
            total = {key: sum(one[key] for one in counts[begin:end]) for key in (_DRAFTS, _DRAFTED, _ACCEPTED)}
            row[f"{system} tokens/step"] = round(1 + total[_ACCEPTED] / total[_DRAFTS], 3)
            row[f"{system} verified/step"] = round(total[_DRAFTED] / total[_DRAFTS], 2)
            row[f"{system} steps"] = round(total[_DRAFTS])
        if set(SYSTEMS) <= set(found):
            better = max(row[f"{system} tokens/step"] for system in SYSTEMS[:2])
            row["both/better"] = round(row["both tokens/step"] / better, 2)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", type=Path, required=True, help="folder of a draft model, or of a head (train.py)")
    parser.add_argument("--method", default="draft_model", help="vLLM's for it")
    parser.add_argument("--model", type=Path, default=ROOT / "model" / "hf")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--tokens", type=int, default=7, help="draft tokens of a request in a step")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=128, help="of a response")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = report({system: counted(system, given) for system in given.systems})
    if given.json:
        print(json.dumps({"method": given.method, "tokens": given.tokens, "rows": rows}))
        return
    print(f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(str(value) for value in row.values())} |")


if __name__ == "__main__":
    main()
