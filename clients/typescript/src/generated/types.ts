// Written by `make reference` from the OpenAPI document. Change nothing here.

/** An autonomous agent with its own wallet and spending policy. */
export interface Agent {
  id: string;
  name: string;
  status: "active" | "paused" | "terminated";
  wallet: WalletSummary;
  policy: Policy;
  metadata: Record<string, string>;
  budgetId: string | null;
  createdAt: string;
  updatedAt: string;
  terminatedAt: string | null;
}

/** The wallet as it shows inside its agent. */
export interface WalletSummary {
  address: string;
  balance: string;
  status: "depleted" | "funded" | "provisioned";
}

/** The policy in force. Amounts have two decimal places. */
export interface Policy {
  id: string;
  dailyCap: string;
  allowlist: string[];
  blocklist: string[];
  payees: "directory" | "host" | "pinned";
  limits: Limit[];
  perTransactionCap: string | null;
  approvalThreshold: string | null;
  dailyNetworkLamports: number | null;
  frozen: boolean;
  version: number;
}

export interface Limit {
  /** Of a limit that stands already; a new one gets its own. */
  id?: string;
  /** The UTC calendar window. */
  window: "hour" | "day" | "week" | "month" | "lifetime";
  /** How much may be spent in it. */
  amount?: string | null;
  /** How many spends. */
  count?: number | null;
  /** Only spends to this entry count. */
  recipient?: string | null;
}

/** How many agents matched, and how many of them the change made different. */
export interface BulkChange {
  matched: number;
  changed: number;
}

/** One version of a policy, and who made it. */
export interface PolicyVersion {
  id: string;
  dailyCap: string;
  allowlist: string[];
  blocklist: string[];
  payees: "directory" | "host" | "pinned";
  limits: Limit[];
  perTransactionCap: string | null;
  approvalThreshold: string | null;
  dailyNetworkLamports: number | null;
  frozen: boolean;
  version: number;
  changedBy: string;
  changedAt: string;
}

/**
 * What an agent asks before it spends. `maxAmountNow` is the most that passes in one spend, and
 * `maxWithoutApproval` the most that passes without a person.
 */
export interface Budget {
  dailyCap: string;
  spentToday: string;
  spentTodayBy: SpentTodayBy;
  remainingToday: string;
  reserved: string;
  available: string;
  maxAmountNow: string;
  maxWithoutApproval: string;
  approvalThreshold: string | null;
  allowlist: string[];
  resetsAt: string;
  status: "active" | "paused" | "terminated";
  frozen: boolean;
  accountStopped: boolean;
  budgetFrozen: boolean;
  policyVersion: number;
  dailyNetworkLamports: number;
  networkLamportsToday: number;
  limits: LimitUse[];
}

/**
 * What was spent today, by how far it came: paid and final, approved and on its way, waiting for a
 * person.
 */
export interface SpentTodayBy {
  settled: string;
  onItsWay: string;
  waiting: string;
}

/**
 * A limit over the agent, and what was used of it in the window that is running. What a budget
 * counts is of all agents below it.
 */
export interface LimitUse {
  limitId: string;
  budgetId: string | null;
  window: "day" | "hour" | "lifetime" | "month" | "week";
  recipient: string | null;
  amount: string | null;
  count: number | null;
  usedAmount: string;
  usedCount: number;
  resetsAt: string | null;
}

/**
 * A policy that is not in force, and what it would have decided since it was written. `policy` is
 * how the policy would be; `baseVersion` the version that it changes. `differences` are the last
 * 100, the newest first.
 */
export interface Draft {
  agentId: string;
  baseVersion: number;
  policy: Policy;
  since: string;
  followedUntil: string;
  decided: number;
  differing: number;
  differences: Difference[];
  createdBy: string;
}

/** A request that would have been decided differently, and the rule that makes the difference. */
export interface Difference {
  transactionId: string;
  agentId: string;
  amount: string;
  was: "approved" | "pending" | "rejected";
  would: "approved" | "pending" | "rejected";
  rule: Rule;
}

/** In the order of evaluation. */
export type Rule =
  | "account_stopped"
  | "agent_status"
  | "allowlist"
  | "approval_threshold"
  | "blocklist"
  | "budget"
  | "budget_frozen"
  | "daily_cap"
  | "funds"
  | "limit"
  | "max_amount"
  | "network_cost"
  | "payee"
  | "payee_account"
  | "pending_count"
  | "per_transaction_cap"
  | "policy_frozen"
  | "recipient_resolved";

