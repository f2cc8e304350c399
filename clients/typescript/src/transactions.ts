import type { Options } from "./endpoint.js";
import { TransactionsResource } from "./generated/resources.js";
import type { Transaction } from "./generated/types.js";

// What the service waits at most before it answers.
const ROUND_SECONDS = 30;

/** Transactions, and waiting for what becomes of one. */
export class Transactions extends TransactionsResource {
  /**
   * One transaction once it is settled or rejected, or as it stands after so many seconds (60 unless
   * given): read `status`. One that is `pending` waits for a person, who may take hours.
   */
  async wait(
    id: string,
    { seconds = 60, ...options }: Options & { seconds?: number } = {},
  ): Promise<Transaction> {
    // No more often than such waits fit into the time: where something in between drops the wish to
    // wait, it ends early instead of asking without a pause.
    for (let left = seconds; ; left -= ROUND_SECONDS) {
      const found = await this.get(id, { ...options, wait: Math.min(left, ROUND_SECONDS) });
      const over = found.status === "settled" || found.status === "rejected";
      if (over || left <= ROUND_SECONDS) return found;
    }
  }
}
