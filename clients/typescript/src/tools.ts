/**
 * The tools of an agent, for frameworks that have their own idea of a tool: names, words and answers
 * are those that MCP clients get. Refusals and errors are answers too: a model can act on what it is
 * told, and not on an exception.
 */
import type { AgentClient } from "./client.js";
import { RequestFailed, ServiceError, UnexpectedAnswer } from "./errors.js";
import { TOOLS, type ToolName } from "./generated/tools.js";
import type { Decision, Transaction } from "./generated/types.js";

export interface AgentTool {
  name: ToolName;
  description: string;
  /** JSON Schema of its arguments. */
  inputSchema: Record<string, unknown>;
  call(given: Record<string, unknown>): Promise<Record<string, unknown>>;
}

// For how long the same method, URL, body and credentials are the same purchase, where the model
// gives no key.
const SAME_SECONDS = 600;

export function agentTools(agent: AgentClient): AgentTool[] {
  return TOOLS.map((tool) => ({
    ...tool,
    async call(given) {
      // Models often send null for an argument that they leave out.
      const present = Object.fromEntries(
        Object.entries(given).filter(([, value]) => value !== null),
      );
      try {
        const own = await agent.ownId();
        if ((present["agentId"] ?? own) !== own) return refused("not_found", "agentId", "No such agent.");
        return await CALLS[tool.name](agent, present);
      } catch (problem) {
        if (problem instanceof RequestFailed) return { error: failure(problem) };
        throw problem;
      }
    },
  }));
}

// The service checks what a model sends, and says everything that is wrong at once.
type Call = (agent: AgentClient, given: any) => Promise<Record<string, unknown>>;

const CALLS: Record<ToolName, Call> = {
  get_budget: async (agent) => {
    // They may be long, and a model reads every word each time.
    const { allowlist: _, limits: __, ...budget } = await agent.budget();
    return budget;
  },
  preview_spend: async (agent, { agentId: _, ...given }) => {
    const { status, rejectCode, decision } = await agent.preview(given);
    return { status, rejectCode, ...decided(decision) };
  },
  spend: async (agent, { agentId: _, idempotencyKey, waitSeconds, ...given }) => {
    // Not every framework holds a model to the schema, and the client would make a key of its own:
    // another one at each try, and so another payment.
    if (typeof idempotencyKey !== "string") {
      const needed = "idempotencyKey is required: one for each purchase, the same at every retry.";
      return refused("validation_error", "idempotencyKey", needed);
    }
    const spent = await agent.spend(given, { idempotencyKey, wait: waitSeconds });
    return { ...listed(spent), ...decided(spent.decision) };
  },
  buy: async (agent, { agentId: _, idempotencyKey = null, waitSeconds, ...given }) => {
    const sameWithin = idempotencyKey === null ? SAME_SECONDS : undefined;
    const bought = await agent.buy(given, {
      idempotencyKey,
      wait: waitSeconds,
      ...(sameWithin === undefined ? {} : { sameWithin }),
    });
    const { id, status, url, amount, rejectCode, failureCode, problem, transactionId } = bought;
    const { response, decision, createdAt } = bought;
    return {
      ...{ id, status, url, amount, rejectCode, failureCode, problem, transactionId, createdAt },
      response: response && {
        status: response.status,
        contentType: response.headers["content-type"] ?? null,
        body: response.body,
        encoding: response.encoding,
        truncated: response.truncated,
      },
      decision: decision && decided(decision),
    };
  },
  list_transactions: async (agent, { agentId: _, ...given }) => {
    const { data, nextCursor } = await agent.transactions({ limit: 20, ...given });
    return { transactions: data.map(listed), nextCursor };
  },
};

function listed(spend: Transaction): Record<string, unknown> {
  const { id, status, rejectCode, amount, currency, recipient, memo, createdAt } = spend;
  const { settledAt, signature, expiresAt, decisionReason } = spend;
  return {
    ...{ id, status, rejectCode, amount, currency, recipient, memo, createdAt },
    ...{ settledAt, signature, expiresAt, decisionReason },
  };
}

/** What a refused agent needs to know: what would pass, when, and which rules failed. */
function decided(decision: Decision) {
  const { maxAmountNow, maxWithoutApproval, remainingToday, retryAt, checks } = decision;
  const failedChecks = checks
    .filter(({ outcome }) => outcome === "fail")
    .map(({ rule, limit, observed }) => ({ rule, limit, observed }));
  return { maxAmountNow, maxWithoutApproval, remainingToday, retryAt, failedChecks };
}

/** As the service would say it; nothing was sent. */
function refused(code: string, param: string, message: string): Record<string, unknown> {
  return { error: { code, message, details: [{ param, message }], retryable: false } };
}

function failure(problem: RequestFailed): Record<string, unknown> {
  // What a proxy answers says nothing about what the service did.
  if (!(problem instanceof ServiceError) || problem instanceof UnexpectedAnswer) {
    const again = " Call again with the same idempotencyKey: it is paid once.";
    return { code: "unavailable", message: problem.message + again, retryable: true };
  }
  const { code, message, details, retryable, retryAfter } = problem;
  return { code, message, details, retryable, retryAfterSeconds: retryAfter };
}
