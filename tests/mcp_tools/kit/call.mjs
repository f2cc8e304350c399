// Lists the tools, so that the client knows their output schemas and holds every answer against
// them, then calls each tool that is given. Prints the answers.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, key, calls] = process.argv.slice(2);
const client = new Client({ name: "check", version: "1" });
await client.connect(
  new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers: { Authorization: `Bearer ${key}` } },
  }),
);
await client.listTools();
const answers = [];
for (const [name, args] of JSON.parse(calls)) {
  answers.push(await client.callTool({ name, arguments: args }));
}
await client.close();
console.log(JSON.stringify(answers));
