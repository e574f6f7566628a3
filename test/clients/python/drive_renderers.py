"""renderers: `client.generate`, with which prime-rl and verifiers ask for responses to token ids."""

import asyncio

from driver import MODEL, Driver, check, prompts, run
from openai import AsyncOpenAI
from renderers import create_renderer
from renderers.base import load_tokenizer
from renderers.client import generate

SIBLINGS = 8


async def main(driver: Driver) -> None:
    client = AsyncOpenAI(base_url=f"{driver.server}/v1", api_key="EMPTY", max_retries=0)
    renderer = create_renderer(load_tokenizer(str(MODEL)))
    model = driver.model
    first, second = prompts("countdown", 2)

    async def respond(text: str, seed: int, salt: str, priority: int = 0) -> dict:
        return await generate(
            client=client,
            renderer=renderer,
            messages=[{"role": "user", "content": text}],
            model=model,
            sampling_params={"max_tokens": 64, "temperature": 1.0, "seed": seed},
            cache_salt=salt,
            priority=priority,
            extra_headers={"X-Session-ID": f"trace-{salt}-{seed}"},
        )

    group = await asyncio.gather(*(respond(first, seed, "0") for seed in range(SIBLINGS)))
    for response in group:
        ids, logprobs = response["completion_ids"], response["completion_logprobs"]
        check(len(ids) == len(logprobs) > 0, f"{len(ids)} tokens, {len(logprobs)} logprobs")
        check(all(value <= 0 for value in logprobs), "a logprob is above 0")
        check(response["finish_reason"] in ("stop", "length"), f"finish {response['finish_reason']}")
    driver.did(f"{SIBLINGS} siblings, {sum(len(r['completion_ids']) for r in group)} tokens with logprobs")

    again = await asyncio.gather(*(respond(first, seed, "0", priority=seed) for seed in range(SIBLINGS)))
    same = [a["completion_ids"] == b["completion_ids"] for a, b in zip(group, again, strict=True)]
    if driver.engine == "llama":
        check(all(same), f"equal seeds gave other tokens: {same}")
    driver.did(f"the same seeds again: {sum(same)} of {SIBLINGS} equal")

    salted = await respond(second, 1, "policy-1")
    check(len(salted["completion_ids"]) > 0, "no tokens under another salt")
    driver.did("another salt")

    await client.close()


run("renderers", main)
