// The tree of one round as a picture; its nodes can be hovered and visited with the arrow keys.
import { HIGH, PAD, layout } from "./layout.js";
import { bits, colour, number, svg } from "./dom.js";

const NARROW = 480; // pixels of a card that has no room for the text before the root
const SMALLEST = 0.85, LARGEST = 1.35; // how far the picture is scaled; a larger tree scrolls and stays readable
const FATES = { root: "last token of the text", accepted: "accepted", refused: "refused", bonus: "added by the model itself" };

export class TreePicture {
  /** `describe` is called with the node that is hovered or focused, or null. */
  constructor(home, describe) {
    this.home = home;
    this.describe = describe;
    this.drafterNames = [];
    home.addEventListener("keydown", (event) => this.walk(event));
    home.addEventListener("pointerover", (event) => this.point(event.target));
    home.addEventListener("focusin", (event) => this.point(event.target));
    home.addEventListener("pointerleave", () => this.describe(null));
  }

  /** Draw a round; `pace` is the milliseconds between two depths, 0 draws it at once. */
  show(round, before, pace) {
    const held = this.home.contains(document.activeElement);
    const { nodes, past, box } = this.fitting(round, before);
    this.nodes = nodes;
    const wide = box.right - box.left, high = box.bottom - box.top;
    const scale = Math.max(SMALLEST, Math.min(LARGEST, this.home.clientWidth / wide, this.home.clientHeight / high));
    const picture = svg("svg", {
      viewBox: `${box.left} ${box.top} ${wide} ${high}`, width: wide * scale, height: high * scale,
      class: pace ? "growing" : "grown", role: "tree", "aria-label": altText(round, nodes),
      "--pace": `${pace}ms`, "--last": round.path.length,
    });
    const order = nodes.filter((node) => node.parent >= 0).sort((one, other) => rank(one) - rank(other));
    if (past) picture.append(this.past(past));
    picture.append(...order.map((node) => branch(node, nodes[node.parent])));
    this.groups = nodes.map((node) => this.box(node));
    picture.append(...this.groups);
    this.home.replaceChildren(picture);
    this.home.scrollLeft = 0;
    this.home.scrollTop = Math.max(0, (-box.top * scale) - this.home.clientHeight / 2);
    if (held) this.focus(0);
  }

  /** The layout, with the text before the root where there is room for it. */
  fitting(round, before) {
    const full = layout({ ...round }, this.home.clientWidth < NARROW ? "" : before);
    const fits = (full.box.right - full.box.left) * SMALLEST <= this.home.clientWidth;
    return fits || !full.past ? full : layout({ ...round }, "");
  }

  past(past) {
    return svg("g", { class: "node past", "aria-hidden": "true" },
      svg("text", { x: past.x + PAD, y: 4.5 }, past.label));
  }

  box(node) {
    const group = svg("g", {
      class: `node ${node.kind}`, "data-node": node.id, "data-source": colour(node.sources), "--depth": node.depth,
      role: "treeitem", "aria-level": node.depth + 1, "aria-label": this.nodeText(node), tabindex: node.id === 0 ? 0 : -1,
    });
    group.append(svg("rect", { x: node.x, y: node.y - HIGH / 2, width: node.wide, height: HIGH, rx: 7 }));
    bits(node.sources).slice(0, 3).forEach((bit, place) => {
      const tick = svg("rect", { class: "tick", x: node.x + 3 + 3 * place, y: node.y - 5, width: 2, height: 10, rx: 1, "data-source": bit % 8 });
      tick.style.setProperty("--s", `var(--s${bit % 8})`);
      group.append(tick);
    });
    group.append(svg("text", { x: node.x + PAD + (node.sources ? 1 : 0), y: node.y + 4.5 }, node.label));
    return group;
  }

  /** Description of a node for screen readers. */
  nodeText(node) {
    const chance = node.prob === null || node.kind === "root" ? "" : `, drafted with probability ${number(node.prob, 2)}`;
    const drafters = node.sources ? ` by ${this.drafters(node)}` : "";
    return `${JSON.stringify(node.text)}: ${FATES[node.kind]}${chance}${drafters}`;
  }

  drafters(node) {
    return bits(node.sources).map((bit) => this.drafterNames[bit] ?? `drafter ${bit + 1}`).join(" and ");
  }

  point(target) {
    const group = target.closest?.(".node[data-node]");
    if (!group || !this.nodes) return;
    const node = this.nodes[Number(group.dataset.node)];
    this.describe({ ...node, again: this.again && node.kind === "accepted", fate: FATES[node.kind], drafters: node.sources ? this.drafters(node) : "" });
  }

  walk(event) {
    const here = this.nodes?.[Number(document.activeElement?.dataset?.node)];
    if (!here) return;
    const next = {
      ArrowLeft: () => here.parent,
      ArrowRight: () => here.children.find((id) => this.nodes[id].y === here.y) ?? here.children[0],
      ArrowUp: () => this.beside(here, -1),
      ArrowDown: () => this.beside(here, 1),
      Home: () => 0,
      End: () => this.nodes.length - 1,
    }[event.key];
    if (!next) return;
    event.preventDefault();
    this.focus(next());
  }

  beside(here, sign) {
    const near = this.nodes.filter((node) => node.depth === here.depth && sign * (node.y - here.y) > 0);
    return near.sort((one, other) => sign * (one.y - other.y))[0]?.id;
  }

  focus(id) {
    if (id === undefined || id < 0) return;
    this.groups.forEach((group, place) => group.setAttribute("tabindex", place === id ? 0 : -1));
    this.groups[id].focus();
  }
}

const rank = (node) => ({ refused: 0, accepted: 1, bonus: 2 })[node.kind];

function branch(node, parent) {
  const start = parent.x + parent.wide, middle = (start + node.x) / 2;
  const course = `M${start} ${parent.y}C${middle} ${parent.y} ${middle} ${node.y} ${node.x} ${node.y}`;
  return svg("path", {
    class: `branch ${node.kind}`, d: course, "stroke-width": node.kind === "bonus" ? 2 : (1.2 + 5 * node.reach).toFixed(2),
    pathLength: node.kind === "bonus" ? undefined : 1, "data-source": colour(node.sources), "--depth": node.depth,
  });
}

function altText(round, nodes) {
  const drafted = nodes.length - 2;
  return `Round ${round.round}: ${drafted} drafted tokens, ${round.path.length - 1} accepted, then one of the model's own`;
}
