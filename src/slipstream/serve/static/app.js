// The page: loads what the server runs, sends prompts, and shows what comes back.

import { Answer } from "./answer.js";
import { awaitComparison, showComparison } from "./compare.js";
import { drawPrices, secondsAt } from "./prices.js";
import { apiKey, checkSchema, offerDrafters, plain, readRequest, setApiKey } from "./settings.js";
import { ask, chunks, Trouble } from "./stream.js";
import { language, number, say, translate } from "./words.js";

const $ = (id) => document.getElementById(id);
const LEARNING = ["recycle", "corpus"]; // drafters that remember earlier answers
let props = null; // what the server runs, once it is known
let running = null; // the AbortController of the request that runs
let sizes = new Map(); // tokens in a forward -> steps of the last answer
let painting = 0;
let again = load; // what "Try again" does
const drafted = new Set(); // prompts that were drafted for since the page was opened

// -- what the server runs ----------------------------------------------------------------------------------------

async function load() {
  $("server").textContent = say("server.loading");
  try {
    props = await (await ask("props", apiKey())).json();
    clearTrouble();
    showServer();
  } catch (error) {
    $("server").textContent = error.status ? "" : say("server.gone");
    showTrouble(error, load);
  }
}

/** Prices and the drafters' words change while it runs. */
async function refresh() {
  try {
    props = await (await ask("props", apiKey())).json();
    showServer();
  } catch {
    // the next request will tell
  }
}

function showServer() {
  const { model, n_ctx, slots, version, speculative } = props;
  const parts = [say("server.context", { n: n_ctx }), say(slots === 1 ? "server.slot" : "server.slots", { n: slots }), version];
  const name = document.createElement("strong");
  name.textContent = model;
  $("server").replaceChildren(name, ` · ${parts.filter(Boolean).join(" · ")}`);
  const names = speculative.drafter?.split("+") ?? [];
  const words = speculative.active ? say("drafting.on", { names: names.join(", ") }) : say("drafting.off", { reason: speculative.reason });
  $("drafting").textContent = words;
  $("drafting").dataset.state = speculative.active ? "on" : "off";
  $("drafting").hidden = false;
  offerDrafters(names, speculative.drafters);
  showPrices();
}

function showPrices() {
  const { target, ...others } = props?.prices ?? {};
  if (!target?.length) {
    $("prices").replaceChildren();
    $("prices_note").textContent = say(props ? "prices.none" : "prices.unknown");
    return;
  }
  drawPrices($("prices"), target, sizes);
  const n = Math.min(8, target.at(-1)[0]);
  const times = number(secondsAt(target, n) / secondsAt(target, 1), 2);
  const guesses = Object.entries(others).filter(([, list]) => list.length);
  const notes = [
    n > 1 ? say("prices.times", { n, times }) : "",
    ...guesses.map(([name, list]) => say("prices.drafter", { name, ms: number(1000 * secondsAt(list, 1)) })),
    sizes.size ? say("prices.used") : "",
  ];
  $("prices_note").textContent = notes.filter(Boolean).join(" ");
}

// -- trouble -----------------------------------------------------------------------------------------------------

function showTrouble(error, retry) {
  const [message, hint] = troubleWords(error);
  if (error.status === 401) askForKey();
  $("trouble_message").textContent = message;
  $("trouble_hint").textContent = hint;
  $("trouble").hidden = false;
  $("trouble").scrollIntoView({ block: "nearest" });
  again = retry;
}

function troubleWords(error) {
  if (!(error instanceof Trouble)) return [say("trouble.unknown", { why: error.message }), ""];
  if (["gone", "broken"].includes(error.message)) return [say(`trouble.${error.message}`), say(`trouble.${error.message}.hint`)];
  if (error.status === 401) return [say(apiKey() ? "key.wrong" : "key.needed"), `${error.message} ${error.hint}`];
  const later = error.retryAfter ? say("trouble.later", { s: error.retryAfter }) : "";
  return [error.message, [error.hint, later].filter(Boolean).join(" ")];
}

function clearTrouble() {
  $("trouble").hidden = true;
  again = load;
}

function askForKey() {
  $("key").hidden = false;
  $("api_key").focus();
}

