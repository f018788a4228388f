// The panels on the right: the round that they show, and how they are drawn.
import { SEEN } from "./answer.js";
import { drawCost, drawSpeed, drawStrip, totals } from "./charts.js";
import { byId, colour, el, number } from "./dom.js";
import { TreePicture } from "./tree.js";

const SLOWLY = 120, REPLAY = 1100; // milliseconds: from depth to depth, and from round to round, of a replay
const REDRAW = 130; // milliseconds between two drawings while rounds come fast
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

const EXAMPLE = {
  round: 0,
  tree: {
    tokens: [" its", " sap", " bark", " roots", "wood", " rises", ",", " which", " to", " and"],
    parents: [-1, 0, 0, 0, 1, 1, 4, 6, 5, 3], probs: [1, 0.71, 0.12, 0.09, 0.83, 0.11, 0.34, 0.6, 0.5, 0.4],
    reach: [1, 0.71, 0.12, 0.09, 0.59, 0.08, 0.2, 0.12, 0.04, 0.04], sources: [0, 3, 1, 2, 2, 1, 2, 2, 1, 2],
  },
  path: [0, 1, 4], bonus: ".",
};

export class Panels {
  constructor() {
    this.answer = null;
    this.live = true;
    this.drawn = 0;
    this.state = { curve: null, measured: false, budget: { nodes: 0 } };
    this.tree = new TreePicture(byId("tree"), (node) => this.describe(node));
    byId("scrub").addEventListener("input", (event) => this.choose(this.answer, Number(event.target.value) - 1));
    byId("strip").addEventListener("pointerdown", (event) => this.place && this.choose(this.answer, this.place(event.offsetX)));
    byId("replay").addEventListener("click", () => this.replay());
    new ResizeObserver(() => this.draw(true)).observe(byId("inside"));
  }

  /** Follow this answer as it grows. */
  follow(answer) {
    this.stopReplay();
    Object.assign(this, { answer, live: true });
    this.tree.drafterNames = answer.drafterNames;
  }

  /** Draw a new round, or wait if another one was drawn a moment ago. */
  roundAdded(answer) {
    if (!this.live || this.waiting || answer !== this.answer) return;
    const wait = Math.max(0, REDRAW - (performance.now() - this.drawn));
    this.waiting = setTimeout(() => this.draw(true), wait);
  }

  /** Show one round of an answer and follow no longer. */
  choose(answer, round) {
    if (!answer?.rounds[round]) return;
    this.stopReplay();
    this.tree.drafterNames = answer.drafterNames;
    Object.assign(this, { answer, shown: round, live: false });
    this.draw();
  }

  replay() {
    if (this.playing) return this.stopReplay();
    const last = this.answer.rounds.length - 1;
    let round = this.shown < last && !this.live ? this.shown : 0;
    this.live = false;
    const turn = () => {
      if (round > last) return this.stopReplay();
      this.shown = round;
      this.draw(false, SLOWLY);
      round += 1;
      this.playing = setTimeout(turn, REPLAY);
    };
    byId("replay").textContent = "Pause";
    turn();
  }

  stopReplay() {
    clearTimeout(this.playing);
    this.playing = null;
    byId("replay").textContent = "Replay";
  }

  draw(newest = false, pace = 25) {
    clearTimeout(this.waiting);
    this.waiting = null;
    this.drawn = performance.now();
    const rounds = this.answer?.rounds ?? [];
    if (this.state.curve) this.machine(rounds);
    if (!rounds.length) return this.example();
    if (newest && this.live) this.shown = rounds.length - 1;
    const round = rounds[this.shown];
    this.tree.again = this.answer.again(round.round);
    this.tree.show(round, this.answer.before(this.shown), reducedMotion.matches ? 0 : pace);
    this.place = drawStrip(byId("strip"), rounds, this.shown);
    this.slider(rounds.length);
    this.speed(rounds);
    if (!this.live) this.answer.mark(round.round);
    const checked = round.tree.tokens.length - 1, kept = round.path.length - 1;
    byId("round-text").textContent = checked
      ? `round ${this.shown + 1} of ${rounds.length}: ${kept} of ${checked} drafted tokens accepted`
      : `round ${this.shown + 1} of ${rounds.length}: no tree, drafting rests`;
    if (this.tree.again) byId("round-text").textContent += `, ${SEEN}`;
    this.describe(null);
  }