/** A spend. Read `status`: a refusal is an answer, not an error. */
export interface Transaction {
  id: string;
  agentId: string;
  amount: string;
  currency: string;
  recipient: string;
  status: "approved" | "pending" | "rejected" | "settled";
  signature: string | null;
  blockTime: number | null;
  rejectCode: RejectCode | null;
  createdAt: string;
  settledAt: string | null;
  payTo: string | null;
  memo: string | null;
  metadata: Record<string, string>;
  policyVersion: number;
  createdBy: string;
  decidedBy: string | null;
  decidedAt: string | null;
  decisionReason: string | null;
  expiresAt: string | null;
  network: string;
  feeLamports: number | null;
  rentLamports: number | null;
  updatedAt: string;
  purchaseId: string | null;
  decision: Decision;
}

/**
 * Why a spend was rejected: the engine's reasons in order, then those of pending and approved
 * spends.
 */
export type RejectCode =
  | "account_stopped"
  | "agent_paused"
  | "agent_terminated"
  | "approval_denied"
  | "approval_expired"
  | "budget_exceeded"
  | "budget_frozen"
  | "cancelled"
  | "daily_cap_exceeded"
  | "hold_expired"
  | "insufficient_funds"
  | "limit_exceeded"
  | "max_amount_exceeded"
  | "network_cost_exceeded"
  | "payee_account_missing"
  | "payee_changed"
  | "payee_mismatch"
  | "per_transaction_cap_exceeded"
  | "policy_frozen"
  | "purchase_expired"
  | "recipient_blocked"
  | "recipient_not_allowed"
  | "recipient_unresolved"
  | "settlement_failed"
  | "terms_changed"
  | "too_many_pending";

/** Why the spend was decided so. A refused agent reads here what would pass, and when. */
export interface Decision {
  checks: Check[];
  remainingToday: string;
  maxAmountNow: string;
  maxWithoutApproval: string;
  retryAt: string | null;
}

/** One rule: what it allows, and what it observed. */
export interface Check {
  rule: Rule;
  outcome: "fail" | "not_evaluated" | "pass";
  limit: string | null;
  observed: string | null;
  limitId?: string | null;
  budgetId?: string | null;
}

/** What authorise would answer now. Nothing is stored or reserved. */
export interface Preview {
  status: "approved" | "pending" | "rejected" | "settled";
  rejectCode: RejectCode | null;
  policyVersion: number;
  payTo: string | null;
  decision: Decision;
}

/** Totals of the transactions in the filter; `totalSpent` counts the settled ones. */
export interface Statistics {
  totalSpent: string;
  transactionCount: number;
  rejectedCount: number;
  topRecipients: RecipientTotal[];
}

/** A recipient and what was settled to it. */
export interface RecipientTotal {
  hostname: string;
  totalUsdc: string;
}

/** A ceiling that agents share. `use` is what they spent in each UTC window that is running. */
export interface BudgetView {
  id: string;
  name: string;
  parentId: string | null;
  limits: Limit[];
  frozen: boolean;
  use: Record<string, WindowUse>;
  agentCount: number;
  createdBy: string;
  createdAt: string;
  updatedAt: string;
}

/** What was spent in a window that is running, and how often. */
export interface WindowUse {
  amount: string;
  count: number;
}

/**
 * What a draft would have decided of recorded requests. What is found is null until it is `done`.
 */
export interface Backtest {
  id: string;
  status: "done" | "failed" | "queued" | "running";
  progress: number;
  problem: string | null;
  agentId: string | null;
  budgetId: string | null;
  metadata: Record<string, string> | null;
  policy: Record<string, unknown> | null;
  limits: Record<string, unknown>[] | null;
  startsAt: string;
  endsAt: string;
  assumptions: string[];
  reproduced: Reproduced | null;
  current: Totals | null;
  draft: Totals | null;
  others: Others | null;
  byRule: RuleCounts[];
  byDay: DayTotals[];
  changedCount: number | null;
  changed: Difference[];
  createdBy: string;
  createdAt: string;
  finishedAt: string | null;
}

/**
 * How many requests were replayed by the policies then in force, and how many of them were decided
 * again as they had been: anything but all of them is a defect.
 */
export interface Reproduced {
  of: number;
  same: number;
}

