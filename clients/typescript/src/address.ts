/** Where the service is and what key it takes. A live key is never sent unencrypted. */
import { ConfigError } from "./errors.js";

const DEFAULT_BASE_URL = "http://127.0.0.1:8420";

export function keyAndAddress(apiKey?: string, baseUrl?: string): [key: string, url: string] {
  const key = apiKey ?? environment("BURSAR_API_KEY") ?? "";
  if (key === "") throw new ConfigError("BURSAR_API_KEY is not set; set it, or give apiKey.");
  // Refused here: an invalid header value would appear in an error message further down.
  if (!/^[!-~]+$/.test(key)) {
    throw new ConfigError("BURSAR_API_KEY is not an API key: it holds a space or an odd character.");
  }
  const given = baseUrl ?? environment("BURSAR_BASE_URL") ?? DEFAULT_BASE_URL;
  const url = URL.canParse(given) ? new URL(given) : null;
  if (url === null || !["http:", "https:"].includes(url.protocol)) {
    throw new ConfigError(`BURSAR_BASE_URL must begin with http:// or https://, not "${given}".`);
  }
  if (url.protocol !== "https:" && key.startsWith("bur_live_") && !isLoopback(url.hostname)) {
    throw new ConfigError(
      `BURSAR_BASE_URL must begin with https:// for a live key, not "${given}"; or be loopback.`,
    );
  }
  return [key, given.replace(/\/+$/, "")];
}

function isLoopback(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** Of Node, Deno and Bun; an edge runtime may have none, and one may forbid it. */
function environment(name: string): string | undefined {
  try {
    const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
    return process?.env?.[name] || undefined;
  } catch {
    return undefined;
  }
}