  /** An example of a tree, until there is one. */
  example() {
    this.tree.drafterNames = ["a drafter", "another"];
    this.tree.again = false;
    this.tree.show(EXAMPLE, "A tree carries water in", 0);
    byId("round-text").textContent = "an example: 2 of 9 drafted tokens accepted";
  }

  slider(count) {
    const scrub = byId("scrub");
    Object.assign(scrub, { max: count, value: this.shown + 1, disabled: false });
    scrub.setAttribute("aria-valuetext", `round ${this.shown + 1} of ${count}`);
    byId("replay").disabled = false;
  }

  speed(rounds) {
    const { measured } = this.state;
    const sum = totals(rounds);
    const rate = sum.tokens / Math.max(sum.seconds, 1e-9), plain = sum.tokens / Math.max(sum.plain, 1e-9);
    byId("rate").textContent = number(rate, rate < 100 ? 1 : 0);
    byId("factor").textContent = measured ? `${number(rate / plain, 2)}×` : "";
    byId("plain-note").textContent = measured
      ? `Plain decoding: ${number(plain, 1)} per second, predicted from this machine's cost curve.`
      : "Plain decoding's speed is unknown until the machine has been measured.";
    byId("speed").setAttribute("aria-label", `Speed by round: ${number(rate, 1)} tokens per second over the answer${measured ? `, plain decoding ${number(plain, 1)}` : ""}.`);
    drawSpeed(byId("speed"), rounds, measured);
  }

  machine(rounds) {
    const { curve, budget, measured } = this.state;
    const last = this.live ? rounds.at(-1) : rounds[this.shown];
    const until = this.live ? rounds : rounds.slice(0, this.shown + 1);
    byId("cost").toggleAttribute("hidden", !measured);
    if (!measured) {
      byId("budget-note").textContent = "This machine has not been measured; the recipe in use does not ask for it.";
      return;
    }
    drawCost(byId("cost"), curve, until, this.answer?.budget ?? budget.nodes);
    const most = this.answer?.budget ?? budget.nodes;
    byId("budget-note").textContent = most ? `Shaded: the ${most} nodes that a tree may have. Dots are the last passes.` : "This recipe grows no trees.";
    if (!last) return;
    const { rows, trees } = last, took = last.seconds.verify * 1000;
    const shared = trees > 1 ? ` of ${trees} requests` : "";
    byId("cost-point").textContent = `${rows} ${rows === 1 ? "row" : "rows"}${shared}, ${number(took, took < 100 ? 1 : 0)} ms`;
    byId("cost").setAttribute("aria-label", `Milliseconds of a pass by rows. The last pass checked ${rows} rows in ${number(took, 1)} milliseconds.`);
  }

  /** Describe a node under the tree. */
  describe(node) {
    const home = byId("node-text");
    if (!node) {
      home.textContent = "Point at a node, or move with the arrow keys.";
      return;
    }
    home.replaceChildren(el("b", {}, node.label), ` ${node.fate}`);
    if (node.drafters) {
      home.append(" · ", el("i", { "data-source": colour(node.sources) }, node.drafters), `: probability ${number(node.prob * 100, 0)} %`);
      home.append(` · expected to be accepted: ${number(node.reach * 100, 0)} %`);
      if (node.again) home.append(` · ${SEEN}`);
    }
  }

  clear() {
    this.stopReplay();
    Object.assign(this, { answer: null, live: true, shown: 0 });
    byId("strip").replaceChildren();
    byId("speed").replaceChildren();
    byId("rate").textContent = "";
    byId("factor").textContent = "";
    Object.assign(byId("scrub"), { max: 1, value: 1, disabled: true });
    byId("replay").disabled = true;
    this.draw();
  }
}