/** How many requests were decided how; `amount` is of those that were not refused. */
export interface Totals {
  approved: number;
  pending: number;
  rejected: number;
  amount: string;
}

/** Requests of other agents that share a budget with those of the draft. */
export interface Others {
  of: number;
  changed: number;
}

/** How many requests a rule refused or, `approval_threshold`, made wait. */
export interface RuleCounts {
  rule: Rule;
  current: number;
  draft: number;
}

/** One UTC day. */
export interface DayTotals {
  day: string;
  current: Totals;
  draft: Totals;
}

/**
 * Something bought from an HTTP seller. Read `status`: a refusal is an answer, not an error.
 * `header` and `response` are for the asking agent's keys and admins, for 24 hours.
 */
export interface Purchase {
  id: string;
  agentId: string;
  url: string;
  method: string;
  host: string;
  status: "failed" | "free" | "open" | "paid" | "pending" | "presented" | "rejected" | "unpaid";
  rejectCode: RejectCode | null;
  failureCode:
    | "interrupted"
    | "not_continued"
    | "seller_unreachable"
    | "terms_changed"
    | "unsupported_payment"
    | null;
  problem: string | null;
  decision: Decision | null;
  protocol: "mpp" | "x402" | null;
  amount: string | null;
  payTo: string | null;
  transactionId: string | null;
  transaction: Transaction | null;
  header: PaymentHeader | null;
  response: SellerResponse | null;
  memo: string | null;
  metadata: Record<string, string>;
  createdBy: string;
  createdAt: string;
  updatedAt: string;
}

/** The header that pays: it is sent with the request, and is as good as money until it dies. */
export interface PaymentHeader {
  name: string;
  value: string;
}

/** What the seller answered last. `body` is text, or base64 where it is none. */
export interface SellerResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
  encoding: "base64" | "text";
  truncated: boolean;
}

/**
 * Where an origin is paid, as it said itself when somebody first bought there. `offered` is another
 * address that it named since: purchases there are refused until an admin accepts it.
 */
export interface Pin {
  origin: string;
  address: string;
  offered: string | null;
  offeredAt: string | null;
  createdBy: string;
  createdAt: string;
  updatedAt: string;
}

/** An agent's wallet. `available` is `balance` minus `reserved`. */
export interface Wallet {
  agentId: string;
  address: string;
  balance: string;
  reserved: string;
  available: string;
  mint: string;
  status: "depleted" | "funded" | "provisioned";
  lastFundedAt: string | null;
}

/** The wallet's amounts at one moment. */
export interface Balance {
  agentId: string;
  balance: string;
  reserved: string;
  available: string;
  currency: string;
  asOf: string;
}

/** Money on its way out of a wallet, or gone, or failed and available again. */
export interface Withdrawal {
  id: string;
  agentId: string;
  amount: string;
  currency: string;
  destination: string;
  status: "failed" | "pending" | "settled";
  signature: string | null;
  blockTime: number | null;
  failureCode: "destination_invalid" | "network_cost_exceeded" | "settlement_failed" | null;
  memo: string | null;
  metadata: Record<string, string>;
  network: string;
  createdBy: string;
  createdAt: string;
  settledAt: string | null;
  feeLamports: number | null;
  rentLamports: number | null;
}

/** Money that came into a wallet. `sender` is null when it was minted. */
export interface Deposit {
  id: string;
  agentId: string;
  amount: string;
  currency: string;
  sender: string | null;
  signature: string;
  blockTime: number | null;
  status: "credited" | "pending";
  createdAt: string;
  creditedAt: string | null;
}

/** A directory entry: spends to `hostname` are paid to `address`. */
export interface Recipient {
  hostname: string;
  address: string;
  createdBy: string;
  createdAt: string;
  updatedBy: string;
  updatedAt: string;
}

/** A webhook with its new secret, which is never shown again (null in a replay). */
export interface CreatedWebhook {
  id: string;
  url: string;
  events: string[];
  status: "disabled" | "enabled";
  disabledReason: "failing" | "gone" | "requested" | null;
  createdAt: string;
  secret: string | null;
}

/** Where events are sent, and which. */
export interface Webhook {
  id: string;
  url: string;
  events: string[];
  status: "disabled" | "enabled";
  disabledReason: "failing" | "gone" | "requested" | null;
  createdAt: string;
}

