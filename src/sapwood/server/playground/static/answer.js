// One answer: its tokens in the colours of their drafters, as Markdown, block by block as they come.
import { bits, colour, el, number } from "./dom.js";
import { inline, parse } from "./markdown.js";

const REPEATED = 24; // letters from which on a repeated text is pointed out
export const SEEN = "seen before in this chat";

export class Answer {
  /** `earlier` is the text of the chat before this answer. */
  constructor(earlier = "") {
    this.role = "assistant";
    this.text = "";
    this.pieces = []; // tokens: { text, sources, start, round, again }
    this.rounds = [];
    this.notes = [];
    this.drafterNames = []; // by source
    this.repeats = new Repeats(earlier);
    this.shown = []; // blocks on the page: { key, element }
    this.textBox = el("div", { class: "text" });
    this.foot = el("footer");
    this.home = el("article", { class: "turn assistant open", "aria-label": "Answer", "aria-busy": "true" }, this.textBox, this.foot);
  }

  /** Add tokens of a round, or of a stored answer. */
  add(pieces, round) {
    for (const { text, sources, again } of pieces) {
      const piece = { text, sources, start: this.text.length, round, again };
      this.repeats.add(this.text, piece);
      this.text += text;
      this.pieces.push(piece);
    }
    this.render();
  }

  /** The answer without the reasoning before it, as it goes on in the chat. */
  get content() {
    return this.text.replace(/^\s*<think>[^]*?<\/think>\s*/, "");
  }

  /** Tokens that repeat a text of this chat. */
  get repeated() {
    return this.pieces.filter(({ again }) => again).length;
  }

  // ------------------------------------------------------------------------------------- Markdown
  /** Draw the blocks that are new or have changed. */
  render() {
    const blocks = parse(this.text);
    let same = 0;
    const marked = this.repeats.changedFrom;
    while (same < blocks.length && this.shown[same]?.key === keyOf(blocks[same]) && blocks[same].end < marked) same += 1;
    for (const { element } of this.shown.splice(same)) element.remove();
    for (const block of blocks.slice(same)) {
      const element = this.block(block);
      this.shown.push({ key: keyOf(block), element });
      this.textBox.append(element);
    }
    this.repeats.changedFrom = this.text.length;
    if (this.marked !== undefined) this.mark(this.marked);
  }

  block(block) {
    const inside = () => block.blocks.map((one) => this.block(one));
    const make = {
      paragraph: () => el("p", {}, ...this.spans(inline(this.text, block.lines))),
      heading: () => el(`h${Math.min(block.level + 2, 6)}`, {}, ...this.spans(inline(this.text, block.lines))),
      rule: () => el("hr"),
      quote: () => el("blockquote", {}, ...inside()),
      thought: () => el("details", { class: "thought", open: true }, el("summary", {}, block.closed ? "Reasoning" : "Reasoning …"), ...inside()),
      list: () => this.list(block),
      code: () => this.code(block),
      table: () => this.table(block),
    };
    return make[block.kind]();
  }

  list({ ordered, first, items, loose }) {
    const made = items.map((item) => el("li", {}, ...item.map((one) => this.block(one))));
    return el(ordered ? "ol" : "ul", { start: ordered && first !== 1 ? first : undefined, class: loose ? "loose" : undefined }, ...made);
  }

  code({ language, lines }) {
    const offsets = lines.flatMap(({ start, end }, place) => {
      const line = Array.from({ length: end - start }, (_, index) => start + index);
      return place < lines.length - 1 ? [...line, end] : line;
    });
    return el("figure", { class: "code" },
      el("figcaption", {}, el("span", {}, language || "code"), el("button", { type: "button", class: "copy" }, "Copy")),
      el("pre", { tabindex: 0, "aria-label": `Code, ${language || "plain"}` }, el("code", {}, ...this.tokens(offsets))));
  }

