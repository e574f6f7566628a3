"""Trains an EAGLE-3 head for the bundled model on its own responses, in minutes on two cores.

    python bench/lab/heads/train.py OUT      # with the Python of vLLM's environment

Then `vllm serve model/hf --speculative-config '{"method": "eagle3", "model": "OUT", "num_speculative_tokens": 4}'`.
Prints its acceptance by place on prompts that it was not trained on, as acceptance.py does for a draft model.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from acceptance import HELD_OUT, by_place, held_out, judged, table
from eagle3 import Eagle3
from small_model import SmallModel, prompts
from torch import Tensor

# Steps of a draft that are trained, and what each counts of the one before.
UNROLLED = 3
STEP_WEIGHT = 0.8
BATCH_TOKENS = 2048
RATE = 2e-3

Text = tuple[list[int], list[int]]


def batches(texts: list[Text], drawn: random.Random) -> Iterator[list[Text]]:
    """Of similar lengths, as many as fit BATCH_TOKENS, in random order."""
    found: list[list[Text]] = [[]]
    for text in sorted(texts, key=lambda one: len(one[0]) + len(one[1]) + drawn.random()):
        if (len(found[-1]) + 1) * (len(text[0]) + len(text[1])) > BATCH_TOKENS:
            found.append([])
        found[-1].append(text)
    drawn.shuffle(found)
    yield from (one for one in found if one)


def padded(batch: list[Text]) -> tuple[Tensor, Tensor]:
    """Tokens, and which of them a response has."""
    width = max(len(prompt) + len(response) for prompt, response in batch)
    tokens = torch.zeros((len(batch), width), dtype=torch.long)
    is_response = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, (prompt, response) in enumerate(batch):
        tokens[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        is_response[row, len(prompt) : len(prompt) + len(response)] = True
    return tokens, is_response


def loss_of(head: Eagle3, target: SmallModel, batch: list[Text]) -> Tensor:
    """Cross entropy with what the target says, which is more than the token that it drew."""
    tokens, is_response = padded(batch)
    with torch.no_grad():
        streams = target.streams(tokens)
        wanted = target.logits(streams[-1])[:, 1:-1].softmax(-1)
    total = torch.zeros(())
    for step, said in enumerate(head(tokens, streams, UNROLLED)):
        counted = is_response[:, 2:].clone()
        counted[:, :step] = False
        entropy = -(wanted * said[:, :-1].log_softmax(-1)).sum(-1)
        total = total + STEP_WEIGHT**step * entropy[counted].mean()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the head")
    parser.add_argument("--prompts", type=int, default=256, help=f"the first ones, at most {HELD_OUT}")
    parser.add_argument("--responses", type=int, default=1, help="to each prompt")
    parser.add_argument("--tokens", type=int, default=400, help="of a response, at most")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--judged", type=int, default=32, help="responses of prompts that it was not trained on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=Path, help="kept here, and read from here if it is there")
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    drawn, target, began = random.Random(given.seed), SmallModel(), time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    if given.texts is not None and given.texts.exists():
        texts: list[Text] = torch.load(given.texts)
    else:
        asked = sorted(prompts()[: min(given.prompts, HELD_OUT)] * given.responses)
        texts = list(zip(asked, target.respond(asked, given.tokens, given.seed), strict=True))
        if given.texts is not None:
            torch.save(texts, given.texts)
    say(f"{len(texts)} responses of {sum(len(response) for _, response in texts)} tokens")
    head = Eagle3(target)
    say(f"a head of {sum(one.numel() for one in head.parameters()) / 1e6:.2f} M parameters")
    optimizer = torch.optim.AdamW(head.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.01)
    steps = given.epochs * sum(1 for _ in batches(texts, random.Random(0)))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, step / 20) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * step / steps)))
    )
    for epoch in range(given.epochs):
        total, count = 0.0, 0
        for batch in batches(texts, drawn):
            loss = loss_of(head, target, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total, count = total + loss.item(), count + 1
        say(f"epoch {epoch + 1}: loss {total / count:.3f}, {time.process_time():.0f} s of CPU")
    head.write(given.out)
    texts = held_out(target, given.judged)
    say(table(by_place(run for text in texts for run in judged(head.drafted(target, *text), text[1]))))


if __name__ == "__main__":
    main()