/** One event on its way to one webhook, with every attempt so far. */
export interface Delivery {
  id: string;
  webhookId: string;
  eventId: string;
  eventType: string;
  status: "delivered" | "failed" | "pending";
  attempts: Attempt[];
  nextAttemptAt: string | null;
  createdAt: string;
}

/** One try to deliver. `status` is null when there was no answer; then `error` says why. */
export interface Attempt {
  at: string;
  status: number | null;
  latencyMs: number;
  error: string | null;
  response: string | null;
}

/** Something that happened. `data` is its subject as the API showed it at that moment. */
export interface Event {
  id: string;
  type: EventType;
  createdAt: string;
  mode: "live" | "test";
  data: Record<string, unknown>;
}

export type EventType =
  | "account.resumed"
  | "account.stopped"
  | "agent.paused"
  | "agent.policy_updated"
  | "agent.resumed"
  | "agent.terminated"
  | "agent.thawed"
  | "key.created"
  | "key.revoked"
  | "pin.accepted"
  | "pin.forgotten"
  | "purchase.failed"
  | "purchase.paid"
  | "purchase.unpaid"
  | "recipient.deleted"
  | "recipient.set"
  | "transaction.approved"
  | "transaction.pending"
  | "transaction.rejected"
  | "transaction.settled"
  | "wallet.depleted"
  | "wallet.funded"
  | "wallet.low_balance"
  | "webhook.changed"
  | "webhook.created"
  | "webhook.deleted"
  | "webhook.secret_rotated"
  | "webhook.test"
  | "withdrawal.failed"
  | "withdrawal.settled";

/** The new deliveries of an event, one for each webhook it is sent to again. */
export interface Redelivery {
  eventId: string;
  deliveries: Delivery[];
}

/**
 * Every agent of the account is stopped: since when, by which key, and why. `alsoUnsigned`: what
 * was approved before and is not signed waits, too.
 */
export interface Stopped {
  stoppedAt: string;
  stoppedBy: string;
  reason: string;
  alsoUnsigned: boolean;
}

/** The stop that is over. `cancelled` is how many of the spends that it held are not paid. */
export interface Resumed {
  stoppedAt: string;
  stoppedBy: string;
  reason: string;
  alsoUnsigned: boolean;
  resumedAt: string;
  resumedBy: string;
  unsigned: "cancel" | "pay";
  cancelled: number;
}

/** A new API key, with the secret that is never shown again (null in a replay). */
export interface CreatedKey {
  id: string;
  name: string;
  scope: Scope;
  agentId: string | null;
  mode: "live" | "test";
  createdAt: string;
  expiresAt: string | null;
  lastUsedAt: string | null;
  revokedAt: string | null;
  key: string | null;
}

/** What a key may do; `docs/concepts.md` has the table. */
export type Scope = "admin" | "agent" | "approver" | "read";

/** An API key. The key itself is shown once, when it is made. */
export interface Key {
  id: string;
  name: string;
  scope: Scope;
  agentId: string | null;
  mode: "live" | "test";
  createdAt: string;
  expiresAt: string | null;
  lastUsedAt: string | null;
  revokedAt: string | null;
}

/** The calling key, its rate limits, and whether its account is stopped. */
export interface Me {
  id: string;
  name: string;
  scope: Scope;
  agentId: string | null;
  mode: "live" | "test";
  createdAt: string;
  expiresAt: string | null;
  lastUsedAt: string | null;
  revokedAt: string | null;
  account: string;
  limits: CategoryLimit[];
  stop: Stopped | null;
}

/** How many requests of one category this key may make in any 60 seconds. */
export interface CategoryLimit {
  category: string;
  requestsPerMinute: number;
}

/** Who did what: `before` and `after` are its subject as the API showed it then. */
export interface LogLine {
  id: string;
  createdAt: string;
  actor: string;
  requestId: string;
  action: string;
  subject: string;
  before: Record<string, unknown> | null;
  after: Record<string, unknown> | null;
}

/**
 * The agent with its new policy, the policy it had before, and who changed it: a key, or `system`.
 */
export interface AgentPolicyUpdated {
  id: string;
  name: string;
  status: "active" | "paused" | "terminated";
  wallet: WalletSummary;
  policy: Policy;
  metadata: Record<string, string>;
  budgetId: string | null;
  createdAt: string;
  updatedAt: string;
  terminatedAt: string | null;
  previousPolicy: Policy;
  changedBy: string;
}