  table({ aligns, head, rows }) {
    const cell = (tag) => (range, column) => el(tag, { class: aligns[column] ?? "left" }, ...this.spans(inline(this.text, [range])));
    return el("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" }, el("table", {},
      el("thead", {}, el("tr", {}, ...head.map(cell("th")))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell("td")))))));
  }

  spans(spans) {
    return spans.flatMap((span) => {
      if (span.text) return this.tokens(span.text);
      const inside = this.spans(span.spans);
      if (span.link) return [el("a", { href: span.link, target: "_blank", rel: "noopener noreferrer nofollow" }, ...inside)];
      return span.tag === "span" ? inside : [el(span.tag, {}, ...inside)];
    });
  }

  /** The letters at these offsets, in one element for each token. */
  tokens(offsets) {
    const made = [];
    for (let at = 0; at < offsets.length;) {
      const piece = this.pieceAt(offsets[at]);
      let next = at + 1;
      while (next < offsets.length && offsets[next] < piece.start + piece.text.length) next += 1;
      made.push(...tokenParts(piece, offsets.slice(at, next).map((offset) => this.text[offset]).join("")));
      at = next;
    }
    return made;
  }

  pieceAt(offset) {
    let low = 0, high = this.pieces.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.pieces[middle].start <= offset) low = middle;
      else high = middle - 1;
    }
    return this.pieces[low];
  }

  // ------------------------------------------------------------------------------------- rounds
  /** Highlight the tokens of one round. */
  mark(round) {
    this.marked = round;
    for (const token of this.textBox.querySelectorAll(".here")) token.classList.remove("here");
    for (const token of this.textBox.querySelectorAll(`[data-round="${round}"]`)) token.classList.add("here");
  }

  /** The text before a round and its root. */
  before(round) {
    const near = this.rounds.slice(Math.max(0, round - 40), round);
    const text = near.map(({ pieces }) => pieces.map((piece) => piece.text).join("")).join("");
    const root = this.rounds[round].tree.tokens[0];
    return (text.endsWith(root) ? text.slice(0, -root.length) : text).slice(-80);
  }

  /** Whether the tokens of a round repeat a text of this chat. */
  again(round) {
    return this.pieces.some((piece) => piece.round === round && piece.again);
  }

  close(notes) {
    this.notes = notes;
    this.home.classList.remove("open");
    this.home.removeAttribute("aria-busy");
    const copy = el("button", { type: "button", class: "copy", "data-copy": "answer", "aria-label": "Copy the answer" }, "Copy");
    this.foot.replaceChildren(...notes.map((note) => el("span", {}, note)), ...(this.text ? [copy] : []));
  }
}

const keyOf = (block) => `${block.kind} ${block.start} ${block.end} ${block.closed ?? ""} ${block.loose ?? ""}`;

function tokenParts(piece, text) {
  const space = text.match(/^\s*/)[0]; // leading spaces have no colour
  if (space.length === text.length) return [space];
  const second = bits(piece.sources)[1];
  const token = el("span", {
    class: `token ${piece.sources ? "drafted" : "own"}${piece.again ? " again" : ""}`, "data-source": colour(piece.sources),
    "data-second": second === undefined ? undefined : second % 8, "data-round": piece.round,
    title: piece.again ? SEEN : undefined,
  }, text.slice(space.length));
  return space ? [space, token] : [token];
}

/** Finds long texts of an answer that stand earlier in the chat and were drafted. */
class Repeats {
  constructor(earlier) {
    this.earlier = earlier;
    this.run = [];
    this.changedFrom = 0; // offset from which marks have changed since the last drawing
  }

  /** Take the token that follows this text. */
  add(said, piece) {
    if (!this.extends(said, piece)) {
      this.run = [];
      if (!this.extends(said, piece)) return;
    }
    this.run.push(piece);
    const letters = piece.start + piece.text.length - this.run[0].start;
    if (letters < REPEATED || !this.run.some(({ sources }) => sources)) return;
    for (const one of this.run) {
      if (one.again) continue;
      one.again = true;
      this.changedFrom = Math.min(this.changedFrom, one.start);
    }
  }

  extends(said, piece) {
    const start = this.run[0]?.start ?? piece.start;
    const text = said.slice(start) + piece.text;
    return this.earlier.includes(text) || said.slice(0, start).includes(text);
  }
}

/** Statistics of an answer, in a few words. */
export function summary(stats, finish, repeated = 0) {
  const found = [`${number(stats.tokens)} tokens`, `${number(stats.tokens_per_second, 1)} per second`, `${number(stats.tokens_per_pass, 2)} per pass`];
  if (stats.drafted) found.push(`${number(stats.accepted)} of ${number(stats.drafted)} drafted tokens accepted`);
  if (stats.speedup) found.push(`${number(stats.speedup, 2)}× plain decoding (predicted)`);
  if (repeated) found.push(`${number(repeated)} ${repeated === 1 ? "token" : "tokens"} ${SEEN}`);
  if (finish === "length") found.push("stopped at the maximum length");
  return found;
}
