"""verifiers: `TrainClient` (token ids, turns bridged by the renderer) and `EvalClient` (the chat route, also streamed)."""

import asyncio

from driver import MODEL, Driver, check, prompts, run
from renderers.configs import CustomRendererConfig
from verifiers.v1.clients.client import resolve_client
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.errors import ProviderError
from verifiers.v1.graph import prepare_turn
from verifiers.v1.trace import Trace
from verifiers.v1.types import SamplingConfig, UserMessage


async def main(driver: Driver) -> None:
    dialect = ChatDialect()
    model = driver.model
    url = f"{driver.server}/v1"
    first, second = prompts("collatz", 2)
    sampling = SamplingConfig(temperature=1.0, max_tokens=48, cache_salt="0", seed=7)

    renderer = CustomRendererConfig(import_path="bundled_renderer.BundledRenderer")
    config = TrainClientConfig(
        base_url=url, api_key_var="NONE", renderer=renderer, renderer_model_name=str(MODEL)
    )
    train = resolve_client(config)

    bridged = 0

    async def episode(index: int) -> list[int]:
        nonlocal bridged
        trace = Trace.model_construct(id=f"trace-{index}", nodes=[], tools=[])
        messages: list = [UserMessage(content=first)]
        lengths = []
        for text in (second, None):
            turn = prepare_turn(trace, messages)
            body = {"model": model, "messages": []}
            response = await train.get_response(dialect, body, sampling, session_id=trace.id, turn=turn)
            check(len(response.tokens.completion_ids) == len(response.tokens.completion_logprobs), "logprobs are missing")
            bridged += response.tokens.bridged
            turn.commit(response)
            lengths.append(len(response.tokens.completion_ids))
            if text is not None:
                messages = [*messages, response.message, UserMessage(content=text)]
        return lengths

    episodes = await asyncio.gather(*(episode(index) for index in range(4)))
    check(bridged == 4, f"{bridged} of 4 second turns were bridged")
    driver.did(f"TrainClient: 4 episodes of 2 turns, the second one bridged, {sum(map(sum, episodes))} tokens")
    await train.close()

    evaluation = resolve_client(EvalClientConfig(base_url=url, api_key_var="NONE"))
    body = {"model": model, "messages": [{"role": "user", "content": first}], "max_tokens": 32}
    response = await evaluation.get_response(dialect, body, sampling, session_id="eval-1")
    check(response.finish_reason in ("stop", "length"), f"finish {response.finish_reason}")
    driver.did("EvalClient: chat")

    reply = await evaluation.relay(dialect, {**body, "stream": True}, session_id="eval-2")
    events = [event async for event in reply.chunks]
    await reply.close()
    check(events[-1].strip() == b"data: [DONE]", f"the stream ended with {events[-1]!r}")
    driver.did(f"EvalClient: {len(events)} events relayed")

    long = {**body, "messages": [{"role": "user", "content": "1 " * 30_000}]}
    try:
        await evaluation.get_response(dialect, long, sampling)
        raise AssertionError("a prompt longer than the context was answered")
    except ProviderError as error:
        check("maximum context length" in str(error), f"overlong: {error}")
    driver.did("EvalClient: an overlong prompt is refused as vLLM refuses it")
    await evaluation.close()


run("verifiers", main)
