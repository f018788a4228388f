// The instruments on the right: which round they show, and how they are drawn.
import { drawCost, drawSpeed, drawStrip, totals } from "./charts.js";
import { byId, colour, el, number } from "./dom.js";
import { TreePicture } from "./tree.js";

const SLOWLY = 120, REPLAY = 1100; // milliseconds: from depth to depth, and from round to round, of a replay
const CALM = 130; // milliseconds between two drawings while rounds come fast
const still = matchMedia("(prefers-reduced-motion: reduce)");

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
    this.tree = new TreePicture(byId("tree"), (node) => this.tell(node));
    byId("scrub").addEventListener("input", (event) => this.choose(this.answer, Number(event.target.value) - 1));
    byId("strip").addEventListener("pointerdown", (event) => this.place && this.choose(this.answer, this.place(event.offsetX)));
    byId("replay").addEventListener("click", () => this.replay());
    new ResizeObserver(() => this.draw(true)).observe(byId("inside"));
  }

  /** Follow this answer as it grows. */
  follow(answer) {
    this.quiet();
    Object.assign(this, { answer, live: true });
    this.tree.names = answer.names;
  }

  /** A round has come; it is drawn unless another one was drawn a moment ago. */
  grown() {
    if (!this.live || this.waiting) return;
    const wait = Math.max(0, CALM - (performance.now() - this.drawn));
    this.waiting = setTimeout(() => this.draw(true), wait);
  }

  /** Show one round of an answer for good. */
  choose(answer, round) {
    if (!answer?.rounds[round]) return;
    this.quiet();
    this.tree.names = answer.names;
    Object.assign(this, { answer, shown: round, live: false });
    this.draw();
  }

  replay() {
    if (this.playing) return this.quiet();
    const last = this.answer.rounds.length - 1;
    let round = this.shown < last && !this.live ? this.shown : 0;
    this.live = false;
    const turn = () => {
      if (round > last) return this.quiet();
      this.shown = round;
      this.draw(false, SLOWLY);
      round += 1;
      this.playing = setTimeout(turn, REPLAY);
    };
    byId("replay").textContent = "Pause";
    turn();
  }

  quiet() {
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
    this.tree.show(round, this.answer.before(this.shown), still.matches ? 0 : pace);
    this.place = drawStrip(byId("strip"), rounds, this.shown);
    this.slider(rounds.length);
    this.speed(rounds);
    if (!this.live) this.answer.mark(round.round);
    const checked = round.tree.tokens.length - 1, kept = round.path.length - 1;
    byId("round-says").textContent = checked
      ? `round ${this.shown + 1} of ${rounds.length}: ${kept} of ${checked} guesses kept`
      : `round ${this.shown + 1} of ${rounds.length}: no tree, drafting rests`;
    this.tell(null);
  }

  /** What a tree looks like, until there is one. */
  example() {
    this.tree.names = ["a drafter", "another"];
    this.tree.show(EXAMPLE, "A tree carries water in", 0);
    byId("round-says").textContent = "an example: 2 of 9 guesses kept";
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
    byId("plain-says").textContent = measured
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
      byId("budget-says").textContent = "This machine has not been measured; the recipe in use does not ask for it.";
      return;
    }
    drawCost(byId("cost"), curve, until, this.answer?.budget ?? budget.nodes);
    const most = this.answer?.budget ?? budget.nodes;
    byId("budget-says").textContent = most ? `Shaded: the ${most} nodes that a tree may have. Dots are the last passes.` : "This recipe grows no trees.";
    if (!last) return;
    const { rows, trees } = last, took = last.seconds.verify * 1000;
    const shared = trees > 1 ? ` of ${trees} requests` : "";
    byId("point-says").textContent = `${rows} ${rows === 1 ? "row" : "rows"}${shared}, ${number(took, took < 100 ? 1 : 0)} ms`;
    byId("cost").setAttribute("aria-label", `Milliseconds of a pass by rows. The last pass checked ${rows} rows in ${number(took, 1)} milliseconds.`);
  }

  /** Describe a node under the tree. */
  tell(node) {
    const home = byId("node-says");
    if (!node) {
      home.textContent = "Point at a node, or move with the arrow keys.";
      return;
    }
    home.replaceChildren(el("b", {}, node.label), ` ${node.fate}`);
    if (node.drafters) {
      home.append(" · ", el("i", { "data-source": colour(node.sources) }, node.drafters), ` said ${number(node.prob * 100, 0)} %`);
      home.append(` · expected to stand: ${number(node.reach * 100, 0)} %`);
    }
  }

  clear() {
    this.quiet();
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
