"""verl: an agent-loop manager whose LLM client asks a Foretoken sidecar in place of verl's own servers.

    FORETOKEN_URL=http://sidecar:8000
    actor_rollout_ref.rollout.agent.agent_loop_manager_class=foretoken_vllm.verl.ForetokenAgentLoopManager

verl's workers, agent loops and clients are unmodified: only what a client acquires as its server is another.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop import AgentLoopManager
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput

from .verl_server import SidecarHandle, SidecarServer, sidecar_url


class ForetokenLLMClient(FullyAsyncLLMServerClient):  # type: ignore[misc,unused-ignore]
    """Continues a response that was aborted, as verl's own does, from the tokens that it has."""

    def __init__(self, config: Any, url: str) -> None:
        super().__init__(config=config)
        rollout = config.actor_rollout_ref.rollout
        response_tokens = int(rollout.response_length)
        whole_tokens = int(rollout.prompt_length) + response_tokens
        self._server = SidecarServer(url, TokenOutput, response_tokens=response_tokens, whole_tokens=whole_tokens)

    async def _acquire_server(self, request_id: str, **_extra: Any) -> tuple[str, SidecarHandle]:
        return self._server.url, self._server.for_session(str(request_id))

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """The sidecar balances its engines itself."""


class ForetokenAgentLoopManager(AgentLoopManager):  # type: ignore[misc,unused-ignore]
    """Hands its workers the sidecar's client; the one that the trainer made is left alone."""

    def __init__(self, config: Any, llm_client: Any = None, *arguments: Any, **options: Any) -> None:
        super().__init__(config, ForetokenLLMClient(config, sidecar_url()), *arguments, **options)
