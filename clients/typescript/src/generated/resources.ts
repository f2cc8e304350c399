// Written by `make reference` from the OpenAPI document. Change nothing here.

import { Resource } from "../endpoint.js";
import type {
  Options,
  PostOptions,
  ReadOptions,
  WaitOptions,
} from "../endpoint.js";
import type { Pages } from "../pages.js";
import type {
  AcceptPin,
  Agent,
  AgentChange,
  Backtest,
  Balance,
  Budget,
  BudgetChange,
  BudgetView,
  BulkChange,
  Continue,
  CreatedKey,
  CreatedWebhook,
  Delivery,
  Deposit,
  Draft,
  Event,
  ForgetPin,
  Funding,
  Key,
  LogLine,
  Me,
  NewAgent,
  NewBacktest,
  NewBudget,
  NewKey,
  NewPurchase,
  NewWebhook,
  NewWithdrawal,
  Pin,
  PolicyChange,
  PolicyVersion,
  Preview,
  Purchase,
  Reason,
  Recipient,
  RecipientAddress,
  Redelivery,
  RedeliveryRequest,
  ResumeRequest,
  Resumed,
  Spend,
  Statistics,
  StopRequest,
  Stopped,
  Transaction,
  Wallet,
  Webhook,
  WebhookChange,
  Withdrawal,
} from "./types.js";

export interface AgentsListQuery {
  /** Only agents in this state; `all` is the default. */
  status?: "all" | "active" | "paused" | "terminated";
  /** Only agents directly under this budget. */
  budgetId?: string;
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
  /** Only agents with these pairs: `metadata[team]=search` or `metadata={"team":"search"}`. */
  metadata?: Record<string, string>;
}

export interface AgentsUpdateManyQuery {
  /** Only agents in this state; `all` is the default, and no filter. */
  status?: "all" | "active" | "paused";
  /** Only agents directly under this budget. */
  budgetId?: string;
  /** Only agents with these pairs: `metadata[team]=search` or `metadata={"team":"search"}`. */
  metadata?: Record<string, string>;
}

