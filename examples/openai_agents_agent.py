"""An agent of the OpenAI Agents SDK that buys. Its model is scripted: put a real one there."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from scripted import Call, decide

from bursar.mcp.openai_agents import openai_tools
from bursar.mcp.toolkit import Toolkit


class ScriptedModel(Model):
    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any):
        said = [item for item in input if isinstance(item, dict)]
        answers = [
            json.loads(item["output"])
            for item in said
            if item.get("type") == "function_call_output"
        ]
        step = decide(answers)
        if isinstance(step, Call):
            made = ResponseFunctionToolCall(
                type="function_call",
                name=step.name,
                arguments=json.dumps(step.arguments),
                call_id=f"call_{len(answers)}",
            )
        else:
            text = ResponseOutputText(type="output_text", text=step, annotations=[])
            made = ResponseOutputMessage(
                id="1", type="message", role="assistant", status="completed", content=[text]
            )
        return ModelResponse(output=[made], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        # The SDK wants it of every model; `Runner.run` asks for whole answers only.
        raise TypeError("a scripted model answers at once")


async def main() -> None:
    async with Toolkit() as toolkit:
        agent = Agent(name="shopper", model=ScriptedModel(), tools=openai_tools(toolkit))
        question = "What is the weather in Lisbon?"
        done = await Runner.run(agent, question, run_config=RunConfig(tracing_disabled=True))
        print(done.final_output)


asyncio.run(main())
