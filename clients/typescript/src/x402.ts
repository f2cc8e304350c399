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
  // What the seller said, by the offer that was taken of it.
  readonly #said = new WeakMap<object, PaymentRequired>();

  constructor(agent: AgentClient) {
    this.#agent = agent;
  }

  readonly schemeHooks = {
    onBeforePaymentCreation: async (context: {
      paymentRequired: PaymentRequired;
      selectedRequirements: Requirements;
    }): Promise<void> => {
      this.#said.set(context.selectedRequirements, context.paymentRequired);
    },
  };

  /** Bursar pays in USDC and nothing else; it checks the mint itself. */
  findDefaultAsset(asset: string): { asset: string; decimals: number; symbol: string } {
    return { asset, decimals: 6, symbol: "USDC" };
  }

  async createPaymentPayload(
    x402Version: number,
    requirements: Requirements,
  ): Promise<{ x402Version: number; payload: Record<string, unknown> }> {
    const said = this.#said.get(requirements);
    if (said?.resource === undefined) {
      throw new TypeError("The seller does not say what it sells: its 402 has no resource.");
    }
    const offer = { ...said, accepts: [requirements] };
    const purchase = await this.#agent.sign(said.resource.url, {
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
