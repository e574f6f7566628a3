"""The part of the verl package that needs no verl: what its client takes for an engine, over HTTP."""

import asyncio
import pickle
from types import SimpleNamespace

from driver import MODEL, Driver, check, prompts, run
from foretoken_vllm.verl_server import SidecarError, SidecarServer
from transformers import AutoTokenizer

SIBLINGS = 4
RESPONSE_TOKENS = 48


async def main(driver: Driver) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    text = f"<|user|>{prompts('collatz', 1)[0]}<|assistant|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    made = SidecarServer(driver.server, SimpleNamespace, response_tokens=RESPONSE_TOKENS, whole_tokens=4096)
    server = pickle.loads(pickle.dumps(made))

    async def respond(index: int, **fields: object) -> SimpleNamespace:
        sampling = {"temperature": 1.0, "top_k": -1, "logprobs": True, "repetition_penalty": 1.0}
        handle = server.for_session(f"trajectory-{index}")
        return await handle.generate.remote(
            request_id=f"request-{index}", prompt_ids=ids, sampling_params=sampling, image_data=None, **fields
        )

    group = await asyncio.gather(*(respond(index, priority=index) for index in range(SIBLINGS)))
    for output in group:
        check(0 < len(output.token_ids) <= RESPONSE_TOKENS, f"{len(output.token_ids)} tokens")
        check(len(output.token_ids) == len(output.log_probs), "logprobs are missing")
        check(output.stop_reason == "completed", output.stop_reason)
    driver.did(f"{SIBLINGS} siblings through a handle that was pickled, as Ray hands it on")

    try:
        await respond(9, video_data=[1])
        raise AssertionError("a video was taken")
    except SidecarError as error:
        check("video_data" in str(error), str(error))
    try:
        await server.for_session("x").generate.remote(request_id="", prompt_ids=ids, sampling_params={"top_p": 7})
        raise AssertionError("top_p 7 was taken")
    except SidecarError as error:
        check("top_p" in str(error), str(error))
    driver.did("what a sidecar cannot do is an error that names it")
    await server._session().close()


run("verl_server", main)
