// One answer: its text by origin, its numbers, its legend, and what the server said about drafting.

import { Tally } from "./tally.js";
import { number, say, translate } from "./words.js";

const LOOKS = { target: 0, suffix: 1, model: 2, predicted: 3, recycle: 4, grammar: 5, corpus: 6 };
const OTHER = 7; // drafters of plug-ins

const look = (origin) => LOOKS[origin] ?? OTHER;
const called = (origin) => (origin === "target" ? say("origin.target") : origin);

export class Answer {
  text = "";
  finish = null; // the server's reason, once it is over
  speculative = null; // the server's object on what drafting did
  tally = new Tally();
  #usage = null;
  #seed;
  #first = NaN; // seconds until the first text
  #began = NaN;

  /** `name` is a word: plain or speculative. */
  constructor(host, name, seed) {
    this.name = name;
    this.#seed = seed;
    this.element = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    translate(this.element);
    this.#part("h2").textContent = say(name);
    this.#part(".text").setAttribute("aria-label", say(name));
    this.element.dataset.name = name;
    host.append(this.element);
    this.state("waiting");
    this.draw();
  }

  #part(selector) {
    return this.element.querySelector(selector);
  }

  state(name) {
    this.element.dataset.state = name;
    this.#part(".pill").textContent = say(`state.${name}`);
  }

  begin() {
    this.#began = performance.now();
    this.state("reading");
  }

  /** Take in a chunk of the stream. */
  add(chunk) {
    const choice = chunk.choices?.[0];
    const { segments = [], step = null, ...told } = chunk.speculative ?? {};
    if (segments.length) this.#write(segments, step);
    if (step) this.tally.step(step);
    if (told.mode) this.#settle(told);
    if (chunk.usage) this.#usage = chunk.usage;
    if (choice?.finish_reason) {
      this.finish = choice.finish_reason;
      this.state(this.finish === "length" ? "length" : "done");
    }
  }

  #write(segments, step) {
    if (!this.text) {
      this.#first = (performance.now() - this.#began) / 1000;
      this.state("writing");
    }
    this.tally.segments(segments);
    for (const { text, origin } of segments) {
      const span = document.createElement("span");
      span.className = `o${look(origin)}`;
      span.title = title(origin, step);
      span.textContent = text; // never HTML, whatever the model writes
      this.#part(".text").append(span);
      this.text += text;
    }
  }

  #settle(told) {
    this.speculative = told;
    this.tally.settle(told);
    const why = this.#part(".why");
    why.hidden = !told.reason || this.name === "plain";
    why.textContent = say("note.off", { reason: told.reason });
  }

  /** Show the numbers and the legend as they are now. */
  draw() {
    const t = this.tally;
    const guessed = t.verified > 0;
    const shown = {
      speed: [number(t.speed), Number.isFinite(this.#first) ? say("speed.first", { s: number(this.#first, 2) }) : ""],
      acceptance: [
        guessed ? `${number(100 * t.rate, 0)} %` : "–",
        guessed ? say("acceptance.of", { accepted: t.accepted, verified: t.verified }) : say("acceptance.none"),
      ],
      length: [number(t.length, 2), say("length.unit")],
      steps: [String(t.steps), say("steps.drafted", { n: t.drafted })],
    };
    for (const [name, [value, more]] of Object.entries(shown)) {
      this.#part(`[data-figure=${name}]`).textContent = value;
      this.#part(`[data-more=${name}]`).textContent = more;
    }
    const unit = document.createElement("small");
    unit.textContent = ` ${say("speed.unit")}`;
    this.#part("[data-figure=speed]").append(unit);
    this.#legend();
    this.#notes();
  }

  #legend() {
    const origins = [...this.tally.origins].sort((a, b) => look(a[0]) - look(b[0]));
    const total = origins.reduce((sum, [, n]) => sum + n, 0);
    this.#part(".legend").hidden = !total;
    if (!total) return;
    let left = 0;
    const bars = origins.map(([origin, n]) => {
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const place = { x: left, y: 0, width: (100 * n) / total, height: 1, class: `o${look(origin)}` };
      for (const [key, value] of Object.entries(place)) bar.setAttribute(key, value);
      left += place.width;
      return bar;
    });
    this.#part(".shares").replaceChildren(...bars);
    const items = origins.map(([origin, n]) => {
      const name = document.createElement("span");
      name.className = `o${look(origin)}`;
      name.textContent = called(origin);
      return item(name, ` ${number((100 * n) / total, 0)} %`);
    });
    this.#part(".legend ul").replaceChildren(...items);
  }

  #notes() {
    const told = this.speculative;
    const usage = this.#usage;
    const items = [];
    for (const [name, words] of Object.entries(told?.drafters ?? {})) items.push(drafterItem(name, words));
    for (const note of told?.notes ?? []) if (!told.reason || !note.includes(told.reason)) items.push(item(note));
    const saved = told?.time_saved_s;
    if (told?.verified && Number.isFinite(saved) && Math.abs(saved) >= 0.05) {
      items.push(item(say(saved > 0 ? "note.saved" : "note.lost", { s: number(Math.abs(saved)) })));
    }
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      const values = { prompt: usage.prompt_tokens, cached, answer: usage.completion_tokens, seed: this.#seed };
      items.push(item(say("note.usage", values)));
    }
    this.#part(".notes").replaceChildren(...items);
  }
}

/** What a token's tooltip says. */
function title(origin, step) {
  if (origin === "target") return say("origin.title.target");
  const { accepted = "?", verified = "?" } = step ?? {};
  return say("origin.title", { name: origin, accepted, verified });
}

/** A drafter's word: "active: …" or "paused: why". */
function drafterItem(name, words) {
  const [, state, rest] = words.match(/^(active|paused): ?(.*)$/s) ?? [null, null, words];
  const strong = document.createElement("strong");
  strong.textContent = state ? `${name} · ${say(`drafter.${state}`)}` : name;
  return item(strong, `: ${rest}`);
}

function item(...parts) {
  const li = document.createElement("li");
  li.append(...parts);
  return li;
}
