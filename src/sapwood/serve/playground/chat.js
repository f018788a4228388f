// The conversation: turns, tokens coloured by where they came from, and what survives a reload.
import { bits, byId, colour, el, number } from "./dom.js";

const KEPT = "sapwood-chat";
const NEAR = 60; // pixels from the end within which the log follows the answer

export class Chat {
  /** `choose` is called with an answer and the number of a round when a token is clicked. */
  constructor(log, choose) {
    this.log = log;
    this.choose = choose;
    this.turns = [];
  }

  get messages() {
    return this.turns.map(({ role, text }) => ({ role, content: text })).filter(({ content }) => content);
  }

  ask(text) {
    this.welcome(false);
    this.turns.push({ role: "user", text });
    this.log.append(el("article", { class: "turn user", "aria-label": "You" }, el("p", {}, text)));
    this.log.scrollTop = this.log.scrollHeight;
  }

  /** A new, empty answer. */
  answer() {
    const answer = new Answer();
    answer.says.addEventListener("click", (event) => {
      const round = event.target.closest("[data-round]")?.dataset.round;
      if (round !== undefined) this.choose(answer, Number(round));
    });
    this.turns.push(answer);
    this.log.append(answer.home);
    return answer;
  }

  /** Show what was added, unless the reader has scrolled away. */
  follow(change) {
    const near = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR;
    change();
    if (near) this.log.scrollTop = this.log.scrollHeight;
  }

  /** Forget a question that got no answer, so that the next one is not confused by it. */
  takeBack(answer) {
    answer.home.remove();
    this.turns.pop();
    this.turns.pop();
    [...this.log.querySelectorAll(".turn.user")].at(-1)?.remove();
    this.welcome(!this.turns.length);
  }

  clear() {
    this.turns = [];
    for (const turn of this.log.querySelectorAll(".turn")) turn.remove();
    this.welcome(true);
    this.keep();
  }

  welcome(shown) {
    byId("welcome").hidden = !shown;
  }

  keep() {
    const record = this.turns.map((turn) => ({ role: turn.role, text: turn.text, pieces: turn.pieces, notes: turn.notes }));
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(record));
    } catch {
      sessionStorage.removeItem(KEPT); // too long for the browser: a reload begins anew
    }
  }

  restore() {
    for (const turn of JSON.parse(sessionStorage.getItem(KEPT) ?? "[]")) {
      if (turn.role === "user") {
        this.ask(turn.text);
      } else {
        const answer = this.answer();
        answer.add(turn.pieces);
        answer.close(turn.notes);
      }
    }
  }
}

class Answer {
  constructor() {
    this.role = "assistant";
    this.text = "";
    this.pieces = [];
    this.rounds = [];
    this.notes = [];
    this.names = []; // of the drafters, by source
    this.says = el("div", { class: "says" });
    this.foot = el("footer");
    this.home = el("article", { class: "turn assistant open", "aria-label": "Answer", "aria-busy": "true" }, this.says, this.foot);
  }

  /** Tokens of a round, or of an answer that was kept. */
  add(pieces, round) {
    for (const piece of pieces) {
      this.text += piece.text;
      this.pieces.push({ text: piece.text, sources: piece.sources });
      if (!piece.text) continue;
      const blank = piece.text.match(/^\s*/)[0]; // colours begin with the word
      const second = bits(piece.sources)[1];
      if (blank.length === piece.text.length) {
        this.says.append(blank);
        continue;
      }
      this.says.append(blank, el("span", {
        class: `token ${piece.sources ? "guess" : "own"}`, "data-source": colour(piece.sources),
        "data-second": second === undefined ? undefined : second % 8, "data-round": round,
      }, piece.text.slice(blank.length)));
    }
  }

  /** Make the tokens of one round stand out. */
  mark(round) {
    for (const token of this.says.querySelectorAll(".here")) token.classList.remove("here");
    for (const token of this.says.querySelectorAll(`[data-round="${round}"]`)) token.classList.add("here");
  }

  /** The text before a round and its root. */
  before(round) {
    const near = this.rounds.slice(Math.max(0, round - 40), round);
    const said = near.map(({ pieces }) => pieces.map(({ text }) => text).join("")).join("");
    const root = this.rounds[round].tree.tokens[0];
    return (said.endsWith(root) ? said.slice(0, -root.length) : said).slice(-80);
  }

  close(notes) {
    this.notes = notes;
    this.home.classList.remove("open");
    this.home.removeAttribute("aria-busy");
    this.foot.replaceChildren(...notes.map((note) => el("span", {}, note)));
  }
}

/** What an answer cost, in a few words. */
export function notes(stats, finish) {
  const found = [`${number(stats.tokens)} tokens`, `${number(stats.tokens_per_second, 1)} per second`, `${number(stats.tokens_per_pass, 2)} per pass`];
  if (stats.drafted) found.push(`${number(stats.accepted)} of ${number(stats.drafted)} guesses kept`);
  if (stats.speedup) found.push(`${number(stats.speedup, 2)}× plain decoding (predicted)`);
  if (finish === "length") found.push("cut at the longest length");
  return found;
}