function useKey() {
  setApiKey($("api_key").value.trim());
  again();
}

// -- asking ------------------------------------------------------------------------------------------------------

function send(event) {
  event.preventDefault();
  if (!running) run(readRequest(), $("both").checked);
}

/** One answer, or a plain and a speculative one after the other: at once they would share the machine. */
async function run(body, both) {
  begin(both);
  const about = JSON.stringify(body.messages);
  const remembered = drafted.has(about) && LEARNING.some((name) => props?.speculative.drafter?.split("+").includes(name));
  const off = body.speculative.mode === "off";
  const answers = (both ? ["plain", "speculative"] : [off ? "plain" : "speculative"]).map(
    (name) => new Answer($("answers"), name, body.seed),
  );
  try {
    for (const answer of answers) await follow(answer, both && answer.name === "plain" ? plain(body) : body);
    if (both) showComparison($("comparison"), ...answers, remembered);
    tell("done");
  } catch (error) {
    broken(error, answers, () => run(body, both));
  }
  if (!off) drafted.add(about);
  end();
}

function begin(both) {
  running = new AbortController();
  sizes = new Map();
  clearTrouble();
  $("empty").hidden = $("comparison").hidden = true;
  if (both) awaitComparison($("comparison"));
  $("answers").replaceChildren();
  $("answers").classList.toggle("both", both);
  $("stop").disabled = false;
  if (document.activeElement === $("send")) $("stop").focus();
  $("send").disabled = true;
}

async function follow(answer, body) {
  answer.begin();
  tell("reading", answer);
  sizes = answer.tally.sizes;
  let began = false;
  for await (const chunk of chunks("v1/chat/completions", apiKey(), body, running.signal)) {
    answer.add(chunk);
    if (!began && answer.text) tell("writing", answer);
    began ||= Boolean(answer.text);
    paint(answer);
  }
  paint(answer);
}

/** It was stopped, or failed: what came stays, what never began goes. */
function broken(error, answers, retry) {
  const state = error.name === "AbortError" ? "stopped" : "failed";
  for (const answer of answers.filter((one) => !one.finish)) {
    answer.state(state);
    if (!answer.text) answer.element.remove();
    else answer.draw();
  }
  $("comparison").hidden = true;
  tell(state);
  if (state === "failed") showTrouble(error, retry);
  $("empty").hidden = state === "failed" || $("answers").childElementCount > 0;
}

function end() {
  running = null;
  $("send").disabled = false;
  if (document.activeElement === $("stop")) $("send").focus();
  $("stop").disabled = true;
  refresh();
}

function stop() {
  running?.abort();
}

function tell(state, answer) {
  $("status").textContent = say(`status.${state}`, { which: answer && say(answer.name) });
  document.body.dataset.state = state;
}

/** Numbers and chart at most once a frame. */
function paint(answer) {
  cancelAnimationFrame(painting);
  if (answer.finish) return draw(answer);
  painting = requestAnimationFrame(() => draw(answer));
}

function draw(answer) {
  answer.draw();
  showPrices();
}

// -- the page ----------------------------------------------------------------------------------------------------

function keys(event) {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !running) $("ask").requestSubmit();
}

function fillExample(event) {
  const name = event.target.dataset.example;
  if (!name) return;
  $("prompt").value = say(`text.${name}`);
  $("prompt").focus();
}

function keyEntered(event) {
  if (event.key !== "Enter") return;
  event.preventDefault();
  useKey();
}

document.documentElement.lang = language;
translate(document);
$("key").hidden = !apiKey();
$("api_key").value = apiKey();
$("settings").open = matchMedia("(min-width: 60rem)").matches;
$("ask").addEventListener("submit", send);
$("ask").addEventListener("invalid", (event) => (event.target.closest("details") ?? {}).open ||= true, true);
$("schema").addEventListener("input", checkSchema);
$("stop").addEventListener("click", stop);
$("retry").addEventListener("click", () => again());
$("use_key").addEventListener("click", useKey);
$("api_key").addEventListener("keydown", keyEntered);
document.addEventListener("click", fillExample);
document.addEventListener("keydown", keys);
new ResizeObserver(showPrices).observe($("prices"));
load();
