// What the reference page can do beyond being read: search, one language at a time, and requests
// with a test key. Without this script the page still shows everything.
"use strict";

const $ = (id) => document.getElementById(id);
const searchBox = $("search");
const keyBox = $("key");

for (const hidden of document.querySelectorAll("[data-needs-script]")) hidden.hidden = false;

// Search -----------------------------------------------------------------------------------------

const entries = [...document.querySelectorAll("main > section")].map((section) => ({
  section,
  text: section.textContent.toLowerCase(),
  link: document.querySelector(`nav a[href="#${CSS.escape(section.id)}"]`)?.parentElement,
}));

function search() {
  const words = searchBox.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const { section, text, link } of entries) {
    const shown = words.every((word) => text.includes(word));
    section.hidden = !shown;
    if (link) link.hidden = !shown;
    found += shown;
  }
  for (const heading of document.querySelectorAll("main > h2.group")) {
    let next = heading.nextElementSibling;
    while (next?.matches("section") && next.hidden) next = next.nextElementSibling;
    heading.hidden = !next?.matches("section");
  }
  for (const heading of document.querySelectorAll("nav h2")) {
    heading.hidden = !heading.nextElementSibling.querySelector("li:not([hidden])");
  }
  $("found").textContent = words.length ? `${found} found` : "";
}

searchBox.addEventListener("input", search);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    searchBox.focus();
  } else if (event.key === "Escape" && event.target === searchBox) {
    searchBox.value = "";
    search();
  }
});

// A link to a section that the search has hidden shows it again.
addEventListener("hashchange", () => {
  if ($(location.hash.slice(1))?.hidden) {
    searchBox.value = "";
    search();
    $(location.hash.slice(1)).scrollIntoView();
  }
});

// Languages --------------------------------------------------------------------------------------

function show(language) {
  for (const sample of document.querySelectorAll("[data-language]")) {
    sample.hidden = sample.dataset.language !== language;
  }
}

$("language").addEventListener("change", (event) => show(event.target.value));
show($("language").value);

for (const sample of document.querySelectorAll("[data-language]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(sample.querySelector("pre").textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  // Browsers give pages that came without TLS from another machine no clipboard.
  if (navigator.clipboard) sample.querySelector("figcaption").append(button);
}

// Requests ---------------------------------------------------------------------------------------

// Exports may be long.
const MOST_SHOWN = 100_000;

let asked;
const openapi = () => (asked ??= fetch("/openapi.json").then((answer) => answer.json()));

for (const button of document.querySelectorAll("button[data-method]")) {
  button.addEventListener("click", async () => {
    button.disabled = true;
    const { method, path } = button.dataset;
    try {
      const operation = (await openapi()).paths[path][method.toLowerCase()];
      button.replaceWith(form(method, path, operation));
    } catch {
      asked = undefined;
      button.disabled = false;
      button.textContent = "No answer from the service. Try again";
    }
  });
}

function form(method, path, operation) {
  const made = document.createElement("form");
  made.className = "try";
  made.noValidate = true;
  const fields = operation.parameters
    .filter((one) => one.in !== "header")
    .map((one) => ({ ...one, input: field(made, one.name, "input", "") }));
  const content = operation.requestBody?.content["application/json"];
  const body =
    content && field(made, "Body", "textarea", JSON.stringify(content.example ?? {}, null, 2));
  const send = document.createElement("button");
  send.textContent = "Send";
  const output = document.createElement("pre");
  output.setAttribute("role", "status");
  output.hidden = true;
  made.append(send, output);
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    output.textContent = await outcome(method, path, fields, body?.value);
    output.hidden = false;
    send.disabled = false;
  });
  return made;
}

function field(parent, name, kind, value) {
  const label = document.createElement("label");
  const input = document.createElement(kind);
  input.value = value;
  input.spellcheck = false;
  input.autocomplete = "off";
  if (kind === "textarea") input.rows = Math.min(20, value.split("\n").length);
  label.append(name, input);
  parent.append(label);
  return input;
}

async function outcome(method, path, fields, body) {
  const key = keyBox.value.trim();
  if (!key.startsWith("bur_test_")) {
    keyBox.focus();
    return "Enter a test key first, at the top of the page. It stays in this page, and live keys are not taken.";
  }
  let address = path;
  const query = new URLSearchParams();
  for (const one of fields) {
    const value = one.input.value.trim();
    if (one.in === "query") {
      if (value) query.set(one.name, value);
    } else if (value) {
      address = address.replace(`{${one.name}}`, encodeURIComponent(value));
    } else {
      one.input.focus();
      return `${one.name} is part of the address: fill it in.`;
    }
  }
  const headers = { Authorization: `Bearer ${key}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method === "POST") headers["Idempotency-Key"] = random();
  const url = `${query}` ? `${address}?${query}` : address;
  const signal = AbortSignal.timeout(60_000);
  try {
    const answer = await fetch(url, { method, headers, body, signal, credentials: "omit" });
    const text = pretty(await answer.text());
    const cut = text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}\n…` : text;
    return `${method} ${url}\n${answer.status} ${answer.statusText}\n\n${cut}`;
  } catch {
    return "No whole answer within a minute. Is the service running?";
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// crypto.randomUUID is missing where the page came without TLS from another machine.
const random = () =>
  [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");
