"""Agents, unchanged from their packages, through one address: mini-swe-agent and openai-agents over OpenAI's chats, and the
tool runner of Anthropic's client over Messages. Each names its session by its API key, which is all that it can set.
"""

import argparse
import asyncio
import json
import os
import tempfile

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_CONFIGURED", "true")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

MODEL = "tiny"
GROUP = "task"


def key(session: str) -> str:
    return f"SESSION:{session};GROUP:{GROUP}"


def swe_agent(url: str) -> str:
    """Ten commands, one of which fails; returns how the agent ended."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    model = LitellmModel(
        model_name=f"openai/{MODEL}",
        cost_tracking="ignore_errors",
        model_kwargs={"api_base": f"{url}/v1", "api_key": key("swe"), "temperature": 0, "max_tokens": 512},
    )
    with tempfile.TemporaryDirectory() as folder:
        agent = DefaultAgent(
            model,
            LocalEnvironment(cwd=folder),
            system_template="Work with bash.",
            instance_template="{{task}}",
            step_limit=20,
        )
        return agent.run("count the files")["exit_status"]


def openai_agents(url: str, cut_url: str) -> list[str]:
    """A run with a tool that fails, two branches from its first turn, a compacted history, and a connection that is cut."""
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def look_up(city: str) -> str:
        """The weather of a city."""
        if city == "nowhere":
            raise ValueError("there is no such city")
        return f"sunny in {city}"

    def agent(session: str, address: str = url) -> Agent:
        client = AsyncOpenAI(base_url=f"{address}/v1", api_key=key(session), max_retries=3)
        return Agent(
            name="weather",
            instructions="Use the tool.",
            tools=[look_up],
            model=OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
            model_settings=ModelSettings(temperature=0, max_tokens=512),
        )

    async def runs() -> list[str]:
        first = await Runner.run(agent("branches"), "weather?")
        history = first.to_input_list()
        ends = [str(first.final_output)]
        for question in ("and tomorrow?", "and yesterday?"):
            more = [*history, {"role": "user", "content": question}]
            ends.append(str((await Runner.run(agent("branches"), more)).final_output))
        compact = [{"role": "user", "content": "Summary: it was sunny. Go on."}]
        ends.append(str((await Runner.run(agent("branches"), compact)).final_output))
        ends.append(str((await Runner.run(agent("cut", cut_url), "weather?")).final_output))
        return ends

    return asyncio.run(runs())


def anthropic_runner(url: str) -> tuple[int, str]:
    """Turns of the tool runner, and the last one's reason; then the same conversation as a stream."""
    from anthropic import Anthropic, beta_tool

    @beta_tool
    def read_file(path: str) -> str:
        """Reads a file.

        Args:
            path: its name
        """
        return f"content of {path}"

    client = Anthropic(base_url=url, api_key=key("messages"), max_retries=2)
    ask = [{"role": "user", "content": "read it"}]
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=512, tools=[read_file], messages=ask
    )
    turns = list(runner)
    streaming = Anthropic(base_url=url, api_key=key("streamed"), max_retries=2)
    with streaming.messages.stream(model=MODEL, max_tokens=512, messages=ask) as stream:
        said = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert [block.text for block in whole.content] == [said], (whole, said)
    count = client.messages.count_tokens(model=MODEL, messages=ask).input_tokens
    used = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert count == used, (count, whole.usage)
    return len(turns), str(turns[-1].stop_reason)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--cut", required=True, help="the same server, through connections that are cut")
    options = parser.parse_args()
    turns, reason = anthropic_runner(options.server)
    print(
        json.dumps(
            {
                "swe": swe_agent(options.server),
                "openai": openai_agents(options.server, options.cut),
                "anthropic": [turns, reason],
            }
        )
    )


if __name__ == "__main__":
    main()
