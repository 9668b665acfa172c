// Two answers to one request: how much sooner, and whether they are the same text.

import { number, say } from "./words.js";

const SHOWN = 24; // characters of each text where they differ

/** Keep the place free while the answers are still being written. */
export function awaitComparison(host) {
  delete host.dataset.same;
  host.querySelector("#ratio").textContent = "–";
  host.querySelector("#ratio_words").textContent = say("ratio.wait");
  host.querySelector("#same").textContent = "";
  host.hidden = false;
}

/** Fill the comparison's fields from the plain and the speculative answer, both complete. */
export function showComparison(host, plain, speculative, remembered) {
  const [slow, fast] = [plain.tally.speed, speculative.tally.speed];
  const ratio = fast / slow;
  const known = Number.isFinite(ratio);
  host.querySelector("#ratio").textContent = known ? `${number(ratio, 2)}×` : "–";
  const words = known ? say("ratio.words", { fast: number(fast), slow: number(slow) }) : say("ratio.none");
  host.querySelector("#ratio_words").textContent = remembered ? `${words} ${say("ratio.again")}` : words;
  const at = firstDifference(plain.text, speculative.text);
  host.dataset.same = String(at < 0);
  host.querySelector("#same").textContent = at < 0 ? `✓ ${say("same.yes")}` : differenceWords(at, plain, speculative);
}

/** Where two texts first differ, counted in characters; -1 when they do not. */
export function firstDifference(a, b) {
  if (a === b) return -1;
  const [left, right] = [[...a], [...b]];
  const at = left.findIndex((character, i) => character !== right[i]);
  return at < 0 ? left.length : at;
}

function differenceWords(at, plain, speculative) {
  const rest = (text) => [...text].slice(at, at + SHOWN).join("") || say("same.end");
  const words = say("same.no", { at: at + 1, plain: rest(plain.text), speculative: rest(speculative.text) });
  const { verify, lossy } = speculative.speculative ?? {};
  if (lossy) return `≠ ${words} ${say("same.lossy", { verify })}`;
  if (verify && verify !== "exact") return `≠ ${words} ${say("same.sampled", { verify })}`;
  return `≠ ${words} ${say("same.exact")}`;
}
