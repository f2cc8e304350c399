// One spend, with the types that openapi-typescript generated into build/schema.ts.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { env: Record<string, string | undefined> };

const client = createClient<paths>({
  baseUrl: process.env["BURSAR_BASE_URL"] ?? "",
  headers: { Authorization: `Bearer ${process.env["BURSAR_API_KEY"]}` },
});
const body: components["schemas"]["Spend"] = { amount: "1.50", recipient: "api.example.com" };
const spent = await client.POST("/v1/spend/authorise", {
  body,
  params: { header: { Prefer: "wait=20", "Idempotency-Key": "order-1" } },
});
if (spent.error) throw new Error(spent.error.error.message);
const { status, amount } = spent.data.data;
const me = await client.GET("/v1/me");
const id = me.data?.data.agentId ?? "";
const budget = await client.GET("/v1/agents/{id}/budget", { params: { path: { id } } });
console.log(status, amount, budget.data?.data.spentToday);
