/**
 * A scheme for the stock x402 client: it asks Bursar to sign instead of holding a key.
 *
 *     import { wrapFetchWithPaymentFromConfig } from "@x402/fetch";
 *     import { Bursar } from "bursar";
 *     import { BursarScheme } from "bursar/x402";
 *
 *     const client = new BursarScheme(new Bursar().agent());
 *     const fetchWithPay = wrapFetchWithPaymentFromConfig(fetch, {
 *       schemes: [{ network: "solana:*", client }],
 *     });
 *
 * Prices above the stock client's own bound, $1 unless its `spendControls` say otherwise, are refused
 * by that client; everything below is for the policy.
 */
import type { AgentClient } from "./client.js";
import { PurchaseFailed, PurchasePending, PurchaseRefused, PurchaseUnanswered } from "./errors.js";

// By network.
const USDC: Record<string, string> = {
  "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
  "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1": "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",
};

/** As `@x402/core` has it, as far as it matters here. */
interface Requirements {
  scheme: string;
  network: `${string}:${string}`;
  asset: string;
  amount: string;
  payTo: string;
}

interface PaymentRequired {
  x402Version: number;
  resource?: { url: string };
  accepts: Requirements[];
}

export class BursarScheme {
  readonly scheme = "exact";
  readonly #agent: AgentClient;
  // What the seller said, by the offer that was taken of it; and where it was asked, by what it said.
  readonly #said = new WeakMap<object, PaymentRequired>();
  readonly #asked = new WeakMap<object, string>();

  constructor(agent: AgentClient) {
    this.#agent = agent;
  }

  /**
   * For `new x402HTTPClient(client).onPaymentRequired(…)`: takes the URL from the request itself.
   * Without it, the URL is the one that the seller names in its 402.
   */
  readonly onPaymentRequired = async (context: {
    paymentRequired: PaymentRequired;
    requestUrl: string;
  }): Promise<void> => {
    this.#asked.set(context.paymentRequired, context.requestUrl);
  };

  readonly schemeHooks = {
    onBeforePaymentCreation: async (context: {
      paymentRequired: PaymentRequired;
      selectedRequirements: Requirements;
    }): Promise<void> => {
      this.#said.set(context.selectedRequirements, context.paymentRequired);
    },
  };

  /** What the client's own spend controls ask: whether it is dollars. */
  findDefaultAsset(
    asset: string,
    network: string,
  ): { asset: string; decimals: number; symbol: string } | undefined {
    return USDC[network] === asset ? { asset, decimals: 6, symbol: "USDC" } : undefined;
  }

  async createPaymentPayload(
    x402Version: number,
    requirements: Requirements,
  ): Promise<{ x402Version: number; payload: Record<string, unknown> }> {
    const said = this.#said.get(requirements);
    const url = said && (this.#asked.get(said) ?? said.resource?.url);
    if (url === undefined) {
      throw new TypeError("The seller does not say what it sells: register onPaymentRequired.");
    }
    // Nothing but the terms that the client chose, so that no others are paid.
    const offer = { ...said, accepts: [requirements] };
    const purchase = await this.#agent.sign(url, {
      status: 402,
      headers: { "PAYMENT-REQUIRED": encode(offer) },
    });
    if (purchase.status === "rejected") throw new PurchaseRefused(purchase);
    if (purchase.status === "pending") throw new PurchasePending(purchase);
    if (purchase.status === "failed") throw new PurchaseFailed(purchase);
    if (purchase.header === null) throw new PurchaseUnanswered(purchase);
    return { x402Version, payload: decode(purchase.header.value)["payload"] };
  }
}

function encode(value: unknown): string {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

function decode(text: string): { payload: Record<string, unknown> } {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(bytes));
}
