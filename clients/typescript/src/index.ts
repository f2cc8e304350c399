export { AgentClient, Bursar, type AgentSpend, type BursarOptions } from "./client.js";
export type { Options, PostOptions, WaitOptions } from "./endpoint.js";
export * from "./errors.js";
export type { Bought, BuyInit, BuyOptions } from "./fetch.js";
export * from "./generated/errors.js";
export * from "./generated/resources.js";
export type * from "./generated/types.js";
export { Pages, type Page } from "./pages.js";
export { verifyWebhook } from "./webhooks.js";