/** The agent, which may spend again, and the key that let it. */
export interface AgentResumed {
  id: string;
  name: string;
  status: "active" | "paused" | "terminated";
  wallet: WalletSummary;
  policy: Policy;
  metadata: Record<string, string>;
  budgetId: string | null;
  createdAt: string;
  updatedAt: string;
  terminatedAt: string | null;
  changedBy: string;
}

/** A directory entry, and the address that it had before, if it was there. */
export interface RecipientSet {
  hostname: string;
  address: string;
  createdBy: string;
  createdAt: string;
  updatedBy: string;
  updatedAt: string;
  previousAddress: string | null;
}

/** A directory entry that is no more. */
export interface RecipientDeleted {
  hostname: string;
  address: string;
  createdBy: string;
  createdAt: string;
  updatedBy: string;
  updatedAt: string;
  deletedBy: string;
}

/** A pin with the address that an admin accepted, and the one that it had before. */
export interface PinAccepted {
  origin: string;
  address: string;
  offered: string | null;
  offeredAt: string | null;
  createdBy: string;
  createdAt: string;
  updatedAt: string;
  previousAddress: string;
}

/** A pin that is no more. */
export interface PinForgotten {
  origin: string;
  address: string;
  offered: string | null;
  offeredAt: string | null;
  createdBy: string;
  createdAt: string;
  updatedAt: string;
  forgottenBy: string;
}

/** A key that was made or revoked, and who did it. It holds no secret. */
export interface KeyChanged {
  id: string;
  name: string;
  scope: Scope;
  agentId: string | null;
  mode: "live" | "test";
  createdAt: string;
  expiresAt: string | null;
  lastUsedAt: string | null;
  revokedAt: string | null;
  changedBy: string;
}

/**
 * A webhook that was registered, changed or deleted, and who did it. `urlChanged` says whether its
 * URL is another one, `previousOrigin` where it led before, if to another origin.
 */
export interface WebhookChanged {
  id: string;
  origin: string;
  events: string[];
  status: "disabled" | "enabled";
  disabledReason: "failing" | "gone" | "requested" | null;
  createdAt: string;
  changedBy: string;
  urlChanged: boolean;
  previousOrigin: string | null;
}

/**
 * A webhook as events tell of it: of its URL only scheme, host and port. Other receivers read them,
 * and what stands behind the origin is often a secret itself.
 */
export interface WebhookSummary {
  id: string;
  origin: string;
  events: string[];
  status: "disabled" | "enabled";
  disabledReason: "failing" | "gone" | "requested" | null;
  createdAt: string;
}

/** What the agent may spend. */
export interface NewPolicy {
  /** What the agent may spend per UTC day; 0 allows nothing. */
  dailyCap: string;
  /**
   * Who may be paid: `api.example.com` exactly that host, `*.example.com` any host below it, a
   * base58 address exactly that address, `*` anyone. An empty list allows nothing.
   */
  allowlist: readonly string[];
  /** The most a single spend may be; null: no limit. */
  perTransactionCap?: string | null;
  /** Spends above this wait for a person's approval; null: none do. */
  approvalThreshold?: string | null;
  /**
   * What the agent's payments may cost per UTC day, in lamports: network fees, and token accounts
   * opened for payees; null: what the service allows by default.
   */
  dailyNetworkLamports?: number | null;
  /** Never paid, whatever the allowlist says; the same entries. */
  blocklist?: readonly string[];
  /**
   * Up to 20 limits beside the daily cap: an `amount`, a `count` of spends or both, in a UTC
   * `window` (`hour`, `day`, `week` from Monday, `month`, `lifetime`), for everybody or for one
   * `recipient` entry as of the allowlist. Sending one with its `id` keeps what it has counted.
   */
  limits?: readonly Limit[];
  /**
   * What tells where a host is paid that the directory does not have, in purchases: `directory`
   * nothing does (the default in live mode), `pinned` what the host said when it was first bought
   * from (the default in test mode), `host` whatever it says now.
   */
  payees?: "directory" | "pinned" | "host";
}

export interface NewAgent {
  /** 1 to 100 characters. */
  name: string;
  /** What the agent may spend. */
  policy: NewPolicy;
  /**
   * Up to 50 pairs of your own, string values, 8 KiB in all; the list of agents can be filtered by
   * them.
   */
  metadata?: Record<string, string>;
  /**
   * The budget that the agent is under; null: under none. Its spends must then fit that budget and
   * every one above it.
   */
  budgetId?: string | null;
}

