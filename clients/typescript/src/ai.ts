/** Bursar's tools for the Vercel AI SDK: `generateText({ tools: aiTools(new Bursar().agent()), … })`. */
import { jsonSchema, tool, type Tool } from "ai";
import type { AgentClient } from "./client.js";
import { agentTools } from "./tools.js";

type Fields = Record<string, unknown>;

export function aiTools(agent: AgentClient): Record<string, Tool<Fields, Fields>> {
  return Object.fromEntries(
    agentTools(agent).map(({ name, description, inputSchema, call }) => [
      name,
      tool({ description, inputSchema: jsonSchema<Fields>(inputSchema), execute: call }),
    ]),
  );
}
