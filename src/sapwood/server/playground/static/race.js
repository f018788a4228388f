// Two recipes on one prompt, side by side. Each runs alone, so that neither slows the other; then the first run is
// shown again at its own speed beside the second, which is running.
import { Answer } from "./answer.js";
import { el, number } from "./dom.js";

export class Race {
  /** `names` are the recipes: the one that is compared with, and the one whose text goes on in the chat. */
  constructor(names, earlier) {
    this.role = "assistant";
    this.names = names;
    this.earlier = earlier;
    this.verdict = "";
    this.lanes = names.map((name) => new Lane(name, earlier));
    this.note = el("p", { class: "verdict", role: "status" });
    this.home = el("article", { class: "turn race", "aria-label": `Race of ${names.join(" and ")}` },
      el("div", { class: "lanes" }, ...this.lanes.map(({ home }) => home)), this.note);
  }

  get answers() {
    return this.lanes.map(({ answer }) => answer);
  }

  get text() {
    return this.lanes[1].text;
  }

  get content() {
    return this.lanes[1].answer.content;
  }

  /** Run the second recipe alone, then the first one beside a repetition of it. */
  async run(events, hooks) {
    const [rival, own] = this.lanes;
    this.say(`${own.name} runs alone, ${rival.name} comes next`);
    const recording = [];
    hooks.follow(own.answer);
    await own.run(events(own.name), (entry) => recording.push(entry), hooks);
    const length = recording.reduce((sum, { round }) => sum + round.pieces.length, 0);
    this.say(`${rival.name} runs now; beside it ${own.name} again, at the speed that it had`);
    own.restart(length, this.earlier);
    rival.restart(length, this.earlier);
    const again = own.replay(recording, hooks);
    await Promise.all([rival.run(events(rival.name), () => {}, hooks), again]);
    this.end();
  }

  end() {
    const [rival, own] = this.lanes;
    const factor = rival.seconds / Math.max(own.seconds, 1e-9);
    const same = rival.text === own.text ? "The text is the same, letter for letter." : "The texts differ.";
    const faster = factor >= 1 ? `${own.name} was ${number(factor, 2)}× as fast` : `${rival.name} was ${number(1 / factor, 2)}× as fast`;
    this.say(`${faster}: ${number(own.seconds, 2)} s against ${number(rival.seconds, 2)} s, each alone. ${same}`);
    this.home.classList.add("ended");
    this.lanes.forEach((lane) => lane.win(lane === (factor >= 1 ? own : rival)));
  }

  say(text) {
    this.verdict = text;
    this.note.textContent = text;
  }

  /** Close lanes that were stopped or failed. */
  stop(note) {
    this.lanes.forEach((lane) => lane.stop(note));
    this.say(note);
  }

  restore(lanes, verdict) {
    this.lanes.forEach((lane, place) => lane.restore(lanes[place]));
    this.say(verdict);
    this.home.classList.add("ended");
  }
}

class Lane {
  constructor(name, earlier) {
    this.name = name;
    this.rate = el("span", { class: "rate" });
    this.bar = el("span", { class: "bar-done" });
    this.place = el("div", { class: "place" });
    this.home = el("section", { class: "lane", "aria-label": name },
      el("header", {}, el("b", {}, name), this.rate), el("div", { class: "track", "aria-hidden": "true" }, this.bar), this.place);
    this.restart(0, earlier);
  }

  get text() {
    return this.answer.text;
  }

  get pieces() {
    return this.answer.pieces;
  }

  get notes() {
    return this.answer.notes;
  }

  /** Begin with an empty answer; `length` is the number of tokens at the end of the track, 0 if it is not known. */
  restart(length, earlier) {
    Object.assign(this, { length, tokens: 0, seconds: 0 });
    const { drafters, drafterNames = [], budget } = this.answer ?? {};
    this.answer = Object.assign(new Answer(earlier), { drafters, drafterNames, budget });
    this.place.replaceChildren(this.answer.home);
    this.rate.textContent = "";
    this.bar.style.setProperty("width", "0");
  }

  async run(events, record, hooks) {
    let began = 0;
    for await (const [name, data] of events) {
      if (name === "error") throw new Error(data.error.message);
      if (name === "begin") this.begin(data, hooks);
      if (name === "end") this.close(data.stats.tokens_per_pass);
      if (name !== "round") continue;
      began ||= performance.now(); // the first round: reading the prompt is not part of the race
      const at = performance.now() - began;
      record({ at, round: data });
      this.add(data, at, hooks);
    }
  }

  begin(data, hooks) {
    Object.assign(this.answer, { drafters: data.drafters, drafterNames: data.drafters.map(({ name }) => name), budget: data.budget.nodes });
    hooks.begin(this.answer);
  }

  /** Show recorded rounds at the times at which they came. */
  async replay(recording, hooks) {
    const began = performance.now();
    hooks.follow(this.answer);
    for (const { at, round } of recording) {
      const wait = at - (performance.now() - began);
      if (wait > 4) await new Promise((resolve) => setTimeout(resolve, wait));
      if (hooks.aborted()) throw new DOMException("stopped", "AbortError");
      this.add(round, at, hooks);
    }
    this.close(this.tokens / Math.max(recording.length, 1));
  }

  add(round, at, hooks) {
    this.tokens += round.pieces.length;
    this.seconds = at / 1000;
    hooks.round(this.answer, round);
    if (this.seconds > 0) this.rate.textContent = `${number(this.tokens / this.seconds, 0)} tokens per second`;
    if (this.length) this.bar.style.setProperty("width", `${Math.min(100, (100 * this.tokens) / this.length)}%`);
  }

  close(perPass) {
    this.bar.style.setProperty("width", "100%");
    this.answer.close([`${number(this.tokens)} tokens`, `${number(this.seconds, 2)} s`, `${number(perPass, 2)} per pass`]);
  }

  win(won) {
    this.home.classList.toggle("won", won);
  }

  stop(note) {
    if (!this.answer.notes.length) this.answer.close([note]);
  }

  restore({ pieces, notes }) {
    this.answer.add(pieces);
    this.answer.close(notes);
    this.bar.style.setProperty("width", "100%");
  }
}
