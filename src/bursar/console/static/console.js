// What a page needs beyond HTML: the reader's time zone, news, copying, a sign of waiting.
"use strict";

const NEWS_EVERY_MS = 2500;
const NEWS_SELDOM_MS = 30000;
const MOST_QUEUED = 200;

// Moments ----------------------------------------------------------------------------------------

const TO_THE_MINUTE = { hour: "2-digit", minute: "2-digit" };
const SHAPES = {
  hour: TO_THE_MINUTE,
  minute: { day: "numeric", month: "short", ...TO_THE_MINUTE },
  second: { day: "numeric", month: "short", ...TO_THE_MINUTE, second: "2-digit" },
};

function showMoments(root) {
  const thisYear = new Date().getFullYear();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const shape = { ...SHAPES[element.dataset.as] };
    if (shape.day && moment.getFullYear() !== thisYear) shape.year = "numeric";
    element.textContent = moment.toLocaleString(undefined, shape);
  }
}

// News -------------------------------------------------------------------------------------------

// A page that is open asks its own address whether anything happened since its mark. When something
// did, the answer is the page as it is now, and its regions take the place of those shown.
class News {
  constructor(body) {
    this.body = body;
    this.sign = document.getElementById("live");
    this.failures = 0;
    this.sign.hidden = false;
    this.say("live", "Up to date");
    document.addEventListener("visibilitychange", () => this.plan(0));
    this.plan(NEWS_EVERY_MS);
  }

  plan(ms) {
    clearTimeout(this.timer);
    // At random, so that pages of one session take turns: it gets a newly drawn page once a second.
    const spread = ms * (0.8 + 0.4 * Math.random());
    if (!document.hidden && !this.ended) this.timer = setTimeout(() => this.ask(), spread);
  }

  async ask() {
    let wait = NEWS_EVERY_MS;
    try {
      const answer = await fetch(location.href, {
        headers: { "Bursar-Mark": this.body.dataset.mark },
        credentials: "same-origin",
        redirect: "error",
        signal: AbortSignal.timeout(10000),
      });
      if (answer.status === 401) return this.end();
      if (!answer.ok) throw new Error(`answered ${answer.status}`);
      this.failures = 0;
      if (answer.status === 200 && !this.take(await answer.text())) {
        this.say("waits", "News wait while you type");
      } else {
        this.say("live", "Up to date");
      }
    } catch {
      this.failures += 1;
      this.say("away", "Not connected; trying again");
      wait = Math.min(NEWS_EVERY_MS * 2 ** this.failures, NEWS_SELDOM_MS);
    }
    this.plan(wait);
  }

  // Whether the page was refreshed. It is not while its reader types or is about to decide.
  take(text) {
    if (document.querySelector("dialog[open]")) return false;
    const page = new DOMParser().parseFromString(text, "text/html");
    const regions = [...document.querySelectorAll("[data-region]")];
    const busy = document.activeElement;
    if (busy && busy.matches("input, textarea, select") && busy.closest("[data-region]")) return false;
    let fresh = 0;
    for (const region of regions) {
      const renewed = page.getElementById(region.id);
      if (!renewed) continue;
      showMoments(renewed);
      fresh += "queue" in region.dataset ? this.queue(region, renewed) : this.renew(region, renewed);
    }
    // A page that has come to its end has no mark, and there is nothing more to ask for.
    this.ended = !page.body.dataset.mark;
    this.sign.hidden = this.ended;
    this.body.dataset.mark = page.body.dataset.mark;
    if (fresh) {
      document.getElementById("news").textContent = fresh === 1 ? "One new entry" : `${fresh} new entries`;
    }
    return true;
  }

  // A button must not move just before it is pressed: entries that left the queue are marked in
  // their place, and new ones are added at the end.
  queue(region, renewed) {
    const shown = rowsOf(region);
    const waiting = rowsOf(renewed);
    if (!shown.size || !waiting.size) return this.renew(region, renewed);
    // Keys grow with time. If there is a next page, entries older than this page's last may be there.
    const end = "more" in renewed.dataset ? [...waiting.keys()].sort()[0] : "";
    for (const [key, row] of shown) {
      if (waiting.has(key) || key < end || row.inert) continue;
      row.inert = true;
      row.querySelector(".until").textContent = "no longer waits";
    }
    const fresh = [...waiting].filter(([key]) => !shown.has(key)).map(([, row]) => row);
    if (shown.size + fresh.length > MOST_QUEUED) return 0;
    for (const row of fresh) row.classList.add("fresh");
    region.append(...fresh);
    return fresh.length;
  }

