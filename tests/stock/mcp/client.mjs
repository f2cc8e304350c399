// One of the two official clients, as it is published: connects, lists and reads what there is, makes
// the calls that it is given, and prints what it saw. `decide`: where asked to open a page, the person
// before it goes there and decides with the key of an approver, then answers.
import * as current from "@modelcontextprotocol/client";
import * as currentStdio from "@modelcontextprotocol/client/stdio";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const { kit, url, key, command, calls, decide } = JSON.parse(process.argv[2]);
const asked = [];

async function opened({ params }) {
  asked.push(params);
  const id = params.url.split("/").at(-1);
  const done = await fetch(`${url}/v1/transactions/${id}/${decide.how}`, {
    method: "POST",
    headers: { Authorization: `Bearer ${decide.key}` },
  });
  if (!done.ok) throw new Error(await done.text());
  return { action: "accept" };
}

function sdk() {
  const client = new Client({ name: "check", version: "1" }, { capabilities });
  if (decide) client.setRequestHandler(ElicitRequestSchema, opened);
  return [client, StreamableHTTPClientTransport, StdioClientTransport];
}

function latest() {
  const options = { capabilities, versionNegotiation: { mode: "auto" } };
  const client = new current.Client({ name: "check", version: "1" }, options);
  if (decide) client.setRequestHandler("elicitation/create", opened);
  return [client, current.StreamableHTTPClientTransport, currentStdio.StdioClientTransport];
}

const capabilities = decide ? { elicitation: { url: {} } } : {};
const [client, Http, Stdio] = kit === "sdk" ? sdk() : latest();
const transport = command
  ? new Stdio({ ...command, stderr: "inherit" })
  : new Http(new URL(`${url}/mcp`), {
      requestInit: { headers: { Authorization: `Bearer ${key}` } },
    });
// The older kit tells the revision to its transport alone.
let version;
const told = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (revision) => {
  version = revision;
  told?.(revision);
};
await client.connect(transport);
// Once it has the list, it holds every answer against the output schema of its tool.
const { tools } = await client.listTools();
const { resources } = await client.listResources();
const policy = await client.readResource({ uri: resources[0].uri });
const answers = [];
for (const [name, args] of calls) {
  answers.push(await client.callTool({ name, arguments: args }));
}
version = client.getNegotiatedProtocolVersion?.() ?? version;
console.log(JSON.stringify({ version, tools, resources, policy, answers, asked }));
await client.close();
