// The page: reads the state of the server, sends questions, and shows what comes back.
import { Chat, notes } from "./chat.js";
import { totals } from "./charts.js";
import { byId, el, number } from "./dom.js";
import { Panels } from "./panels.js";
import { answer as stream, keepKey, readState } from "./stream.js";

const SETTINGS = "sapwood-settings", THEME = "sapwood-theme";
const NUMBERS = ["temperature", "top_p", "min_p", "top_k", "max_tokens", "seed"];
const THEMES = { "": ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

const panels = new Panels();
const chat = new Chat(byId("log"), (answer, round) => panels.choose(answer, round));
let state = null;
let running = null; // the AbortController of the answer under way

// ------------------------------------------------------------------------------------- state of the server
async function open() {
  try {
    state = await readState();
  } catch (error) {
    if (error.status === 401) return byId("door").showModal();
    return complain(error.message);
  }
  panels.state = state;
  byId("facts").textContent = [state.model, `${state.backend} ${state.dtype}`, `${state.device}, ${state.threads} threads`].join(" · ");
  recipes();
  legend(state.drafters);
  panels.draw(true);
}

function recipes() {
  const home = byId("recipe"), wanted = home.value || settings().recipe || "";
  const option = ({ name, system }) => el("option", { value: name, title: system }, name);
  const group = (title, kept) => el("optgroup", { label: title }, ...state.recipes.filter(kept).map(option));
  home.replaceChildren(
    el("optgroup", { label: "This server's own" }, el("option", { value: "" }, state.recipe.name)),
    group("Same text, or same law", ({ name, guarantee }) => guarantee !== "lossy" && name !== state.recipe.name),
    group("Changes the text", ({ guarantee }) => guarantee === "lossy"),
  );
  home.value = wanted;
  if (home.selectedIndex < 0) home.value = "";
}

function legend(drafters, counts = {}) {
  const whole = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const share = (bit) => (whole ? ` ${number((100 * (counts[bit] ?? 0)) / whole, 0)} %` : "");
  const item = (bit, { name, about }, kind) => el("li", { title: about },
    el("b", { class: `token ${kind}`, "data-source": bit < 0 ? undefined : bit % 8 }, name), el("span", { class: "share" }, share(bit)));
  const own = { name: "the model itself", about: "The token that the model adds after each tree." };
  byId("legend").replaceChildren(...drafters.map((drafter, bit) => item(bit, drafter, "guess")), item(-1, own, "own"));
}

// ------------------------------------------------------------------------------------- one answer
async function send(question) {
  running = new AbortController();
  busy(true);
  chat.ask(question);
  const body = asked();
  const answer = chat.answer();
  panels.follow(answer);
  const voice = new Voice();
  let last = null;
  try {
    for await (const [name, record] of stream(body, running.signal)) {
      if (name === "error") throw new Error(record.error.message);
      if (name === "begin") begin(answer, record);
      if (name === "round") grow(answer, record, voice);
      if (name === "end") last = record;
    }
    finish(answer, last ? notes(last.stats, last.finish) : ["the connection ended early"], voice);
  } catch (error) {
    if (error.name === "AbortError") finish(answer, ["stopped"], voice);
    else fail(answer, error, question);
  }
  running = null;
  busy(false);
  readState().then((fresh) => Object.assign(state.curve, fresh.curve), () => {}); // the curve goes with the machine
}

function begin(answer, record) {
  answer.drafters = record.drafters;
  answer.names = record.drafters.map(({ name }) => name);
  answer.budget = record.budget.nodes;
  panels.tree.names = answer.names;
  legend(record.drafters);
}

function grow(answer, round, voice) {
  answer.rounds.push(round);
  chat.follow(() => answer.add(round.pieces, round.round));
  panels.grown();
  voice.hear(round.pieces.map(({ text }) => text).join(""));
}

function finish(answer, found, voice) {
  chat.follow(() => answer.close(found));
  chat.keep();
  panels.draw(true);
  legend(answer.drafters ?? state.drafters, totals(answer.rounds).guesses);
  voice.end(found);
}

function fail(answer, error, question) {
  if (answer.rounds.length) finish(answer, ["broken off"], new Voice());
  else {
    chat.takeBack(answer);
    byId("question").value = question;
  }
  if (error.status === 401) byId("door").showModal();
  else complain(error.message);
}

function busy(yes) {
  byId("stop").hidden = !yes;
  byId("send").hidden = yes;
  byId("fresh").disabled = yes;
  if (yes) byId("stop").focus({ preventScroll: true });
  else byId("question").focus({ preventScroll: true });
}

/** Reads the answer to those who cannot see it, sentence by sentence. */
class Voice {
  held = "";

  hear(text) {
    this.held += text;
    const end = this.held.search(/[.!?:\n]\s[^]*$/);
    if (end >= 0 && this.held.length > 40) {
      byId("status").textContent = this.held.slice(0, end + 1);
      this.held = this.held.slice(end + 1);
    }
  }

  end(found) {
    byId("status").textContent = `${this.held} End of the answer: ${found.join(", ")}.`;
  }
}

function complain(message) {
  const home = byId("alert");
  home.textContent = message;
  home.hidden = false;
  clearTimeout(complain.timer);
  complain.timer = setTimeout(() => { home.hidden = true; }, 8000);
}

// ------------------------------------------------------------------------------------- controls
function options() {
  const found = NUMBERS.map((name) => [name, byId(name).valueAsNumber]);
  return Object.fromEntries(found.filter(([, value]) => !Number.isNaN(value)));
}

/** The request, as /v1/chat/completions has it. */
function asked() {
  const recipe = byId("recipe").value;
  return { model: state.name, messages: chat.messages, stream: true, ...options(), ...(recipe && { speculation: { recipe } }) };
}

const settings = () => JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");

function show(input) {
  const output = document.querySelector(`output[for="${input.id}"]`);
  if (output) output.textContent = number(input.valueAsNumber, 2);
}

function controls() {
  for (const name of NUMBERS) {
    const input = byId(name);
    if (settings()[name] !== undefined) input.value = settings()[name];
    show(input);
    input.addEventListener("input", () => show(input));
  }
  byId("composer").addEventListener("change", () => localStorage.setItem(SETTINGS, JSON.stringify({ ...options(), recipe: byId("recipe").value })));
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const question = byId("question").value.trim();
    if (!question || running || !state) return;
    byId("question").value = "";
    send(question);
  });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  byId("ideas").addEventListener("click", (event) => {
    if (event.target.closest("button") && !running && state) send(event.target.textContent);
  });
  byId("stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
  byId("fresh").addEventListener("click", () => { chat.clear(); panels.clear(); legend(state.drafters); byId("question").focus(); });
  toggle(byId("more"), (open) => { byId("options").hidden = !open; });
  toggle(byId("fold"), (open) => { byId("inside").classList.toggle("folded", !open); });
  byId("door").addEventListener("close", () => { keepKey(byId("key").value); open(); });
}

function toggle(button, change) {
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", open);
    change(open);
  });
}

function theme() {
  const set = (name) => {
    const [sign, words] = THEMES[name];
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = sign;
    byId("theme").setAttribute("aria-label", `Colours: ${words}`);
  };
  const names = Object.keys(THEMES);
  set(names.includes(localStorage.getItem(THEME)) ? localStorage.getItem(THEME) : "");
  byId("theme").addEventListener("click", () => {
    const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
    localStorage.setItem(THEME, next);
    set(next);
  });
}

theme();
controls();
chat.restore();
open();