export interface AgentsPoliciesQuery {
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface WalletsWithdrawalsQuery {
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface WalletsExportWithdrawalsQuery {
  /** Only this agent's. */
  agentId?: string;
  /** Created at or after this date or time. */
  from?: string | Date;
  /** Created before this time; a bare date includes that whole day. */
  to?: string | Date;
}

export interface WalletsDepositsQuery {
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface WalletsExportDepositsQuery {
  /** Only this agent's. */
  agentId?: string;
  /** Created at or after this date or time. */
  from?: string | Date;
  /** Created before this time; a bare date includes that whole day. */
  to?: string | Date;
}

export interface BudgetsListQuery {
  /** Only those directly below this budget. */
  parentId?: string;
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface PurchasesListQuery {
  /** Only this agent's. */
  agentId?: string;
  /** Only those in this state; `all` is the default. */
  status?:
    | "all"
    | "open"
    | "free"
    | "failed"
    | "rejected"
    | "pending"
    | "presented"
    | "paid"
    | "unpaid";
  /** Only those from this host. */
  host?: string;
  /** Created at or after this date or time. */
  from?: string | Date;
  /** Created before this time; a bare date includes that whole day. */
  to?: string | Date;
  /** Rows per page; at most 200. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface PinsListQuery {
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface TransactionsListQuery {
  /** Only this agent's. */
  agentId?: string;
  /** Only those in this state; `all` is the default. */
  status?: "all" | "pending" | "approved" | "settled" | "rejected";
  /** Created at or after this date or time. */
  from?: string | Date;
  /** Created before this time; a bare date includes that whole day. */
  to?: string | Date;
  /** Only those to this hostname or address. */
  recipient?: string;
  /** Settled at or after this date or time. */
  settledFrom?: string | Date;
  /** Settled before this time; a bare date is included. */
  settledTo?: string | Date;
  /** Rows per page; at most 200. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface TransactionsStatsQuery {
  /** Only this agent's. */
  agentId?: string;
  /** Created at or after this date or time. */
  from?: string | Date;
  /** Created before this time; a bare date includes that whole day. */
  to?: string | Date;
}

export interface TransactionsExportQuery {
  /** Only this agent's. */
  agentId?: string;
  /** Only those in this state; `all` is the default. */
  status?: "all" | "pending" | "approved" | "settled" | "rejected";
  /** Created at or after this date or time. */
  from?: string | Date;
  /** Created before this time; a bare date includes that whole day. */
  to?: string | Date;
  /** Only those to this hostname or address. */
  recipient?: string;
  /** Settled at or after this date or time. */
  settledFrom?: string | Date;
  /** Settled before this time; a bare date is included. */
  settledTo?: string | Date;
}

export interface WebhooksListQuery {
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface WebhooksDeliveriesQuery {
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface EventsListQuery {
  /** Only events of this type. */
  type?:
    | "transaction.settled"
    | "transaction.rejected"
    | "wallet.low_balance"
    | "wallet.depleted"
    | "agent.policy_updated"
    | "agent.thawed"
    | "agent.paused"
    | "agent.resumed"
    | "agent.terminated"
    | "account.stopped"
    | "account.resumed"
    | "transaction.pending"
    | "transaction.approved"
    | "wallet.funded"
    | "withdrawal.settled"
    | "withdrawal.failed"
    | "purchase.paid"
    | "purchase.unpaid"
    | "purchase.failed"
    | "recipient.set"
    | "recipient.deleted"
    | "pin.accepted"
    | "pin.forgotten"
    | "key.created"
    | "key.revoked"
    | "webhook.created"
    | "webhook.changed"
    | "webhook.secret_rotated"
    | "webhook.deleted"
    | "webhook.test";
  /** Only events about this agent. */
  agentId?: string;
  /** Created at or after this date or time. */
  from?: string | Date;
  /** Created before this time; a bare date includes that whole day. */
  to?: string | Date;
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface KeysListQuery {
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface RecipientsListQuery {
  /** Only hostnames that contain this. */
  hostname?: string;
  /** Only those that are paid at this address. */
  address?: string;
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface AuditLogListQuery {
  /** Only what this key did, or `operator`. */
  actor?: string;
  /** Only this action, e.g. `agent.changed`. */
  action?: string;
  /** Only what was done to this id or hostname. */
  subject?: string;
  /** Done at or after this date or time. */
  from?: string | Date;
  /** Done before this time; a bare date includes that whole day. */
  to?: string | Date;
  /** Rows per page; at most 100. */
  limit?: number;
  /** `nextCursor` of the page before. */
  after?: string;
}

export interface AuditLogExportQuery {
  /** Only what this key did, or `operator`. */
  actor?: string;
  /** Only this action, e.g. `agent.changed`. */
  action?: string;
  /** Only what was done to this id or hostname. */
  subject?: string;
  /** Done at or after this date or time. */
  from?: string | Date;
  /** Done before this time; a bare date includes that whole day. */
  to?: string | Date;
}

export class AgentsResource extends Resource {
  /**
   * Create an agent. Makes the agent, version 1 of its policy and its wallet. Scopes: `admin`.
   * Counts as Agent Management.
   */
  create(
    body: NewAgent,
    options: PostOptions = {},
  ): Promise<Agent> {
    return this.send("POST", "/v1/agents", { body, options });
  }

  /**
   * List agents. Newest first. An agent key sees only its own agent. Scopes: `admin`, `agent`,
   * `approver`, `read`. Counts as Agent Reads.
   */
  list(
    query: AgentsListQuery = {},
    options: Options = {},
  ): Pages<Agent> {
    return this.pages("/v1/agents", { query, options });
  }

  /** Get an agent. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Agent Reads. */
  get(
    id: string,
    options: Options = {},
  ): Promise<Agent> {
    return this.send("GET", `/v1/agents/${this.segment(id)}`, { options });
  }

  /**
   * Change an agent. One atomic change, in force for every spend requested afterwards. The policy's
   * version rises by one when, and only when, the policy really changes. An approver may only pause
   * the agent or freeze its policy. Scopes: `admin`, `approver`. Counts as Agent Management.
   */
  update(
    id: string,
    body: AgentChange = {},
    options: Options = {},
  ): Promise<Agent> {
    return this.send("PATCH", `/v1/agents/${this.segment(id)}`, { body, options });
  }

  /**
   * Change many agents. The change of one agent, on every agent that matches and is not terminated,
   * in one commit. At least one filter is needed; `status=all` is none. More than 1,000 that match:
   * 409, and nothing is changed. Scopes: `admin`, `approver`. Counts as Agent Management.
   */
  updateMany(
    body: AgentChange = {},
    query: AgentsUpdateManyQuery = {},
    options: Options = {},
  ): Promise<BulkChange> {
    return this.send("PATCH", "/v1/agents", { body, query, options });
  }

  /**
   * Terminate an agent. For good; doing it again changes nothing. Its keys stop working and pending
   * spends are rejected. The wallet stays readable and can still be withdrawn from. Scopes:
   * `admin`. Counts as Agent Management.
   */
  terminate(
    id: string,
    options: Options = {},
  ): Promise<Agent> {
    return this.send("DELETE", `/v1/agents/${this.segment(id)}`, { options });
  }

  /**
   * List the versions of an agent's policy. Scopes: `admin`, `agent`, `approver`, `read`. Counts as
   * Agent Reads.
   */
  policies(
    id: string,
    query: AgentsPoliciesQuery = {},
    options: Options = {},
  ): Pages<PolicyVersion> {
    return this.pages(`/v1/agents/${this.segment(id)}/policies`, { query, options });
  }

  /**
   * Get what an agent may spend now. `maxAmountNow` is the most that passes in one spend to an
   * allowed recipient; `maxWithoutApproval` is how much of it needs no person. `spentTodayBy`
   * splits `spentToday` into what is paid, what is on its way and what waits for a person. Scopes:
   * `admin`, `agent`, `approver`, `read`. Counts as Agent Reads.
   */
  budget(
    id: string,
    options: Options = {},
  ): Promise<Budget> {
    return this.send("GET", `/v1/agents/${this.segment(id)}/budget`, { options });
  }

}

export class WalletsResource extends Resource {
  /**
   * Get an agent's wallet. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Wallet
   * Operations.
   */
  get(
    agentId: string,
    options: Options = {},
  ): Promise<Wallet> {
    return this.send("GET", `/v1/wallets/${this.segment(agentId)}`, { options });
  }

  /**
   * Get a wallet's balance. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Wallet
   * Operations.
   */
  balance(
    agentId: string,
    options: Options = {},
  ): Promise<Balance> {
    return this.send("GET", `/v1/wallets/${this.segment(agentId)}/balance`, { options });
  }

  /**
   * Withdraw from a wallet. Reserves at once and pays on the chain. Counts towards no cap and needs
   * no allowlist entry; limited only by what is available. Scopes: `admin`. Counts as Wallet
   * Operations.
   */
  withdraw(
    agentId: string,
    body: NewWithdrawal,
    options: PostOptions = {},
  ): Promise<Withdrawal> {
    return this.send("POST", `/v1/wallets/${this.segment(agentId)}/withdraw`, { body, options });
  }

  /**
   * List a wallet's withdrawals. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Wallet
   * Operations.
   */
  withdrawals(
    agentId: string,
    query: WalletsWithdrawalsQuery = {},
    options: Options = {},
  ): Pages<Withdrawal> {
    return this.pages(`/v1/wallets/${this.segment(agentId)}/withdrawals`, { query, options });
  }

  /**
   * Export withdrawals as CSV. Of all wallets or one; cells that a spreadsheet would run are
   * quoted. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Wallet Operations.
   */
  exportWithdrawals(
    query: WalletsExportWithdrawalsQuery = {},
    options: Options = {},
  ): AsyncIterable<Uint8Array> {
    return this.download("/v1/withdrawals/export", { query, options });
  }

  /**
   * Get a withdrawal. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Wallet Operations.
   */
  getWithdrawal(
    id: string,
    options: Options = {},
  ): Promise<Withdrawal> {
    return this.send("GET", `/v1/withdrawals/${this.segment(id)}`, { options });
  }

  /**
   * List a wallet's deposits. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Wallet
   * Operations.
   */
  deposits(
    agentId: string,
    query: WalletsDepositsQuery = {},
    options: Options = {},
  ): Pages<Deposit> {
    return this.pages(`/v1/wallets/${this.segment(agentId)}/deposits`, { query, options });
  }

  /**
   * Export deposits as CSV. Of all wallets or one; cells that a spreadsheet would run are quoted.
   * Scopes: `admin`, `agent`, `approver`, `read`. Counts as Wallet Operations.
   */
  exportDeposits(
    query: WalletsExportDepositsQuery = {},
    options: Options = {},
  ): AsyncIterable<Uint8Array> {
    return this.download("/v1/deposits/export", { query, options });
  }

  /**
   * Fund a test wallet. Mints test USDC on the test chain; answers when the deposit is credited, or
   * after 10 s as it stands. Test keys only. Scopes: `admin`. Counts as Wallet Operations.
   */
  fund(
    agentId: string,
    body: Funding,
    options: PostOptions = {},
  ): Promise<Deposit> {
    return this.send("POST", `/v1/test/wallets/${this.segment(agentId)}/fund`, { body, options });
  }

}

export class SpendResource extends Resource {
  /**
   * Spend. Decides the spend and reserves its amount in one commit. **A refusal is an answer, not
   * an error**: 201 with `status` `rejected` and a `rejectCode`; read `data.status`. With `Prefer:
   * wait=N` (at most 30) the answer comes when the spend is settled or rejected, or after N seconds
   * as it stands then. Scopes: `admin`, `agent`. Counts as Spend Authorise.
   */
  authorise(
    body: Spend,
    options: WaitOptions = {},
  ): Promise<Transaction> {
    return this.send("POST", "/v1/spend/authorise", { body, options });
  }

  /**
   * Preview a spend. What authorise would answer now. Nothing is stored, reserved or fired, so an
   * `Idempotency-Key` is ignored. Scopes: `admin`, `agent`. Counts as Spend Authorise.
   */
  preview(
    body: Spend,
    options: PostOptions = {},
  ): Promise<Preview> {
    return this.send("POST", "/v1/spend/preview", { body, options });
  }

}

export class BudgetsResource extends Resource {
  /**
   * Create a budget. Put agents under it with `budgetId`. A spend must pass every budget above it.
   * Scopes: `admin`. Counts as Agent Management.
   */
  create(
    body: NewBudget,
    options: PostOptions = {},
  ): Promise<BudgetView> {
    return this.send("POST", "/v1/budgets", { body, options });
  }

  /**
   * List budgets. Newest first, with what was used in each window that is running. Scopes: `admin`,
   * `approver`, `read`. Counts as Agent Reads.
   */
  list(
    query: BudgetsListQuery = {},
    options: Options = {},
  ): Pages<BudgetView> {
    return this.pages("/v1/budgets", { query, options });
  }

  /** Get a budget. Scopes: `admin`, `approver`, `read`. Counts as Agent Reads. */
  get(
    id: string,
    options: Options = {},
  ): Promise<BudgetView> {
    return this.send("GET", `/v1/budgets/${this.segment(id)}`, { options });
  }

  /**
   * Change a budget. In force for every spend requested afterwards. Its parent never changes.
   * Scopes: `admin`. Counts as Agent Management.
   */
  update(
    id: string,
    body: BudgetChange = {},
    options: Options = {},
  ): Promise<BudgetView> {
    return this.send("PATCH", `/v1/budgets/${this.segment(id)}`, { body, options });
  }

  /**
   * Delete a budget. 409 while an agent or a budget is under it, or a spend was decided under it.
   * Scopes: `admin`. Counts as Agent Management.
   */
  delete(
    id: string,
    options: Options = {},
  ): Promise<void> {
    return this.send("DELETE", `/v1/budgets/${this.segment(id)}`, { options });
  }

}

export class BacktestsResource extends Resource {
  /**
   * Try a policy on the past. Replays recorded requests in the order in which they were decided, as
   * they were and as the draft would have it, with windows, budgets, deposits and releases. A
   * worker does it; read it until `status` is `done`. It can be read for 30 days. `from` is not
   * before the day from which on refusals are kept. Scopes: `admin`. Counts as Agent Management.
   */
  create(
    body: NewBacktest = {},
    options: PostOptions = {},
  ): Promise<Backtest> {
    return this.send("POST", "/v1/backtests", { body, options });
  }

  /**
   * Get a backtest. `progress` is in percent. The first 1,000 changes; all of them are in the
   * export. Scopes: `admin`, `approver`, `read`. Counts as Agent Reads.
   */
  get(
    id: string,
    options: Options = {},
  ): Promise<Backtest> {
    return this.send("GET", `/v1/backtests/${this.segment(id)}`, { options });
  }

  /**
   * Export the changes of a backtest as CSV. What would have been decided differently, up to
   * 100,000 rows. Scopes: `admin`, `approver`, `read`. Counts as Agent Reads.
   */
  export(
    id: string,
    options: Options = {},
  ): AsyncIterable<Uint8Array> {
    return this.download(`/v1/backtests/${this.segment(id)}/export`, { options });
  }

}

export class DraftsResource extends Resource {
  /**
   * Draft a policy. In place of the agent's draft, if it has one. It is in force nowhere: a worker
   * decides every request from now on a second time, as the draft would have it, within seconds.
   * Scopes: `admin`. Counts as Agent Management.
   */
  put(
    id: string,
    body: PolicyChange = {},
    options: Options = {},
  ): Promise<Draft> {
    return this.send("PUT", `/v1/agents/${this.segment(id)}/policy/draft`, { body, options });
  }

  /**
   * Get the draft of a policy. With the last 100 requests that it would have decided differently.
   * For totals, days and rules run a backtest of the same change. Scopes: `admin`, `approver`,
   * `read`. Counts as Agent Reads.
   */
  get(
    id: string,
    options: Options = {},
  ): Promise<Draft> {
    return this.send("GET", `/v1/agents/${this.segment(id)}/policy/draft`, { options });
  }

  /** Drop the draft of a policy. Scopes: `admin`. Counts as Agent Management. */
  delete(
    id: string,
    options: Options = {},
  ): Promise<void> {
    return this.send("DELETE", `/v1/agents/${this.segment(id)}/policy/draft`, { options });
  }

  /**
   * Put the draft of a policy in force. As the next version, in force for every spend requested
   * afterwards. 409 when the policy is no longer at the version that the draft changes: write the
   * draft again. Scopes: `admin`. Counts as Agent Management.
   */
  promote(
    id: string,
    options: PostOptions = {},
  ): Promise<Agent> {
    return this.send("POST", `/v1/agents/${this.segment(id)}/policy/draft/promote`, { options });
  }

}

export class PurchasesResource extends Resource {
  /**
   * Buy. Asks the seller, decides its price under the agent's policy, signs the payment once, ever,
   * and presents it. **A refusal is an answer, not an error**: read `data.status`. The
   * `Idempotency-Key` finds the purchase as it stands and never fetches or signs again. Scopes:
   * `admin`, `agent`. Counts as Spend Authorise.
   */
  create(
    body: NewPurchase,
    options: WaitOptions = {},
  ): Promise<Purchase> {
    return this.send("POST", "/v1/purchases", { body, options });
  }

  /**
   * Present the payment of a purchase again. Sends the same bytes to the same URL, to get the goods
   * whose answer was lost. Nothing is signed, so nothing can be paid twice. 409 unless it was
   * presented or paid. Scopes: `admin`, `agent`. Counts as Spend Authorise.
   */
  retry(
    id: string,
    options: WaitOptions = {},
  ): Promise<Purchase> {
    return this.send("POST", `/v1/purchases/${this.segment(id)}/retry`, { options });
  }

  /**
   * Continue a purchase that was approved. Asks the seller again and goes on if amount and payee
   * are still the approved ones; otherwise it fails with `terms_changed`, and the amount is given
   * back. 409 while nobody has approved it, and for a `paymentRequired` unless the purchase was
   * made with one: any other the service asks for itself. Scopes: `admin`, `agent`. Counts as Spend
   * Authorise.
   */
  continue(
    id: string,
    body: Continue = {},
    options: WaitOptions = {},
  ): Promise<Purchase> {
    return this.send("POST", `/v1/purchases/${this.segment(id)}/continue`, { body, options });
  }

  /**
   * List purchases. Newest first. What was sent and what came back is shown by the purchase itself.
   * Scopes: `admin`, `agent`, `approver`, `read`. Counts as Transactions.
   */
  list(
    query: PurchasesListQuery = {},
    options: Options = {},
  ): Pages<Purchase> {
    return this.pages("/v1/purchases", { query, options });
  }

  /** Get a purchase. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Transactions. */
  get(
    id: string,
    options: Options = {},
  ): Promise<Purchase> {
    return this.send("GET", `/v1/purchases/${this.segment(id)}`, { options });
  }

}

export class PinsResource extends Resource {
  /**
   * List pins. Where the origins that this account bought from are paid; newest first. Scopes:
   * `admin`, `approver`, `read`. Counts as Agent Reads.
   */
  list(
    query: PinsListQuery = {},
    options: Options = {},
  ): Pages<Pin> {
    return this.pages("/v1/pins", { query, options });
  }

  /**
   * Accept a seller's new payee. An origin that names another payee than before is refused
   * (`payee_changed`) until an admin accepts the new one. `address` must be the one in `offered`.
   * Scopes: `admin`. Counts as Agent Management.
   */
  accept(
    body: AcceptPin,
    options: PostOptions = {},
  ): Promise<Pin> {
    return this.send("POST", "/v1/pins/accept", { body, options });
  }

  /**
   * Forget a pin. The next purchase from this origin pins what it says then. Scopes: `admin`.
   * Counts as Agent Management.
   */
  forget(
    body: ForgetPin,
    options: PostOptions = {},
  ): Promise<void> {
    return this.send("POST", "/v1/pins/forget", { body, options });
  }

}

export class TransactionsResource extends Resource {
  /**
   * List transactions. Newest first. Scopes: `admin`, `agent`, `approver`, `read`. Counts as
   * Transactions.
   */
  list(
    query: TransactionsListQuery = {},
    options: Options = {},
  ): Pages<Transaction> {
    return this.pages("/v1/transactions", { query, options });
  }

  /**
   * Get a transaction. With `Prefer: wait=N` (at most 30) the answer comes when the spend is
   * settled or rejected, or after N seconds as it stands then. Scopes: `admin`, `agent`,
   * `approver`, `read`. Counts as Transactions.
   */
  get(
    id: string,
    options: ReadOptions = {},
  ): Promise<Transaction> {
    return this.send("GET", `/v1/transactions/${this.segment(id)}`, { options });
  }

  /**
   * Get statistics. From running totals: as quick at ten million transactions as at ten. Of days
   * whose refusals are forgotten (`BURSAR_REFUSALS_DAYS`) only whole ones are known: a `from` or
   * `to` within one stands for the beginning or the end of its UTC day. Scopes: `admin`, `agent`,
   * `approver`, `read`. Counts as Transactions.
   */
  stats(
    query: TransactionsStatsQuery = {},
    options: Options = {},
  ): Promise<Statistics> {
    return this.send("GET", "/v1/transactions/stats", { query, options });
  }

  /**
   * Export transactions as CSV. The filters of the list; cells that a spreadsheet would run are
   * quoted. Scopes: `admin`, `agent`, `approver`, `read`. Counts as Transactions.
   */
  export(
    query: TransactionsExportQuery = {},
    options: Options = {},
  ): AsyncIterable<Uint8Array> {
    return this.download("/v1/transactions/export", { query, options });
  }

  /**
   * Approve a pending spend. Checks everything but the threshold again under the policy as it is
   * now; if something fails, the spend stays pending and the answer is 409 naming the code. In live
   * mode the key that asked for the spend may not approve it (403); in test mode it may, unless
   * `BURSAR_TEST_SELF_APPROVAL` is `off`. Scopes: `admin`, `approver`. Counts as Transactions.
   */
  approve(
    id: string,
    body: Reason = {},
    options: PostOptions = {},
  ): Promise<Transaction> {
    return this.send("POST", `/v1/transactions/${this.segment(id)}/approve`, { body, options });
  }

  /**
   * Deny a pending spend. Its funds are available again, and its day's cap too. Scopes: `admin`,
   * `approver`. Counts as Transactions.
   */
  deny(
    id: string,
    body: Reason = {},
    options: PostOptions = {},
  ): Promise<Transaction> {
    return this.send("POST", `/v1/transactions/${this.segment(id)}/deny`, { body, options });
  }

  /**
   * Cancel a pending spend. By the key that asked for it, or an admin. It is rejected with
   * `cancelled`; its funds are available again, and its day's cap too. Scopes: `admin`, `agent`.
   * Counts as Spend Authorise.
   */
  cancel(
    id: string,
    body: Reason = {},
    options: PostOptions = {},
  ): Promise<Transaction> {
    return this.send("POST", `/v1/transactions/${this.segment(id)}/cancel`, { body, options });
  }

}

export class WebhooksResource extends Resource {
  /**
   * Register a webhook. Beta. `secret` is shown this once; a replay of the request shows null.
   * Scopes: `admin`. Counts as Webhook Management.
   */
  create(
    body: NewWebhook,
    options: PostOptions = {},
  ): Promise<CreatedWebhook> {
    return this.send("POST", "/v1/webhooks", { body, options });
  }

  /** List webhooks. Scopes: `admin`, `approver`, `read`. Counts as Webhook Management. */
  list(
    query: WebhooksListQuery = {},
    options: Options = {},
  ): Pages<Webhook> {
    return this.pages("/v1/webhooks", { query, options });
  }

  /** Get a webhook. Scopes: `admin`, `approver`, `read`. Counts as Webhook Management. */
  get(
    id: string,
    options: Options = {},
  ): Promise<Webhook> {
    return this.send("GET", `/v1/webhooks/${this.segment(id)}`, { options });
  }

  /** Change a webhook. Scopes: `admin`. Counts as Webhook Management. */
  update(
    id: string,
    body: WebhookChange = {},
    options: Options = {},
  ): Promise<Webhook> {
    return this.send("PATCH", `/v1/webhooks/${this.segment(id)}`, { body, options });
  }

  /**
   * Delete a webhook. What waits for it is dropped. Scopes: `admin`. Counts as Webhook Management.
   */
  delete(
    id: string,
    options: Options = {},
  ): Promise<void> {
    return this.send("DELETE", `/v1/webhooks/${this.segment(id)}`, { options });
  }

  /**
   * Give a webhook a new secret. Shown this once. The old one signs along for 24 hours. Scopes:
   * `admin`. Counts as Webhook Management.
   */
  rotateSecret(
    id: string,
    options: PostOptions = {},
  ): Promise<CreatedWebhook> {
    return this.send("POST", `/v1/webhooks/${this.segment(id)}/rotate-secret`, { options });
  }

  /**
   * Send a test event. A `webhook.test` event, to this webhook only. Scopes: `admin`. Counts as
   * Webhook Management.
   */
  test(
    id: string,
    options: PostOptions = {},
  ): Promise<Delivery> {
    return this.send("POST", `/v1/webhooks/${this.segment(id)}/test`, { options });
  }

  /**
   * List a webhook's deliveries. With every attempt. Kept 90 days. Only an admin key sees those
   * about keys. Scopes: `admin`, `approver`, `read`. Counts as Webhook Management.
   */
  deliveries(
    id: string,
    query: WebhooksDeliveriesQuery = {},
    options: Options = {},
  ): Pages<Delivery> {
    return this.pages(`/v1/webhooks/${this.segment(id)}/deliveries`, { query, options });
  }

}

export class EventsResource extends Resource {
  /**
   * List events. Newest first. Kept 90 days. Only an admin key sees those about keys. Scopes:
   * `admin`, `approver`, `read`. Counts as Webhook Management.
   */
  list(
    query: EventsListQuery = {},
    options: Options = {},
  ): Pages<Event> {
    return this.pages("/v1/events", { query, options });
  }

  /** Get an event. Scopes: `admin`, `approver`, `read`. Counts as Webhook Management. */
  get(
    id: string,
    options: Options = {},
  ): Promise<Event> {
    return this.send("GET", `/v1/events/${this.segment(id)}`, { options });
  }

  /** Send an event again. Scopes: `admin`. Counts as Webhook Management. */
  redeliver(
    id: string,
    body: RedeliveryRequest = {},
    options: PostOptions = {},
  ): Promise<Redelivery> {
    return this.send("POST", `/v1/events/${this.segment(id)}/redeliver`, { body, options });
  }

}

export class KeysResource extends Resource {
  /**
   * Make an API key. `key` is shown this once; a replay of the request shows null. Scopes: `admin`.
   * Counts as Agent Management.
   */
  create(
    body: NewKey,
    options: PostOptions = {},
  ): Promise<CreatedKey> {
    return this.send("POST", "/v1/keys", { body, options });
  }

  /** List API keys. Scopes: `admin`. Counts as Agent Reads. */
  list(
    query: KeysListQuery = {},
    options: Options = {},
  ): Pages<Key> {
    return this.pages("/v1/keys", { query, options });
  }

  /**
   * Revoke an API key. It stops working in every process within a second. Scopes: `admin`. Counts
   * as Agent Management.
   */
  revoke(
    id: string,
    options: Options = {},
  ): Promise<void> {
    return this.send("DELETE", `/v1/keys/${this.segment(id)}`, { options });
  }

  /**
   * Who am I. The calling key, its rate limits, and the stop of its account, if there is one.
   * Scopes: `admin`, `agent`, `approver`, `read`. Counts as Agent Reads.
   */
  me(
    options: Options = {},
  ): Promise<Me> {
    return this.send("GET", "/v1/me", { options });
  }

}

export class RecipientsResource extends Resource {
  /**
   * Set the address a hostname is paid at. In force for every spend requested afterwards. Scopes:
   * `admin`. Counts as Agent Management.
   */
  put(
    hostname: string,
    body: RecipientAddress,
    options: Options = {},
  ): Promise<Recipient> {
    return this.send("PUT", `/v1/recipients/${this.segment(hostname)}`, { body, options });
  }

  /** List the recipients directory. Scopes: `admin`, `approver`, `read`. Counts as Agent Reads. */
  list(
    query: RecipientsListQuery = {},
    options: Options = {},
  ): Pages<Recipient> {
    return this.pages("/v1/recipients", { query, options });
  }

  /** Get a directory entry. Scopes: `admin`, `approver`, `read`. Counts as Agent Reads. */
  get(
    hostname: string,
    options: Options = {},
  ): Promise<Recipient> {
    return this.send("GET", `/v1/recipients/${this.segment(hostname)}`, { options });
  }

  /** Remove a directory entry. Scopes: `admin`. Counts as Agent Management. */
  delete(
    hostname: string,
    options: Options = {},
  ): Promise<void> {
    return this.send("DELETE", `/v1/recipients/${this.segment(hostname)}`, { options });
  }

}

export class AuditLogResource extends Resource {
  /**
   * List the audit log. Who did what, newest first: every change of an agent, a directory entry, a
   * webhook or a key, every approval and withdrawal. Only an admin key sees the lines about keys.
   * Scopes: `admin`, `approver`, `read`. Counts as Agent Reads.
   */
  list(
    query: AuditLogListQuery = {},
    options: Options = {},
  ): Pages<LogLine> {
    return this.pages("/v1/audit-log", { query, options });
  }

  /**
   * Export the audit log as CSV. The filters of the list; cells that a spreadsheet would run are
   * quoted. Scopes: `admin`, `approver`, `read`. Counts as Agent Reads.
   */
  export(
    query: AuditLogExportQuery = {},
    options: Options = {},
  ): AsyncIterable<Uint8Array> {
    return this.download("/v1/audit-log/export", { query, options });
  }

}

export class AccountResource extends Resource {
  /**
   * Stop every agent. Of the account and mode of this key. No spend and no approval that is
   * requested after the answer passes: spends are rejected with `account_stopped`. Withdrawals go
   * on. Stopping again changes nothing, except that `alsoUnsigned` can be added. An
   * `Idempotency-Key` that was used before gives its old answer again and stops nothing: send a new
   * one, or none. Scopes: `admin`, `approver`. Never rate-limited.
   */
  stop(
    body: StopRequest,
    options: PostOptions = {},
  ): Promise<Stopped> {
    return this.send("POST", "/v1/stop", { body, options });
  }

  /**
   * Resume after a stop. Spends are decided again. With `cancel` none of the spends that the stop
   * held is paid from the answer on; each is rejected and its amount given back within moments. One
   * for which something was signed before the stop goes on. Scopes: `admin`. Counts as Agent
   * Management.
   */
  resume(
    body: ResumeRequest,
    options: PostOptions = {},
  ): Promise<Resumed> {
    return this.send("POST", "/v1/resume", { body, options });
  }

}

/** A resource for every part of the API. */
export class Resources extends Resource {
  readonly agents = new AgentsResource(this.transport);
  readonly wallets = new WalletsResource(this.transport);
  readonly spend = new SpendResource(this.transport);
  readonly budgets = new BudgetsResource(this.transport);
  readonly backtests = new BacktestsResource(this.transport);
  readonly drafts = new DraftsResource(this.transport);
  readonly purchases = new PurchasesResource(this.transport);
  readonly pins = new PinsResource(this.transport);
  readonly transactions = new TransactionsResource(this.transport);
  readonly webhooks = new WebhooksResource(this.transport);
  readonly events = new EventsResource(this.transport);
  readonly keys = new KeysResource(this.transport);
  readonly recipients = new RecipientsResource(this.transport);
  readonly auditLog = new AuditLogResource(this.transport);
  readonly account = new AccountResource(this.transport);
}
