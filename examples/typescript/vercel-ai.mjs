// An agent of the Vercel AI SDK that buys. Its model is scripted: put a real one in its place.
import { generateText, stepCountIs } from "ai";
import { MockLanguageModelV3 } from "ai/test";
import { Bursar } from "bursar";
import { aiTools } from "bursar/ai";
import { decide } from "./scripted.mjs";

const model = new MockLanguageModelV3({
  doGenerate: async ({ prompt }) => {
    const said = prompt.filter(({ role }) => role === "tool").flatMap(({ content }) => content);
    const step = decide(said.map(({ output }) => output.value));
    const text = typeof step === "string";
    const toolCallId = `call_${said.length}`;
    return {
      content: text
        ? [{ type: "text", text: step }]
        : [{ type: "tool-call", toolCallId, toolName: step.name, input: JSON.stringify(step.args) }],
      finishReason: { unified: text ? "stop" : "tool-calls", raw: undefined },
      usage: { inputTokens: { total: 0 }, outputTokens: { total: 0 } },
      warnings: [],
    };
  },
});

const { text } = await generateText({
  model,
  tools: aiTools(new Bursar().agent()),
  stopWhen: stepCountIs(8),
  prompt: "What is the weather in Lisbon?",
});
console.log(text);
