// An agent of LangGraph that buys. Its model is scripted: put a real one in its place.
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import { MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { ToolNode, toolsCondition } from "@langchain/langgraph/prebuilt";
import { Bursar } from "bursar";
import { langchainTools } from "bursar/langchain";
import { decide } from "./scripted.mjs";

class ScriptedModel extends BaseChatModel {
  _llmType() {
    return "scripted";
  }

  bindTools() {
    return this;
  }

  async _generate(messages) {
    const answers = messages.filter(ToolMessage.isInstance).map(({ text }) => JSON.parse(text));
    const step = decide(answers);
    const message =
      typeof step === "string"
        ? new AIMessage(step)
        : new AIMessage({ content: "", tool_calls: [{ ...step, id: `call_${answers.length}` }] });
    return { generations: [{ text: message.text, message }] };
  }
}

const tools = langchainTools(new Bursar().agent());
const model = new ScriptedModel({}).bindTools(tools);
const graph = new StateGraph(MessagesAnnotation)
  .addNode("model", async ({ messages }) => ({ messages: [await model.invoke(messages)] }))
  .addNode("tools", new ToolNode(tools))
  .addEdge(START, "model")
  .addConditionalEdges("model", toolsCondition)
  .addEdge("tools", "model")
  .compile();
const question = new HumanMessage("What is the weather in Lisbon?");
const { messages } = await graph.invoke({ messages: [question] });
console.log(messages.at(-1).text);