export interface PolicyChange {
  /** What the agent may spend per UTC day; 0 allows nothing. */
  dailyCap?: string;
  /**
   * Who may be paid: `api.example.com` exactly that host, `*.example.com` any host below it, a
   * base58 address exactly that address, `*` anyone. An empty list allows nothing.
   */
  allowlist?: readonly string[];
  /** The most a single spend may be; null: no limit. */
  perTransactionCap?: string | null;
  /** Spends above this wait for a person's approval; null: none do. */
  approvalThreshold?: string | null;
  /**
   * What the agent's payments may cost per UTC day, in lamports: network fees, and token accounts
   * opened for payees; null: what the service allows by default.
   */
  dailyNetworkLamports?: number | null;
  /** Never paid, whatever the allowlist says; the same entries. */
  blocklist?: readonly string[];
  /**
   * Up to 20 limits beside the daily cap: an `amount`, a `count` of spends or both, in a UTC
   * `window` (`hour`, `day`, `week` from Monday, `month`, `lifetime`), for everybody or for one
   * `recipient` entry as of the allowlist. Sending one with its `id` keeps what it has counted.
   */
  limits?: readonly Limit[];
  /**
   * What tells where a host is paid that the directory does not have, in purchases: `directory`
   * nothing does (the default in live mode), `pinned` what the host said when it was first bought
   * from (the default in test mode), `host` whatever it says now.
   */
  payees?: "directory" | "pinned" | "host";
  /** True stops all new spends until it is false again. */
  frozen?: boolean;
  /** The version you last saw: if it is no longer the current one, nothing changes (409). */
  version?: number;
}

export interface AgentChange {
  /** 1 to 100 characters. */
  name?: string;
  /** `paused` stops new spends; `active` lets them go on. */
  status?: "active" | "paused";
  /**
   * Up to 50 pairs of your own, string values, 8 KiB in all; the list of agents can be filtered by
   * them.
   */
  metadata?: Record<string, string>;
  /**
   * The budget that the agent is under; null: under none. Its spends must then fit that budget and
   * every one above it.
   */
  budgetId?: string | null;
  /** Any of its fields; lists are replaced whole. */
  policy?: PolicyChange;
}

export interface Spend {
  /** The agent that spends. Required, but a key of scope `agent` may omit it. */
  agentId?: string;
  /** How much, up to six decimal places. */
  amount: string;
  /** Who is paid: a hostname or a base58 address. */
  recipient: string;
  /** True pays an address that no key can spend from, such as a program's vault. */
  allowOffCurve?: boolean;
  /** Only `USDC`, which is the default. */
  currency?: "USDC";
  /** A note of yours. */
  memo?: string | null;
  /** Up to 50 pairs of your own, string values, 8 KiB in all. */
  metadata?: Record<string, string>;
}

export interface Reason {
  /** Why, for the books. */
  reason?: string | null;
}

export interface BudgetLimit {
  /** Of a limit that stands already; a new one gets its own. */
  id?: string;
  /** The UTC calendar window. */
  window: "hour" | "day" | "week" | "month" | "lifetime";
  /** How much may be spent in it. */
  amount?: string | null;
  /** How many spends. */
  count?: number | null;
}

export interface NewBudget {
  /** 1 to 100 characters. */
  name: string;
  /**
   * Up to 20 limits: an `amount`, a `count` of spends or both, in a UTC `window` (`hour`, `day`,
   * `week` from Monday, `month`, `lifetime`). They hold for the window that is running.
   */
  limits: readonly BudgetLimit[];
  /** The budget above it, for good; at most 4 stand above each other. */
  parentId?: string | null;
}

export interface BudgetChange {
  /** 1 to 100 characters. */
  name?: string;
  /**
   * Up to 20 limits: an `amount`, a `count` of spends or both, in a UTC `window` (`hour`, `day`,
   * `week` from Monday, `month`, `lifetime`). They hold for the window that is running.
   */
  limits?: readonly BudgetLimit[];
  /** True refuses all spends below it until it is false again. */
  frozen?: boolean;
}

/**
 * What would change of the policies, as in the change of an agent; lists as a whole. What is not
 * named stays as it was at each request.
 */
