import { keyAndAddress } from "./address.js";
import { ConfigError } from "./errors.js";
import type { Options, PostOptions, WaitOptions } from "./endpoint.js";
import { buy, type Bought, type BuyInit, type BuyOptions } from "./fetch.js";
import { Resources, type TransactionsListQuery } from "./generated/resources.js";
import type {
  Budget,
  NewPurchase,
  PaymentRequired,
  Preview,
  Purchase,
  Spend,
  Transaction,
} from "./generated/types.js";
import type { Page } from "./pages.js";
import { Transactions } from "./transactions.js";
import { Transport } from "./transport.js";

const TIMEOUT_MS = 30_000;
const RETRIES_MOST = 3;
// For how long a library that was handed a `fetch` may try again.
const HANDED_ON_SECONDS = 60;

export interface BursarOptions {
  /** Taken from BURSAR_API_KEY when not given. */
  apiKey?: string;
  /** Taken from BURSAR_BASE_URL when not given; http://127.0.0.1:8420 when that is not set. */
  baseUrl?: string;
  /** Milliseconds to wait for an answer: 30,000 unless given. */
  timeout?: number;
  /** How often a 429 is tried again, after 0.5 s, 1 s and 2 s (plus up to 0.2 s): 3 times. */
  maxRetries?: number;
  /** Wait as long as the service asks, where that is longer. */
  honourRetryAfter?: boolean;
  /** Try a GET or a POST again whose connection broke, too: those happen once. */
  retryConnections?: boolean;
  /** What sends requests, instead of the platform's own. */
  fetch?: typeof globalThis.fetch;
}

/**
 * The client: a resource for every part of the API.
 *
 *     const bursar = new Bursar();
 *     const agent = await bursar.agents.create({ name: "researcher", policy: { … } });
 *     const paid = await bursar.spend.authorise({ agentId: agent.id, amount: "3.50", recipient });
 *
 * A 429 is tried again; every other error is thrown at once. A refused spend is an answer, not an
 * error: read `status`.
 */
export class Bursar extends Resources {
  override readonly transactions = new Transactions(this.transport);

  constructor(options: BursarOptions = {}) {
    const [apiKey, baseUrl] = keyAndAddress(options.apiKey, options.baseUrl);
    super(
      new Transport({
        apiKey,
        baseUrl,
        timeout: options.timeout ?? TIMEOUT_MS,
        retries: {
          most: options.maxRetries ?? RETRIES_MOST,
          honourRetryAfter: options.honourRetryAfter ?? false,
          brokenConnections: options.retryConnections ?? false,
        },
        fetch: options.fetch ?? globalThis.fetch.bind(globalThis),
      }),
    );
  }

  get baseUrl(): string {
    return this.transport.baseUrl;
  }

  /** One agent, as it spends. A key of scope `agent` knows its own, and needs no id. */
  agent(id?: string): AgentClient {
    return new AgentClient(this, id);
  }
}

/** What a spend says beside who spends. */
export type AgentSpend = Omit<Spend, "agentId">;

/** One agent: it buys, spends and asks what it may. */
export class AgentClient {
  readonly #bursar: Bursar;
  #id: string | undefined;
  #isOwn = false;

  /** @internal */
  constructor(bursar: Bursar, id: string | undefined) {
    this.#bursar = bursar;
    this.#id = id;
  }

  /**
   * Fetch a URL, and pay what it costs if the policy allows it. Takes what the platform's `fetch`
   * takes, and `maxAmount`, `memo`, `wait` and `idempotencyKey`; gives a Response, with the
   * `purchase`. What costs nothing is fetched alike.
   *
   * A seller that stumbles after it was paid is shown the same payment again, a few times; nothing
   * is paid twice. Where there is no answer of the seller it throws PurchaseRefused,
   * PurchasePending, PurchaseFailed or PurchaseUnanswered. Each call is a purchase of its own: to a
   * library that tries again by itself hand `payingFetch()`.
   */
  readonly fetch = (input: string | URL | Request, init?: BuyInit): Promise<Bought> =>
    buy(this.#bursar.purchases, this.#id, input, init);

  /**
   * A `fetch` to hand on, with these options in every call. The same method, URL, body and
   * credentials within a minute (`sameWithin`) are one purchase, so that whoever tries again pays once.
   */
  payingFetch(options: BuyOptions = {}): AgentClient["fetch"] {
    return (input, init) => this.fetch(input, { sameWithin: HANDED_ON_SECONDS, ...options, ...init });
  }

  /** Pay a recipient. **A refusal is an answer, not an error**: read `status`. */
  spend(spend: AgentSpend, options?: WaitOptions): Promise<Transaction> {
    return this.#bursar.spend.authorise(this.#named(spend), options);
  }

  /** What `spend` would answer now. Nothing is stored or reserved. */
  preview(spend: AgentSpend, options?: PostOptions): Promise<Preview> {
    return this.#bursar.spend.preview(this.#named(spend), options);
  }

  /**
   * Pay for a 402 that you got yourself: the service fetches nothing, and `header` of the purchase is
   * what to send with your request.
   */
  sign(
    url: string,
    paymentRequired: PaymentRequired,
    options?: PostOptions,
  ): Promise<Purchase> {
    return this.buy({ url, paymentRequired }, options);
  }

  /** Buy what a URL sells. **A refusal is an answer, not an error**: read `status`. */
  buy(order: Omit<NewPurchase, "agentId">, options?: WaitOptions): Promise<Purchase> {
    return this.#bursar.purchases.create(this.#named(order), options);
  }

  /** What the agent spent, newest first. */
  async transactions(
    query: Omit<TransactionsListQuery, "agentId"> = {},
    options?: Options,
  ): Promise<Page<Transaction>> {
    const agentId = await this.id();
    return this.#bursar.transactions.list({ ...query, agentId }, options).page();
  }

  /** What the agent may spend now. */
  async budget(options?: Options): Promise<Budget> {
    return this.#bursar.agents.budget(await this.id(), options);
  }

  /** The agent's id: given, or that of the key. */
  async id(): Promise<string> {
    if (this.#id === undefined) {
      const { agentId } = await this.#bursar.keys.me();
      if (agentId === null) {
        throw new ConfigError("This key belongs to no agent: say which one, agent(id).");
      }
      this.#id = agentId;
    }
    return this.#id;
  }

  /** @internal For tools: a key in the hands of a model is good for one wallet and nothing else. */
  async ownId(): Promise<string> {
    if (!this.#isOwn) {
      const { scope, agentId } = await this.#bursar.keys.me();
      if (scope !== "agent" || agentId === null) {
        throw new ConfigError(`Tools need a key of scope agent; this key has scope ${scope}.`);
      }
      if ((this.#id ?? agentId) !== agentId) {
        throw new ConfigError(`This key is ${agentId}'s, and not ${this.#id}'s.`);
      }
      this.#id = agentId;
      this.#isOwn = true;
    }
    return this.id();
  }

  #named<T>(body: T): T & { agentId?: string } {
    return this.#id === undefined ? (body as T & { agentId?: string }) : { ...body, agentId: this.#id };
  }
}
