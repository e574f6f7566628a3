"""Writes what a head drafts on groups of the bundled model's own responses, for count.ts to replay beside siblings.

    python bench/lab/heads/drafts.py HEAD OUT.jsonl [--prompts 8]     # with the Python of vLLM's environment

HEAD is the folder of a draft model or of an EAGLE-3 head. A line for each of 16 responses to a prompt that no head was
trained on: group, index, prompt_token_ids, token_ids; drafts: behind each token but the last, the tokens drafted.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from acceptance import HELD_OUT, by_place, drafted, judged, table
from eagle3 import Eagle3
from small_model import SmallModel, prompts

SIBLINGS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head", type=Path)
    parser.add_argument("out", type=Path, help="lines are added to it")
    parser.add_argument("--from", dest="begin", type=int, default=HELD_OUT, help="number of the first prompt")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400, help="of a response, at most")
    given = parser.parse_args()
    target = SmallModel()
    is_head = "Eagle3" in json.loads((given.head / "config.json").read_text())["architectures"][0]
    head = Eagle3.read(given.head, target) if is_head else SmallModel(given.head)
    asked = [prompt for prompt in prompts()[given.begin : given.begin + given.prompts] for _ in range(SIBLINGS)]
    runs = []
    with given.out.open("a") as file:
        for i, response in enumerate(target.respond(asked, given.tokens, seed=given.begin)):
            prompt = asked[i]
            said = (
                head.drafted(target, prompt, response) if isinstance(head, Eagle3) else drafted(head, prompt, response)
            )
            runs += judged(said, response)
            line = {"group": str(given.begin + i // SIBLINGS), "index": i % SIBLINGS, "drafts": said}
            file.write(json.dumps({**line, "prompt_token_ids": prompt, "token_ids": response}) + "\n")
    print(table(by_place(runs)))


if __name__ == "__main__":
    main()
