/** For receivers: is this delivery really from Bursar? */
import { InvalidSignature } from "./errors.js";
import type { WebhookEvent } from "./generated/types.js";

const TOLERANCE_SECONDS = 300;
// A real header holds one signature per secret in force, and there are few.
const MOST_CHARACTERS = 4096;

/**
 * The event, if `service-signature` signs this very body with this secret, not long ago.
 *
 * Pass the body as it arrived: parsed and written again it has other bytes. `tolerance` is how many
 * seconds the signature may differ from this machine's clock, either way. Throws InvalidSignature:
 * answer 400.
 */
export async function verifyWebhook(
  rawBody: string | Uint8Array,
  signatureHeader: string | null | undefined,
  secret: string,
  tolerance: number = TOLERANCE_SECONDS,
): Promise<WebhookEvent> {
  const [time, signatures] = read(signatureHeader ?? "");
  const text = new TextEncoder();
  const body = typeof rawBody === "string" ? text.encode(rawBody) : rawBody;
  const start = text.encode(`${time}.`);
  const signed = new Uint8Array(start.length + body.length);
  signed.set(start);
  signed.set(body, start.length);
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", text.encode(secret), algorithm, false, [
    "verify",
  ]);
  const fitting = await Promise.all(
    signatures.map((signature) => crypto.subtle.verify("HMAC", key, signature, signed)),
  );
  if (!fitting.includes(true)) {
    throw new InvalidSignature("No signature fits this body and secret.");
  }
  if (Math.abs(Date.now() / 1000 - Number(time)) > tolerance) {
    throw new InvalidSignature(`The signature's time is more than ${tolerance} s off.`);
  }
  let event: unknown = null;
  try {
    event = JSON.parse(new TextDecoder().decode(body));
  } catch {
    // Signed, and yet not an event: said below.
  }
  if (typeof event !== "object" || event === null || Array.isArray(event)) {
    throw new InvalidSignature("The body is not an event.");
  }
  return event as WebhookEvent;
}

function read(header: string): [time: string, signatures: Uint8Array<ArrayBuffer>[]] {
  const pairs = header
    .slice(0, MOST_CHARACTERS)
    .split(",")
    .map((part) => part.trim())
    .map((part): [string, string] => {
      const at = part.indexOf("=");
      return at < 0 ? [part, ""] : [part.slice(0, at), part.slice(at + 1)];
    });
  const times = pairs.filter(([name]) => name === "t").map(([, value]) => value);
  const signatures = pairs.filter(([name]) => name === "v1").map(([, value]) => bytes(value));
  const [time] = times;
  if (time === undefined || times.length > 1 || !/^\d{1,12}$/.test(time) || !signatures.length) {
    throw new InvalidSignature("The header service-signature must be t=<unix time>,v1=<hex>.");
  }
  return [time, signatures];
}

/** Text that is not hex fits nothing, and neither do no bytes at all. */
function bytes(hex: string): Uint8Array<ArrayBuffer> {
  if (!/^([0-9a-f]{2})*$/.test(hex)) return new Uint8Array(0);
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}
