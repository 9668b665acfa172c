// The price staircase: what a forward of n new tokens costs, and which sizes an answer used.

import { number, say } from "./words.js";

const HEIGHT = 196;
const EDGE = { right: 8, top: 22, bottom: 40 };
const LETTER = 8; // pixels, about
const USUAL = 16; // sizes shown when no step was larger
const ROOM = 19; // pixels that a size's number needs

/** Draw `prices` ([[n, seconds], …]) into `host`; `sizes`: tokens in a forward -> steps of the answer. */
export function drawPrices(host, prices, sizes) {
  const width = Math.max(host.clientWidth, 240);
  const largest = prices.at(-1)[0];
  const most = Math.max(Math.min(largest, USUAL), ...sizes.keys());
  const bars = Array.from({ length: most }, (_, i) => ({
    n: i + 1,
    ms: 1000 * secondsAt(prices, i + 1),
    steps: sizes.get(i + 1) ?? 0,
  }));
  const top = niceTop(Math.max(...bars.map((bar) => bar.ms)));
  const ticks = Array.from({ length: Math.round(top.value / top.step) + 1 }, (_, i) => i * top.step);
  const left = LETTER * (Math.max(...ticks.map((ms) => label(ms).length)) + 1);
  const room = (width - left - EDGE.right) / most;
  const y = (ms) => HEIGHT - EDGE.bottom - (ms / top.value) * (HEIGHT - EDGE.top - EDGE.bottom);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": summary(bars) });
  for (const ms of ticks) chart.append(...gridline(ms, left, y(ms), width));
  const every = Math.ceil(ROOM / room);
  for (const bar of bars) chart.append(...column(bar, left + (bar.n - 1) * room, room, y, every));
  chart.append(words(width - EDGE.right, HEIGHT - 6, say("prices.axis"), "axis end"));
  host.replaceChildren(chart);
}

const label = (ms) => (ms ? `${+ms.toPrecision(3)} ms` : "0");

function gridline(ms, left, y, width) {
  const line = svg("line", { x1: left, x2: width - EDGE.right, y1: y, y2: y, class: "grid" });
  return [line, words(left - LETTER, y + 4, label(ms), "axis end")];
}

function column(bar, left, room, y, every) {
  const place = { x: left + room * 0.13, width: room * 0.74, y: y(bar.ms), height: Math.max(y(0) - y(bar.ms), 1), rx: 1.5 };
  const rect = svg("rect", { ...place, class: bar.steps ? "used" : "price" });
  const title = svg("title", {});
  title.textContent = barWords(bar);
  rect.append(title);
  const parts = [rect];
  const middle = left + room / 2;
  if (bar.n === 1 || bar.n % every === 0) parts.push(words(middle, HEIGHT - EDGE.bottom + 15, bar.n, "axis"));
  if (bar.steps) parts.push(words(middle, y(bar.ms) - 5, bar.steps, "count"));
  return parts;
}

function barWords(bar) {
  const price = say("prices.bar", { n: bar.n, ms: number(bar.ms) });
  return bar.steps ? `${price}; ${say("prices.bar.used", { n: bar.steps })}` : price;
}

/** The chart in words, for those who cannot see it. */
function summary(bars) {
  const told = bars.map(barWords);
  return `${say("prices")}: ${told.join(". ")}`;
}

/** Straight lines between the sizes of the list; beyond the last one, on along the last line. */
export function secondsAt(prices, n) {
  if (prices.length === 1) return prices[0][1] * (n / prices[0][0]);
  let i = prices.findIndex(([size]) => size >= n);
  if (i < 0) i = prices.length - 1;
  if (prices[i][0] === n) return prices[i][1];
  const [[a, s], [b, t]] = [prices[Math.max(i - 1, 0)], prices[Math.max(i, 1)]];
  return Math.max(s + ((t - s) * (n - a)) / (b - a), Math.min(s, t));
}

/** A round top of the scale and its steps, three or four of them. */
function niceTop(most) {
  const rough = Math.max(most, 1e-6) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size * 4 >= most);
  return { step, value: Math.ceil(most / step) * step };
}

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function words(x, y, text, look) {
  const element = svg("text", { x, y, class: look });
  element.textContent = text;
  return element;
}
