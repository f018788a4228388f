// The strip of rounds, the speed chart and the cost curve.
import { bits, colour, number, svg } from "./dom.js";

const WINDOW = 8; // rounds that the speed line looks back
const RECENT = 24; // rounds whose place on the cost curve stays visible

export const seconds = (round) => round.seconds.draft + round.seconds.verify + round.seconds.other;

function frame(home) {
  const wide = home.clientWidth || 300, high = home.clientHeight || 120;
  home.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  return { wide, high };
}

/** One bar per round: accepted tokens upwards in their drafters' colours, refused nodes downwards. */
export function drawStrip(home, rounds, here) {
  const { wide, high } = frame(home);
  const shown = rounds.slice(-Math.max(1, Math.floor(wide / 3)));
  const first = rounds.length - shown.length;
  const step = Math.min(14, wide / Math.max(shown.length, 1));
  const base = high * 0.78, tall = Math.min(8, Math.max(4, ...shown.map((round) => round.pieces.length)));
  const waste = Math.max(8, ...shown.map((round) => round.tree.tokens.length - round.path.length));
  const parts = [];
  shown.forEach((round, place) => {
    const x = place * step, thick = Math.max(1, step - 1.5);
    const unit = (base - 2) / Math.max(tall, round.pieces.length); // the tallest are scaled down, not cropped
    if (first + place === here) parts.push(svg("rect", { class: "bar-here", x: x - 0.75, y: 0, width: step, height: high, rx: 2 }));
    round.pieces.forEach((piece, row) => {
      parts.push(svg("rect", {
        class: piece.sources ? "bar-drafted" : "bar-own", "data-source": colour(piece.sources),
        x, y: base - (row + 1) * unit + 0.5, width: thick, height: Math.max(1, unit - 1), rx: 1,
      }));
    });
    const lost = ((round.tree.tokens.length - round.path.length) / waste) * (high - base - 2);
    if (lost > 0) parts.push(svg("rect", { class: "bar-waste", x, y: base + 2, width: thick, height: Math.max(1, lost), rx: 1 }));
  });
  home.replaceChildren(...parts);
  return (x) => first + Math.min(shown.length - 1, Math.max(0, Math.floor(x / step)));
}

/** Tokens, seconds and predicted seconds of plain decoding, summed over rounds. */
export function totals(rounds) {
  const sum = { tokens: 0, seconds: 0, plain: 0, tokensBySource: {} };
  for (const round of rounds) {
    sum.tokens += round.pieces.length;
    sum.seconds += seconds(round);
    sum.plain += round.pieces.length * round.plain;
    for (const piece of round.pieces) for (const bit of piece.sources ? bits(piece.sources).slice(0, 1) : [-1]) sum.tokensBySource[bit] = (sum.tokensBySource[bit] ?? 0) + 1;
  }
  return sum;
}

export function drawSpeed(home, rounds, measured) {
  const { wide, high } = frame(home);
  const left = 30, right = wide - 6, top = 8, bottom = high - 16;
  const points = rounds.map((_, place) => totals(rounds.slice(Math.max(0, place - WINDOW + 1), place + 1)));
  const speed = points.map((sum) => sum.tokens / Math.max(sum.seconds, 1e-9));
  const plain = points.map((sum) => sum.tokens / Math.max(sum.plain, 1e-9));
  const most = nice(Math.max(1, ...speed, ...(measured ? plain : [])) * 1.08);
  const x = (place) => left + (rounds.length < 2 ? 0 : (place / (rounds.length - 1)) * (right - left));
  const y = (value) => bottom - (value / most) * (bottom - top);
  const parts = axis([0, most / 2, most], y, left, right);
  const line = (values) => values.map((value, place) => `${place ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  if (rounds.length > 1) {
    parts.push(svg("path", { class: "area", d: `${line(speed)}L${x(rounds.length - 1)} ${bottom}L${left} ${bottom}Z` }));
    if (measured) parts.push(svg("path", { class: "plain", d: line(plain) }));
    parts.push(svg("path", { class: "curve", d: line(speed) }));
    if (measured) parts.push(svg("text", { x: right, y: Math.min(bottom - 4, y(plain.at(-1)) + 14), "text-anchor": "end" }, "plain, predicted"));
  }
  parts.push(svg("text", { x: left, y: high - 2 }, rounds.length ? "first round" : ""));
  parts.push(svg("text", { x: right, y: high - 2, "text-anchor": "end" }, rounds.length ? "now" : ""));
  home.replaceChildren(...parts);
}

/** Seconds of a pass by rows at this context, as the machine runs now. */
export function line(curve, context, drift) {
  const { contexts, seconds: table } = curve;
  const above = contexts.findIndex((known) => known >= context);
  const high = above < 0 ? contexts.length - 1 : above;
  const low = above < 0 ? high : Math.max(0, above - 1);
  const weight = high === low ? 0 : (context - contexts[low]) / (contexts[high] - contexts[low]);
  return table[low].map((cell, place) => (cell + weight * (table[high][place] - cell)) * drift);
}

export function drawCost(home, curve, rounds, budget) {
  const { wide, high } = frame(home);
  const left = 34, right = wide - 8, top = 8, bottom = high - 16;
  const last = rounds.at(-1), recent = rounds.slice(-RECENT);
  const costs = line(curve, last?.context ?? 0, last?.drift ?? curve.drift).map((cell) => cell * 1000);
  const widest = Math.max(2, Math.min(curve.rows.at(-1), Math.max(budget + 1, ...recent.map(({ rows }) => rows))));
  const inside = curve.rows.map((rows, place) => [rows, costs[place]]).filter(([rows]) => rows <= widest);
  const most = nice(Math.max(...inside.map(([, cost]) => cost), ...recent.map((round) => round.seconds.verify * 900)) * 1.1);
  const x = (rows) => left + (Math.log2(Math.min(rows, widest)) / Math.log2(widest)) * (right - left);
  const y = (cost) => bottom - (Math.min(cost, most) / most) * (bottom - top);
  const parts = [];
  if (budget > 0) parts.push(svg("rect", { class: "room", x: x(1), y: top, width: Math.max(0, x(budget + 1) - x(1)), height: bottom - top, rx: 4 }));
  parts.push(...axis([0, most / 2, most], y, left, right));
  parts.push(svg("path", { class: "cost", d: inside.map(([rows, cost], place) => `${place ? "L" : "M"}${x(rows).toFixed(1)} ${y(cost).toFixed(1)}`).join("") }));
  recent.forEach((round, place) => parts.push(svg("circle", {
    class: "seen", cx: x(round.rows), cy: y(round.seconds.verify * 1000), r: 2.5, opacity: (0.08 + 0.3 * (place / RECENT)).toFixed(2),
  })));
  if (last) {
    const spot = { cx: x(last.rows), cy: y(last.seconds.verify * 1000) };
    parts.push(svg("circle", { class: "now-ring", ...spot, r: 9 }), svg("circle", { class: "now", ...spot, r: 5 }));
  }
  for (let rows = 1; rows <= widest; rows *= 2) parts.push(svg("text", { x: x(rows), y: high - 2, "text-anchor": "middle" }, rows));
  parts.push(svg("text", { x: left + 5, y: top + 9 }, "milliseconds, by rows"));
  home.replaceChildren(...parts);
}

function axis(values, y, left, right) {
  return values.flatMap((value) => [
    svg("line", { class: "axis", x1: left, x2: right, y1: y(value), y2: y(value) }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, number(value, value && value < 10 && value % 1 ? 1 : 0)),
  ]);
}

function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * unit).find((step) => step >= value);
}
