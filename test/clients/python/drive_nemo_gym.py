"""NeMo Gym, by its sources (the environment variable NEMO_GYM; its package wants another Python): the app of `VLLMModel`, which
stands between agents and the policy. Packages that it imports and does not use here are replaced (ray, hydra, profilers).
Its /v1/responses is made of the same chats, and needs an older openai than the other drivers.
"""

import asyncio
import sys
from os import environ
from types import ModuleType
from unittest.mock import MagicMock

import httpx
from driver import Driver, check, prompts, run
from stand_ins import stand_in_for


class Unsigned:
    """In place of itsdangerous, by which starlette signs the cookie of a session."""

    def __init__(self, secret: str) -> None:
        pass

    def sign(self, value: bytes) -> bytes:
        return value

    def unsign(self, value: bytes, max_age: int) -> bytes:
        return value


stand_in_for("ray", "hydra", "uvicorn", "itsdangerous", "markdown_it", "yappi", "pydot", "devtools")
exceptions = ModuleType("itsdangerous.exc")
exceptions.BadSignature = ValueError
sys.modules["itsdangerous.exc"] = exceptions
sys.path.insert(0, environ["NEMO_GYM"])

import itsdangerous  # noqa: E402

itsdangerous.TimestampSigner = Unsigned

import nemo_gym.server_utils  # noqa: E402
from nemo_gym.server_utils import ServerClient  # noqa: E402
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig  # noqa: E402

# Its settings come from the command line of `ng_run`; as in its own tests there are none.
nemo_gym.server_utils.get_global_config_dict = dict
SIBLINGS = 4


def client(driver: Driver, **options: object) -> httpx.AsyncClient:
    """An agent's connection to a model server that asks `driver.server`."""
    config = VLLMModelConfig(
        host="127.0.0.1",
        port=1,
        entrypoint="",
        name="policy_model",
        base_url=f"{driver.server}/v1",
        api_key="none",
        model=driver.model,
        return_token_id_information=True,
        uses_reasoning_parser=False,
        **options,
    )
    server = VLLMModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))
    transport = httpx.ASGITransport(app=server.setup_webserver())
    return httpx.AsyncClient(transport=transport, base_url="http://gym", timeout=120)


async def main(driver: Driver) -> None:
    first, second = prompts("total", 2)
    for inline in (True, False):
        async with client(driver, request_prompt_and_generation_token_ids=inline) as agent:
            await asyncio.gather(*(episode(agent, [first, second]) for _ in range(SIBLINGS)))
        driver.did(f"chat: {SIBLINGS} episodes of 2 turns, prompts' ids {'in the answer' if inline else 'by /tokenize'}")

    async with client(driver, request_prompt_and_generation_token_ids=True) as agent:
        body = {"messages": [{"role": "user", "content": "total 1 2 3 " * 4000}], "max_tokens": 32}
        [choice] = (await agent.post("/v1/chat/completions", json=body)).json()["choices"]
        check(choice["finish_reason"] == "length" and not choice["message"]["content"], f"{choice}")
        driver.did("a prompt that is too long ends the rollout with length")

    async with client(driver, use_completions_api=True) as agent:
        body = {"messages": [{"role": "user", "content": first}], "max_tokens": 32}
        answer = await agent.post("/v1/chat/completions", json=body)
        check(answer.status_code == 200, answer.text)
        check(len(answer.json()["choices"][0]["message"]["generation_token_ids"]) > 0, "no token ids")
        driver.did("completions")


async def episode(agent: httpx.AsyncClient, turns: list[str]) -> None:
    messages: list = []
    for text in turns:
        messages.append({"role": "user", "content": text})
        body = {"messages": messages, "max_tokens": 32, "temperature": 1.0}
        answer = await agent.post("/v1/chat/completions", json=body)
        check(answer.status_code == 200, answer.text)
        message = answer.json()["choices"][0]["message"]
        made = message["generation_token_ids"]
        check(len(made) == len(message["generation_log_probs"]) > 0, f"{len(made)} tokens")
        check(len(message["prompt_token_ids"]) > 0, "the prompt's ids are missing")
        messages.append(message)


run("nemo_gym", main)
