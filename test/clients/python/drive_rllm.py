"""rllm, by its sources (the environment variable RLLM; it is not on PyPI): `OpenAIEngine`, and the app of its model gateway in
front of the server, used by agents through the OpenAI SDK. There later turns go to /v1/completions as tokens
("cumulative token mode"), made by a renderer of the bundled model: the gateway calls an older `create_renderer` than
the installed one.
"""

import asyncio
import sys
import tempfile
from os import chdir, environ
from pathlib import Path

import httpx
import renderers
from bundled_renderer import BundledConfig, BundledRenderer
from driver import MODEL, Driver, check, prompts, run
from openai import AsyncOpenAI

sys.path[:0] = [environ["RLLM"], f"{environ['RLLM']}/rllm-model-gateway/src"]
renderers.create_renderer = lambda tokenizer, renderer: BundledRenderer(tokenizer, BundledConfig())

from rllm.engine.rollout.openai_engine import OpenAIEngine  # noqa: E402
from rllm.parser import ChatTemplateParser  # noqa: E402
from rllm_model_gateway.models import GatewayConfig, WorkerConfig  # noqa: E402
from rllm_model_gateway.server import create_app  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

SIBLINGS = 4
SAMPLING = {"temperature": 1.0, "max_tokens": 32}


class BundledParser(ChatTemplateParser):
    """rllm reads completions of the families of models that it knows."""

    def parse_completion(self, ids: list[int]) -> dict:
        return {"content": self.tokenizer.decode(ids), "reasoning": "", "tool_calls": []}


async def main(driver: Driver) -> None:
    await engines(driver)
    # The gateway has one setting for the model's name and for the folder of its tokenizer.
    with tempfile.TemporaryDirectory() as folder:
        if not Path(driver.model).exists():
            chdir(folder)
            Path(driver.model).symlink_to(MODEL)
        await drive(driver)


async def engines(driver: Driver) -> None:
    """By texts to the chat route, and by the tokenizer's prompts to /v1/completions."""
    messages = [{"role": "user", "content": prompts("total", 1)[0]}]
    options = {"model": driver.model, "base_url": f"{driver.server}/v1", "api_key": "none", "api_retries": 1}
    chat = OpenAIEngine(**options, sampling_params=dict(SAMPLING))
    for output in await asyncio.gather(*(chat.get_model_response(messages) for _ in range(SIBLINGS))):
        check(0 < output.completion_length <= 32, f"{output.completion_length} tokens")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    sampling = {**SAMPLING, "logprobs": 1, "extra_body": {"return_token_ids": True}}
    tokens = OpenAIEngine(**options, tokenizer=tokenizer, chat_parser=BundledParser(tokenizer), sampling_params=sampling)
    for output in await asyncio.gather(*(tokens.get_model_response(messages) for _ in range(SIBLINGS))):
        check(len(output.completion_ids) == len(output.logprobs) == output.completion_length > 0, "logprobs are missing")
    driver.did(f"OpenAIEngine: {SIBLINGS} siblings by chat, {SIBLINGS} by completions")


async def drive(driver: Driver) -> None:
    app = create_app(
        GatewayConfig(
            workers=[WorkerConfig(url=f"{driver.server}/v1")],
            model=driver.model,
            cumulative_token_mode=True,
            sync_traces=True,
            health_check_interval=0.1,
        )
    )
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=120) as gateway,
    ):
        turns = prompts("sort", 3)
        await asyncio.gather(*(episode(driver, gateway, f"task/{index}", turns, index % 2 == 1) for index in range(SIBLINGS)))
        driver.did(f"{SIBLINGS} episodes of 3 turns, later ones as tokens, every second one streamed")

        await gateway.post("/admin/weight_version", json={"weight_version": 1})
        answers = asyncio.create_task(episode(driver, gateway, "task/update", turns, False))
        await driver.until_running()
        await asyncio.to_thread(driver.reload, driver.weights)
        await answers
        await asyncio.to_thread(driver.reload, MODEL)
        driver.did("an episode goes on over a weight update")

        workers = (await gateway.get("/health/workers")).json()
        check(workers["healthy"] == workers["total"] == 1, f"{workers}")
        driver.did("its health checks")


async def episode(driver: Driver, gateway: httpx.AsyncClient, name: str, turns: list[str], streams: bool) -> None:
    created = await gateway.post("/sessions", json={"session_id": name, "sampling_params": SAMPLING})
    check(created.status_code == 200, created.text)
    sdk = AsyncOpenAI(base_url=f"http://gateway{created.json()['url']}", api_key="none", http_client=gateway, max_retries=0)
    messages: list = []
    for text in turns:
        messages.append({"role": "user", "content": text})
        answer = await sdk.chat.completions.create(model="any", messages=messages, stream=streams)
        if streams:
            pieces = [chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices]
            content = "".join(pieces)
        else:
            content = answer.choices[0].message.content
        messages.append({"role": "assistant", "content": content})
    traces = (await gateway.get(f"/sessions/{name}/traces")).json()
    check(len(traces) == len(turns), f"{len(traces)} traces")
    before: list[int] = []
    for trace in traces:
        prompt, made = trace["prompt_token_ids"], trace["completion_token_ids"]
        check(prompt[: len(before)] == before, "a turn's prompt does not begin with the turn before")
        check(len(made) == len(trace["logprobs"]) > 0, f"{len(made)} tokens, {len(trace['logprobs'])} logprobs")
        before = [*prompt, *made]


run("rllm", main)