  renew(region, renewed) {
    if (region.innerHTML === renewed.innerHTML) return 0;
    const known = rowsOf(region);
    const open = new Set([...region.querySelectorAll("details[open][id]")].map((part) => part.id));
    const focused = region.contains(document.activeElement) ? placeOf(document.activeElement) : null;
    region.replaceChildren(...renewed.childNodes);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused) region.querySelector(focused)?.focus({ preventScroll: true });
    let fresh = 0;
    for (const row of region.querySelectorAll("[data-key]")) {
      if (!known.has(row.dataset.key)) {
        row.classList.add("fresh");
        fresh += 1;
      }
    }
    return fresh;
  }

  end() {
    this.ended = true;
    this.say("away", "Your session has ended. ");
    const link = document.createElement("a");
    link.href = `/console/sign-in?ended=1&next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "Sign in";
    this.sign.append(link);
  }

  say(state, words) {
    this.sign.dataset.state = state;
    this.sign.querySelector(".says").textContent = words;
  }
}

// The entries of a region by their keys.
function rowsOf(region) {
  return new Map([...region.querySelectorAll("[data-key]")].map((row) => [row.dataset.key, row]));
}

// A selector that finds the same link or button again in a refreshed region.
function placeOf(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  if (element.matches("a[href]")) return `a[href="${CSS.escape(element.getAttribute("href"))}"]`;
  if (element.hasAttribute("commandfor")) return `[commandfor="${CSS.escape(element.getAttribute("commandfor"))}"]`;
  return null;
}

// Suggestions ------------------------------------------------------------------------------------

const SUGGEST_AFTER_MS = 200;

// A field that suggests more than the page could hold asks for what fits, once its reader pauses.
function suggest(field) {
  clearTimeout(field.pausing);
  field.pausing = setTimeout(async () => {
    const typed = field.value.trim();
    const isChoice = [...field.list.options].some((option) => option.value === typed);
    if (!typed || isChoice) return;
    const question = `${field.dataset.suggest}?${new URLSearchParams({ q: typed })}`;
    const answer = await fetch(question, { redirect: "error" }).catch(() => null);
    if (!answer?.ok || field.value.trim() !== typed) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    field.list.replaceChildren(...page.querySelectorAll("option"));
  }, SUGGEST_AFTER_MS);
}

document.addEventListener("input", (event) => {
  if (event.target.dataset.suggest) suggest(event.target);
});

// Clicks -----------------------------------------------------------------------------------------

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    // Copying is not allowed on plain HTTP: select the text, so that one keystroke copies it.
    const text = button.parentElement.querySelector("code");
    if (text) getSelection().selectAllChildren(text);
    button.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

// For browsers that do not support `command` yet.
function command(button) {
  const dialog = document.getElementById(button.getAttribute("commandfor"));
  if (button.getAttribute("command") === "close") dialog.close();
  else if (!dialog.open) dialog.showModal();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy !== undefined) copy(button);
  if (button?.hasAttribute("commandfor") && !("commandForElement" in button)) command(button);
  const link = event.target.closest("a[href]");
  const plain = !event.defaultPrevented && event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
  if (link && plain && !link.hasAttribute("download") && !link.getAttribute("href").startsWith("#")) loading();
});

// A form that is on its way is not sent twice; the server would do it once anyway.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.sent) return event.preventDefault();
  event.target.dataset.sent = "yes";
  event.submitter?.setAttribute("aria-busy", "true");
  loading();
});

function loading() {
  document.documentElement.dataset.loading = "yes";
}

// A page restored from the browser's cache is no longer waiting for an answer.
addEventListener("pageshow", () => {
  delete document.documentElement.dataset.loading;
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  for (const button of document.querySelectorAll("[aria-busy]")) button.removeAttribute("aria-busy");
});

showMoments(document);
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
if (document.body.dataset.mark) new News(document.body);
