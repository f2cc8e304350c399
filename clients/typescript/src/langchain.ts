/** Bursar's tools for LangChain and LangGraph: `langchainTools(new Bursar().agent())`. */
import { DynamicStructuredTool } from "@langchain/core/tools";
import type { AgentClient } from "./client.js";
import { agentTools } from "./tools.js";

export function langchainTools(agent: AgentClient): DynamicStructuredTool[] {
  return agentTools(agent).map(
    ({ name, description, inputSchema, call }) =>
      new DynamicStructuredTool({
        name,
        description,
        schema: inputSchema,
        func: async (given) => JSON.stringify(await call(given as Record<string, unknown>)),
      }),
  );
}