export interface DraftedPolicy {
  /** What the agent may spend per UTC day; 0 allows nothing. */
  dailyCap?: string;
  /**
   * Who may be paid: `api.example.com` exactly that host, `*.example.com` any host below it, a
   * base58 address exactly that address, `*` anyone. An empty list allows nothing.
   */
  allowlist?: readonly string[];
  /** The most a single spend may be; null: no limit. */
  perTransactionCap?: string | null;
  /** Spends above this wait for a person's approval; null: none do. */
  approvalThreshold?: string | null;
  /**
   * What the agent's payments may cost per UTC day, in lamports: network fees, and token accounts
   * opened for payees; null: what the service allows by default.
   */
  dailyNetworkLamports?: number | null;
  /** Never paid, whatever the allowlist says; the same entries. */
  blocklist?: readonly string[];
  /**
   * Up to 20 limits beside the daily cap: an `amount`, a `count` of spends or both, in a UTC
   * `window` (`hour`, `day`, `week` from Monday, `month`, `lifetime`), for everybody or for one
   * `recipient` entry as of the allowlist. Sending one with its `id` keeps what it has counted.
   */
  limits?: readonly Limit[];
  /**
   * What tells where a host is paid that the directory does not have, in purchases: `directory`
   * nothing does (the default in live mode), `pinned` what the host said when it was first bought
   * from (the default in test mode), `host` whatever it says now.
   */
  payees?: "directory" | "pinned" | "host";
  /** True stops all new spends until it is false again. */
  frozen?: boolean;
}

export interface NewBacktest {
  /**
   * What would change of the policies, as in the change of an agent; lists as a whole. What is not
   * named stays as it was at each request.
   */
  policy?: DraftedPolicy;
  /** What the limits of the budget `budgetId` would be, as a whole. */
  limits?: readonly BudgetLimit[];
  /** Try it on this agent. */
  agentId?: string;
  /** Try it on all agents below this budget. */
  budgetId?: string;
  /** Try it on the agents with these pairs, at most 1,000. */
  metadata?: Record<string, string>;
  /** The first date or time to look at; 30 days ago if not given. */
  from?: string;
  /** Up to this time; a bare date includes that whole day; now if not given. */
  to?: string;
}

/**
 * The 402 that you got from the seller yourself. Then the service fetches nothing, and `header` of
 * the answer is what to send with your request.
 */
export interface PaymentRequired {
  /** 402. */
  status: number;
  /** The headers that came with it. */
  headers: Record<string, string>;
  /** Its body, if it had one. */
  body?: string | null;
}

export interface NewPurchase {
  /** The agent that buys. Required, but a key of scope `agent` may omit it. */
  agentId?: string;
  /**
   * What to buy: https, a public host, no user info, no fragment. Its host is the recipient that
   * the policy judges.
   */
  url: string;
  /** How to ask for it; `GET` unless given. */
  method?: "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS";
  /**
   * Headers to send, at most 50. Not those of the connection (such as `Host`, `Content-Length`,
   * `Connection`) and not those that pay.
   */
  headers?: Record<string, string>;
  /** What to send as the body, in UTF-8. */
  body?: string;
  /** The most that you would pay for it. */
  maxAmount?: string | null;
  /**
   * The 402 that you got from the seller yourself. Then the service fetches nothing, and `header`
   * of the answer is what to send with your request.
   */
  paymentRequired?: PaymentRequired;
  /** A note of yours. */
  memo?: string | null;
  /** Up to 50 pairs of your own, string values, 8 KiB in all. */
  metadata?: Record<string, string>;
}

export interface Continue {
  /**
   * The 402 that you got from the seller yourself. Then the service fetches nothing, and `header`
   * of the answer is what to send with your request.
   */
  paymentRequired?: PaymentRequired;
}

export interface AcceptPin {
  /** Scheme, host and port, as the list shows it: `https://api.example.com:443`. */
  origin: string;
  /** The address that it names since. */
  address: string;
}

export interface ForgetPin {
  /** Scheme, host and port, as the list shows it: `https://api.example.com:443`. */
  origin: string;
}

export interface NewWithdrawal {
  /** How much, at most what is available. */
  amount: string;
  /** The address that is paid, base58. */
  destination: string;
  /** True pays an address that no key can spend from, such as a program's vault. */
  allowOffCurve?: boolean;
  /** A note of yours. */
  memo?: string | null;
  /** Up to 50 pairs of your own, string values, 8 KiB in all. */
  metadata?: Record<string, string>;
}

