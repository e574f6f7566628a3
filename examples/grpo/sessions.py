"""Rollouts of an agent: each response is a session of two chat turns, and TRL trains on its trajectory.

The agent knows messages alone. What the trainer learns from are the ids and logprobs that the sidecar recorded
(`GET /v1/sessions`, docs/AGENTS.md): nothing is tokenized here.
"""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from urllib.parse import quote, urlencode

AGAIN = {"role": "user", "content": "total 2 3"}
USER = "<|user|>"
ASSISTANT = "<|assistant|>"

Turn = dict[str, str]


def call(url: str, body: dict | None = None, key: str = "none") -> dict:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=600) as answer:
        return json.load(answer)


class Sessions:
    """TRL's `rollout_func`: prompts in, ids, logprobs and a mask of what the model drew out."""

    def __init__(self, server: str, max_tokens: int) -> None:
        self.server = server
        self.max_tokens = max_tokens
        self.numbers = count()

    def __call__(self, prompts: list[str], _trainer: object) -> dict[str, list]:
        names = [(f"agent-{next(self.numbers)}", prompt) for prompt in prompts]
        with ThreadPoolExecutor(len(names)) as agents:
            list(agents.map(self.converse, names))
        trajectories = [self.trajectory(name, prompt) for name, prompt in names]
        first = [segment["loss_mask"].index(1) for segment in trajectories]

        def after(field: str) -> list[list]:
            return [segment[field][at:] for segment, at in zip(trajectories, first, strict=True)]

        return {
            "prompt_ids": [segment["token_ids"][:at] for segment, at in zip(trajectories, first, strict=True)],
            "completion_ids": after("token_ids"),
            # What the model did not draw is masked; its logprobs count for nothing.
            "logprobs": [[logprob or 0.0 for logprob in row] for row in after("logprobs")],
            "env_mask": after("loss_mask"),
        }

    def converse(self, session: tuple[str, str]) -> None:
        name, prompt = session
        key = f"SESSION:{name};GROUP:{prompt}"
        messages: list[Turn] = [{"role": "user", "content": prompt.removeprefix(USER).removesuffix(ASSISTANT)}]
        for news in ([], [AGAIN]):
            messages += news
            body = {"messages": messages, "max_tokens": self.max_tokens // 2, "temperature": 1.0}
            answer = call(f"{self.server}/v1/chat/completions", body, key)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    def trajectory(self, name: str, group: str) -> dict:
        where = f"{self.server}/v1/sessions/{quote(name, safe='')}?{urlencode({'group': group})}"
        session = call(where)
        if not session["is_complete"] or len(session["segments"]) != 1 or len(session["turns"]) != 2:
            raise RuntimeError(f"session {name} is not whole: {session['incomplete_because']}, {session['turns']}")
        return session["segments"][0]
