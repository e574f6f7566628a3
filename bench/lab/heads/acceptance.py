"""How often a draft model is right about the bundled model's responses, by place.

    python -m foretoken_vllm.widen model/hf DRAFT --hidden 256 --noise 0.95    # a weakened copy
    python bench/lab/heads/acceptance.py DRAFT                                # with the Python of vLLM's environment

Drafts are greedy, as vLLM's are by default, and a draft token is accepted where the response has it: at temperature 1 a
verifier does the same. A token counts at its place only where all those before it in the draft were right. With noise
of 0.9, 0.95 and 1 the copy is right in 67, 60 and 53 % of the first places.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from small_model import SmallModel, prompts

# Those from here on are not trained on.
HELD_OUT = 448
PLACES = 7


def by_place(drafts: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Of each draft how many of its first tokens are right, and how many it has: tried and right ones at each place."""
    tried, right = [0] * PLACES, [0] * PLACES
    for accepted, drafted in drafts:
        for place in range(min(accepted + 1, drafted, PLACES)):
            tried[place] += 1
            right[place] += place < accepted
    return list(zip(tried, right, strict=True))


def table(places: Sequence[tuple[int, int]]) -> str:
    rates = [right / max(1, tried) for tried, right in places]
    tokens, whole = 1.0, 1.0
    for rate in rates:
        whole *= rate
        tokens += whole
    shown = " ".join(f"{rate:.3f}" for rate in rates)
    return f"accepted by place 1 to {PLACES}: {shown}; {tokens:.2f} tokens a step of {PLACES} drafts"


@torch.inference_mode()
def drafted(draft: SmallModel, prompt: list[int], response: list[int]) -> list[list[int]]:
    """The draft behind each token of a response but the last, as long as the tokens before one in it are right.

    Then they are what the response has, and what the draft model says of that is all there is to know.
    """
    said = draft.logits(draft.streams(torch.tensor([prompt + response]))[-1])[0, len(prompt) : -1].argmax(-1).tolist()
    return [said[at : at + PLACES] for at in range(len(said))]


def judged(drafts: Iterable[Sequence[int]], response: Sequence[int]) -> list[tuple[int, int]]:
    """Of the draft behind each token of a response: how many of its first tokens are right, and how many it has."""
    found = []
    for at, draft in enumerate(drafts, 1):
        pairs = zip(draft, response[at:], strict=False)
        run = next((i for i, (said, came) in enumerate(pairs) if said != came), len(draft))
        found.append((run, len(draft)))
    return found


def held_out(model: SmallModel, count: int, tokens_max: int = 400) -> list[tuple[list[int], list[int]]]:
    """Responses that no head was trained on, with their prompts."""
    asked = prompts()[HELD_OUT : HELD_OUT + count]
    return list(zip(asked, model.respond(asked, tokens_max, seed=2), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=Path, help="folder of a model of the bundled one's kind")
    parser.add_argument("--responses", type=int, default=32, help="of prompts that no head was trained on")
    given = parser.parse_args()
    draft = SmallModel(given.draft)
    texts = held_out(SmallModel(), given.responses)
    print(table(by_place(run for prompt, text in texts for run in judged(drafted(draft, prompt, text), text))))


if __name__ == "__main__":
    main()