export interface Funding {
  /** Test USDC to mint, at most 1,000,000 a call. */
  amount: string;
}

export interface RecipientAddress {
  /** The Solana address to pay, base58. */
  address: string;
  /** True pays an address that no key can spend from, such as a program's vault. */
  allowOffCurve?: boolean;
}

export interface NewWebhook {
  /** Where events are sent: https, a public host, no user info, no fragment. */
  url: string;
  /** The types that are sent; `*` for all. */
  events:
    | readonly ("transaction.settled"
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
    | "*")[];
}

export interface WebhookChange {
  /** Where events are sent: https, a public host, no user info, no fragment. */
  url?: string;
  /** The types that are sent; `*` for all. */
  events?:
    | readonly ("transaction.settled"
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
    | "*")[];
  /** `disabled` holds deliveries back and makes no new ones; `enabled` lets them go on. */
  status?: "enabled" | "disabled";
}

export interface RedeliveryRequest {
  /** Only to this webhook. Without it: to every enabled webhook that wants the type. */
  webhookId?: string;
}

export interface StopRequest {
  /** Why, for whoever resumes, in 1 to 500 characters. */
  reason: string;
  /** True also holds what is approved and not yet signed, until it is resumed. */
  alsoUnsigned?: boolean;
}

export interface ResumeRequest {
  /**
   * What becomes of spends that the stop held (`alsoUnsigned`): `pay` pays them, `cancel` rejects
   * them as `cancelled`.
   */
  unsigned: "pay" | "cancel";
}

export interface NewKey {
  /** What the key is for, in 1 to 100 characters. */
  name: string;
  /** What the key may do. */
  scope: "admin" | "agent" | "approver" | "read";
  /** The agent that a key of scope `agent` is bound to. */
  agentId?: string | null;
  /** When it stops working; null: never. */
  expiresAt?: string | Date | null;
}

export type ErrorCode =
  | "validation_error"
  | "invalid_json"
  | "unauthorized"
  | "forbidden"
  | "not_found"
  | "method_not_allowed"
  | "agent_terminated"
  | "policy_version_conflict"
  | "insufficient_funds"
  | "invalid_state"
  | "idempotency_in_progress"
  | "limit_reached"
  | "payload_too_large"
  | "unsupported_media_type"
  | "idempotency_key_reused"
  | "rate_limit_exceeded"
  | "internal_error"
  | "unavailable";

/** One delivery, by its type: what `verifyWebhook` gives. */
export type WebhookEvent =
  | Delivered<"transaction.settled", Transaction>
  | Delivered<"transaction.rejected", Transaction>
  | Delivered<"wallet.low_balance", Wallet>
  | Delivered<"wallet.depleted", Wallet>
  | Delivered<"agent.policy_updated", AgentPolicyUpdated>
  | Delivered<"agent.thawed", Agent>
  | Delivered<"agent.paused", Agent>
  | Delivered<"agent.resumed", AgentResumed>
  | Delivered<"agent.terminated", Agent>
  | Delivered<"account.stopped", Stopped>
  | Delivered<"account.resumed", Resumed>
  | Delivered<"transaction.pending", Transaction>
  | Delivered<"transaction.approved", Transaction>
  | Delivered<"wallet.funded", Wallet>
  | Delivered<"withdrawal.settled", Withdrawal>
  | Delivered<"withdrawal.failed", Withdrawal>
  | Delivered<"purchase.paid", Purchase>
  | Delivered<"purchase.unpaid", Purchase>
  | Delivered<"purchase.failed", Purchase>
  | Delivered<"recipient.set", RecipientSet>
  | Delivered<"recipient.deleted", RecipientDeleted>
  | Delivered<"pin.accepted", PinAccepted>
  | Delivered<"pin.forgotten", PinForgotten>
  | Delivered<"key.created", KeyChanged>
  | Delivered<"key.revoked", KeyChanged>
  | Delivered<"webhook.created", WebhookChanged>
  | Delivered<"webhook.changed", WebhookChanged>
  | Delivered<"webhook.secret_rotated", WebhookChanged>
  | Delivered<"webhook.deleted", WebhookChanged>
  | Delivered<"webhook.test", WebhookSummary>
  ;

export interface Delivered<Type extends EventType, Data> {
  /** Tells duplicates apart. */
  id: string;
  type: Type;
  createdAt: string;
  mode: "test" | "live";
  data: Data;
}
