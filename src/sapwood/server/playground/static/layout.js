// Positions of the nodes of a round's tree: the accepted path is a straight trunk, other branches are above and
// below it, deeper ones nearer. Independent of the page.
import { columns, label } from "./dom.js";

export const ROW = 30, HIGH = 22, LETTER = 7.6, PAD = 9, GAP = 36;
const MOST = 110; // nodes that are drawn; of a larger tree the likeliest
const BEFORE = 22; // letters of the text before the root

/** Nodes with position and kind; the target's own token is the last. */
export function layout(round, before) {
  const nodes = gather(round);
  const trunk = new Set([...round.path, nodes.length - 1]);
  const rows = place(nodes, trunk);
  const lefts = widths(nodes);
  for (const node of nodes) {
    node.x = lefts[node.depth];
    node.y = rows.get(node.id) * ROW;
    node.wide = breadth(node.label);
  }
  const text = tail(before);
  const past = text && { label: text, x: -breadth(text) - 6, y: 0, wide: breadth(text) };
  const left = past ? past.x : 0;
  const ys = nodes.map((node) => node.y);
  const box = {
    left: left - 10,
    top: Math.min(...ys) - ROW / 2 - 8,
    right: Math.max(...nodes.map((node) => node.x + node.wide)) + 10,
    bottom: Math.max(...ys) + ROW / 2 + 8,
  };
  return { nodes, past, box };
}

const breadth = (text) => columns(text) * LETTER + 2 * PAD;

function tail(text) {
  const letters = [...text.replace(/\s+/g, " ")];
  return letters.length > BEFORE ? `…${letters.slice(-BEFORE).join("")}` : letters.join("");
}

function gather(round) {
  const { tokens, parents, probs, reach, sources } = round.tree;
  const path = new Set(round.path);
  const kept = likeliest(round, path);
  const nodes = [];
  const place = new Map();
  for (const id of kept) {
    const parent = id === 0 ? -1 : place.get(parents[id]);
    place.set(id, nodes.length);
    nodes.push({
      id: nodes.length, parent, label: label(tokens[id]), text: tokens[id], prob: probs[id], reach: reach[id],
      sources: sources[id], depth: parent < 0 ? 0 : nodes[parent].depth + 1, children: [],
      kind: id === 0 ? "root" : path.has(id) ? "accepted" : "refused",
    });
  }
  round.path = round.path.map((id) => place.get(id) ?? id);
  const last = nodes[round.path.at(-1)];
  nodes.push({
    id: nodes.length, parent: last.id, label: label(round.bonus), text: round.bonus, prob: null, reach: 1,
    sources: 0, depth: last.depth + 1, children: [], kind: "bonus",
  });
  for (const node of nodes) if (node.parent >= 0) nodes[node.parent].children.push(node.id);
  return nodes;
}

function likeliest(round, path) {
  const { parents, reach } = round.tree;
  const all = parents.map((_, id) => id);
  if (all.length <= MOST) return all;
  const best = [...all].sort((one, other) => path.has(other) - path.has(one) || reach[other] - reach[one]);
  const kept = new Set([0]);
  for (const id of best) {
    const line = [];
    for (let node = id; !kept.has(node); node = parents[node]) line.push(node);
    if (kept.size + line.length <= MOST) line.forEach((node) => kept.add(node));
  }
  return all.filter((id) => kept.has(id));
}

function place(nodes, trunk) {
  const rows = new Map();
  const full = { up: [], down: [] }; // rows in use at each depth, on either side of the trunk
  const line = nodes.filter((node) => trunk.has(node.id)).sort((one, other) => other.depth - one.depth);
  for (const node of line) {
    rows.set(node.id, 0);
    const others = node.children.filter((id) => !trunk.has(id)).sort((one, other) => nodes[other].reach - nodes[one].reach);
    for (const id of others) hang(nodes, id, rows, full);
  }
  return rows;
}

/** Place a whole branch on the side where it is nearer to the trunk. */
function hang(nodes, top, rows, full) {
  const own = new Map();
  let next = 0;
  let deepest = 0;
  const visit = (id) => {
    const node = nodes[id];
    deepest = Math.max(deepest, node.depth);
    own.set(id, next);
    const children = [...node.children].sort((one, other) => nodes[other].reach - nodes[one].reach);
    children.forEach(visit);
    if (!children.length) next += 1;
  };
  visit(top);
  const base = (side) => {
    let most = 0;
    for (let depth = nodes[top].depth; depth <= deepest; depth += 1) most = Math.max(most, full[side][depth] ?? 0);
    return most + 1;
  };
  const side = base("up") <= base("down") ? "up" : "down";
  const start = base(side);
  const sign = side === "up" ? -1 : 1;
  for (const [id, row] of own) rows.set(id, sign * (start + row));
  for (let depth = nodes[top].depth; depth <= deepest; depth += 1) full[side][depth] = start + next - 1;
}

function widths(nodes) {
  const widest = [];
  for (const node of nodes) widest[node.depth] = Math.max(widest[node.depth] ?? 0, breadth(node.label));
  const lefts = [];
  let left = 0;
  for (const wide of widest) {
    lefts.push(left);
    left += wide + GAP;
  }
  return lefts;
}
