"""An agent of LangGraph that buys. Its model is scripted: put a real one in its place."""

import asyncio
import json
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from scripted import Call, decide

from bursar.mcp.langchain import langchain_tools
from bursar.mcp.toolkit import Toolkit


class ScriptedModel(BaseChatModel):
    _llm_type = "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> "ScriptedModel":
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        answers = [json.loads(m.text) for m in messages if isinstance(m, ToolMessage)]
        step = decide(answers)
        if isinstance(step, Call):
            call = ToolCall(name=step.name, args=step.arguments, id=f"call_{len(answers)}")
            message = AIMessage("", tool_calls=[call])
        else:
            message = AIMessage(step)
        return ChatResult(generations=[ChatGeneration(message=message)])


async def main() -> None:
    async with Toolkit() as toolkit:
        tools = langchain_tools(toolkit)
        model = ScriptedModel().bind_tools(tools)

        async def think(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", think)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        question = HumanMessage("What is the weather in Lisbon?")
        done = await graph.compile().ainvoke({"messages": [question]})
        print(done["messages"][-1].text)


asyncio.run(main())
