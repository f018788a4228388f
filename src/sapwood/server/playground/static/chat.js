// The conversation: turns in order, scrolled along with the answer, stored across reloads.
import { Answer } from "./answer.js";
import { byId, el } from "./dom.js";
import { Race } from "./race.js";

const STORED = "sapwood-chat";
const NEAR = 40; // pixels from the end within which the log follows the answer
const COPIED = 1500; // milliseconds that a button says so

export class Chat {
  /** `choose` is called with an answer and the number of a round when a token is clicked. */
  constructor(log, choose) {
    this.log = log;
    this.choose = choose;
    this.turns = [];
    this.system = "";
    this.following = true; // until the user scrolls away
    this.height = 0;
    this.top = 0; // where the last jump to the end came to
    log.addEventListener("scroll", () => this.scrolled());
    log.addEventListener("click", (event) => this.clicked(event));
    new ResizeObserver(() => { if (this.following) this.toEnd(); }).observe(log);
  }

  get messages() {
    const system = this.system.trim() ? [{ role: "system", content: this.system.trim() }] : [];
    return [...system, ...this.turns.map(({ role, text, content = text }) => ({ role, content })).filter(({ content }) => content)];
  }

  get text() {
    return this.messages.map(({ content }) => content).join("\n\n");
  }

  ask(text) {
    this.welcome(false);
    this.turns.push({ role: "user", text });
    this.log.append(el("article", { class: "turn user", "aria-label": "You" }, el("p", {}, text)));
    this.following = true;
    this.toEnd();
  }

  /** A new, empty answer. */
  answer() {
    return this.add(new Answer(this.text));
  }

  /** A race of two recipes; the second one's text goes on in the chat. */
  race(names) {
    return this.add(new Race(names, this.text));
  }

  add(turn) {
    this.turns.push(turn);
    this.follow(() => this.log.append(turn.home));
    return turn;
  }

  // ------------------------------------------------------------------------------------- scrolling
  /** Change the log and stay at its end, unless the user has scrolled away. */
  follow(change) {
    // the event of a user's scroll may come after the next text
    if (this.log.scrollTop < this.top - NEAR && this.left >= NEAR) this.following = false;
    change();
    if (this.following) this.toEnd();
  }

  toEnd() {
    if (!this.turns.length) return; // the welcome is read from its beginning
    this.log.scrollTop = this.log.scrollHeight;
    this.height = this.log.scrollHeight;
    this.top = this.log.scrollTop;
  }

  /** Pixels between what is shown and the end. */
  get left() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight;
  }

  scrolled() {
    // text that came since the last jump to the end is no scrolling of the user
    if (this.left < NEAR) this.following = true;
    else if (this.log.scrollHeight === this.height) this.following = false;
    this.height = this.log.scrollHeight;
  }

  // ------------------------------------------------------------------------------------- clicks
  clicked(event) {
    const button = event.target.closest(".copy");
    if (button) return this.copy(button);
    const round = event.target.closest("[data-round]")?.dataset.round;
    const answer = this.answers().find(({ home }) => home.contains(event.target));
    if (round !== undefined && answer) this.choose(answer, Number(round));
  }

  answers() {
    return this.turns.flatMap((turn) => turn.answers ?? (turn.home ? [turn] : []));
  }

  async copy(button) {
    const answer = this.answers().find(({ home }) => home.contains(button));
    const text = button.dataset.copy === "answer" ? answer.text : button.closest("figure").querySelector("code").textContent;
    const label = button.textContent;
    button.textContent = (await toClipboard(text)) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = label === "Copied" ? "Copy" : label; }, COPIED);
  }

  // ------------------------------------------------------------------------------------- the whole chat
  /** Remove a question that got no answer, so that it is not part of the next prompt. */
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
    this.following = true;
    this.welcome(true);
    this.keep();
  }

  welcome(shown) {
    byId("welcome").hidden = !shown;
  }

  keep() {
    try {
      sessionStorage.setItem(STORED, JSON.stringify(this.turns.map(record)));
    } catch {
      sessionStorage.removeItem(STORED); // too long for the browser: a reload starts a new chat
    }
  }

  restore() {
    for (const turn of JSON.parse(sessionStorage.getItem(STORED) ?? "[]")) {
      if (turn.role === "user") this.ask(turn.text);
      else if (turn.lanes) this.race(turn.names).restore(turn.lanes, turn.verdict);
      else fill(this.answer(), turn);
    }
    this.toEnd();
  }
}

const record = (turn) => (turn.lanes
  ? { role: turn.role, names: turn.names, verdict: turn.verdict, lanes: turn.lanes.map(record) }
  : { role: turn.role, text: turn.text, pieces: turn.pieces?.map(({ text, sources, again }) => ({ text, sources, again })), notes: turn.notes });

/** Put a stored answer into a new one. */
export function fill(answer, { pieces, notes }) {
  answer.add(pieces);
  answer.close(notes);
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text); // pages that did not come over TLS or from this machine have no clipboard
  }
}

function copySelection(text) {
  const area = el("textarea", { class: "hidden", "aria-hidden": "true", readonly: true });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
