// The form: from its fields to a request.

import { say } from "./words.js";

const field = (id) => document.getElementById(id);
const KEY = "slipstream.api_key";
const NOT_KEPT = { value: "" }; // where a browser refuses storage, the key lives as long as the page

/** The API key of this tab, if one was given. */
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? NOT_KEPT.value;
  } catch {
    return NOT_KEPT.value;
  }
}

export function setApiKey(value) {
  NOT_KEPT.value = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // kept above
  }
}

/** A tick for each drafter of the server, saying whether it is paused. What was ticked stays so. */
export function offerDrafters(names, words) {
  field("drafters").hidden = !names.length;
  if (names.join() !== boxes().map((box) => box.value).join()) field("drafter_list").replaceChildren(...names.map(tick));
  for (const box of boxes()) {
    const label = box.closest("label");
    label.title = words[box.value] ?? "";
    const state = /^(active|paused)/.exec(label.title)?.[0];
    label.querySelector("small").textContent = state ? say(`drafter.${state}`) : "";
  }
}

function tick(name) {
  const label = document.createElement("label");
  const box = document.createElement("input");
  const before = boxes().find((one) => one.value === name);
  Object.assign(box, { type: "checkbox", value: name, checked: before?.checked ?? true });
  label.append(box, name, document.createElement("small"));
  return label;
}

const boxes = () => [...field("drafter_list").querySelectorAll("input")];

/** The body of a request for chat completions; `speculative` is what its mode "auto" means here. */
export function readRequest() {
  const seed = field("seed").value.trim();
  const body = {
    messages: [{ role: "user", content: field("prompt").value }],
    temperature: Number(field("temperature").value),
    top_p: Number(field("top_p").value),
    max_tokens: Number(field("max_tokens").value),
    seed: seed ? Number(seed) : crypto.getRandomValues(new Uint32Array(1))[0],
    stream: true,
    stream_options: { include_usage: true },
    speculative: speculation(),
  };
  const system = field("system").value;
  if (system.trim()) body.messages.unshift({ role: "system", content: system });
  const prediction = field("prediction").value;
  if (prediction) body.prediction = { type: "content", content: prediction };
  const schema = field("schema").value.trim();
  if (schema) {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: JSON.parse(schema) } };
  }
  return body;
}

/** The same request, plain. */
export const plain = (body) => ({ ...body, speculative: { mode: "off", detail: true } });

function speculation() {
  const ticked = boxes().filter((box) => box.checked);
  if (boxes().length && !ticked.length) return { mode: "off", detail: true };
  const some = ticked.length < boxes().length ? { drafters: ticked.map((box) => box.value) } : {};
  return { mode: "auto", detail: true, ...some };
}

/** Tell the browser what is wrong with the schema, so that it shows it at the field. */
export function checkSchema() {
  const text = field("schema").value.trim();
  field("schema").setCustomValidity(text ? schemaFault(text) : "");
}

function schemaFault(text) {
  try {
    const schema = JSON.parse(text);
    const object = typeof schema === "object" && schema !== null && !Array.isArray(schema);
    return object || typeof schema === "boolean" ? "" : say("schema.kind");
  } catch (error) {
    return say("schema.bad", { why: error.message });
  }
}
