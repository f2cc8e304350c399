"""An agent of Pydantic AI that buys. Its model is scripted: put a real one in its place."""

import asyncio
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import FunctionModel
from scripted import Call, decide

from bursar.mcp.pydantic_ai import pydantic_tools
from bursar.mcp.toolkit import Toolkit


async def script(messages: list[ModelMessage], _: Any) -> ModelResponse:
    parts = [part for message in messages for part in message.parts]
    answers: list[Any] = [part.content for part in parts if isinstance(part, ToolReturnPart)]
    step = decide(answers)
    if isinstance(step, Call):
        return ModelResponse(parts=[ToolCallPart(step.name, step.arguments)])
    return ModelResponse(parts=[TextPart(step)])


async def main() -> None:
    async with Toolkit() as toolkit:
        agent = Agent(FunctionModel(script), tools=pydantic_tools(toolkit))
        done = await agent.run("What is the weather in Lisbon?")
        print(done.output)


asyncio.run(main())
