"""agent-lightning: its gateway app in front of the server, used by agents through the OpenAI SDK."""

import asyncio

import httpx
from agentlightning.server.app import create_app
from driver import Driver, check, prompts, run
from openai import AsyncOpenAI

KEY = "key"


async def main(driver: Driver) -> None:
    model = driver.model
    proxy = {"model_name": model, "train": {"temperature": 1.0}, "val": {"temperature": 0.0}}
    app = create_app({"key": KEY, "default_proxy": proxy})
    headers = {"Authorization": f"Bearer {KEY}"}
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as gateway,
    ):
        registered = await gateway.post("/api/models", json=[{"model": model, "endpoint": f"{driver.server}/v1", "version": 0}])
        check(registered.status_code == 201, registered.text)
        created = await gateway.post("/api/rollouts", json=[{"input": {}}])
        check(created.status_code == 201, created.text)
        rollout = created.json()[0]["rollout_id"]
        agent = f"http://gateway/proxy/rollout/{rollout}/attempt/0/mode"
        messages = [{"role": "user", "content": prompts("sort", 1)[0]}]
        for mode in ("train", "val"):
            sdk = AsyncOpenAI(base_url=f"{agent}/{mode}/openai/v1", api_key=KEY, http_client=gateway, max_retries=0)
            answers = await asyncio.gather(
                *(sdk.chat.completions.create(model="any", messages=messages, max_tokens=32) for _ in range(4))
            )
            for answer in answers:
                check(len(answer.choices[0].token_ids) > 0, "no token ids")
                if mode == "train":
                    content = answer.choices[0].logprobs.content
                    check(len(content) == len(answer.choices[0].token_ids), "logprobs are missing")
            driver.did(f"chat, mode {mode}: 4 siblings")
            written = await sdk.completions.create(model="any", prompt=f"<|user|>{messages[0]['content']}<|assistant|>", max_tokens=16)
            check(len(written.choices[0].token_ids) > 0, "no token ids")
        driver.did("completions, with logprobs: true")
        events = (await gateway.get(f"/api/rollouts/{rollout}/events")).json()
        kept = [event for event in events if event["event_type"] == "model_request"]
        check(len(kept) == 10 and all(event["data"]["status"] == "ok" for event in kept), f"{len(kept)} events")
        driver.did(f"{len(kept)} requests captured")


run("agentlightning", main)
