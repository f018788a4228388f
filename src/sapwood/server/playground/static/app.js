// The page: reads the state of the server, sends questions, and shows the responses.
import { summary } from "./answer.js";
import { Chat } from "./chat.js";
import { totals } from "./charts.js";
import { byId, el, number } from "./dom.js";
import { Panels } from "./panels.js";
import { answer as stream, hasKey, keepKey, readState } from "./stream.js";

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
    if (error.status === 401) return askForKey();
    return showAlert(error.message);
  }
  panels.state = state;
  byId("facts").textContent = [state.model, `${state.backend} ${state.dtype}`, `${state.device}, ${state.threads} threads`].join(" · ");
  recipes();
  legend(state.drafters);
  panels.draw(true);
}

function askForKey() {
  byId("key-problem").textContent = hasKey() ? "The server does not know this key. Check it and try again." : "";
  byId("key").value = "";
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

/** The recipes that can run here: the server's own, then by family, then those that change the text. */
function recipes() {
  const home = byId("recipe"), wanted = home.value || settings().recipe || "";
  const option = ({ name, system }) => el("option", { value: name, title: system }, name);
  const group = (title, kept) => (kept.length ? [el("optgroup", { label: title }, ...kept.map(option))] : []);
  const others = state.recipes.filter(({ name }) => name !== state.recipe.name);
  const lossless = others.filter(({ guarantee }) => guarantee !== "lossy");
  home.replaceChildren(
    el("optgroup", { label: "This server's own" }, el("option", { value: "" }, state.recipe.name)),
    ...[...new Set(lossless.map(({ family }) => family))].flatMap((family) => group(family, lossless.filter((recipe) => recipe.family === family))),
    ...group("Changes the text", others.filter(({ guarantee }) => guarantee === "lossy")),
  );
  home.value = wanted;
  if (home.selectedIndex < 0) home.value = "";
  byId("race").disabled = !rivals();
}

/** The two recipes of a race: plain decoding and the chosen recipe; null where there is no other. */
function rivals() {
  const names = [byId("recipe").value || state.recipe.name, state.recipe.name, "auto", ...state.recipes.map(({ name }) => name)];
  const known = new Set([state.recipe.name, ...state.recipes.map(({ name }) => name)]);
  const own = names.find((name) => name !== "plain" && known.has(name));
  return known.has("plain") && own ? ["plain", own] : null;
}

function legend(drafters, counts = {}) {
  const whole = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const share = (bit) => (whole ? ` ${number((100 * (counts[bit] ?? 0)) / whole, 0)} %` : "");
  const item = (bit, { name, about }, kind) => el("li", { title: about },
    el("b", { class: `token ${kind}`, "data-source": bit < 0 ? undefined : bit % 8 }, name), el("span", { class: "share" }, share(bit)));
  const own = { name: "the model itself", about: "The token that the model adds after each tree." };
  byId("legend").replaceChildren(...drafters.map((drafter, bit) => item(bit, drafter, "drafted")), item(-1, own, "own"));
}

// ------------------------------------------------------------------------------------- one answer
async function send(question) {
  const announcer = new Announcer();
  await during(question, () => chat.answer(), async (answer, body) => {
    let last = null;
    for await (const [name, record] of stream(body, running.signal)) {
      if (name === "error") throw new Error(record.error.message);
      if (name === "begin") begin(answer, record);
      if (name === "round") addRound(answer, record, announcer);
      if (name === "end") last = record;
    }
    finish(answer, last ? summary(last.stats, last.finish, answer.repeated) : ["the connection ended early"], announcer);
  }, (answer) => finish(answer, ["stopped"], announcer));
}

/** One prompt with two recipes, side by side. */
async function race(question) {
  const hooks = {
    begin: (answer) => { if (answer === panels.answer) named(answer); },
    round: (answer, round) => { answer.rounds.push(round); chat.follow(() => answer.add(round.pieces, round.round)); panels.roundAdded(answer); },
    follow: (answer) => panels.follow(answer),
    aborted: () => running?.signal.aborted ?? true,
  };
  await during(question, () => chat.race(rivals()), async (turn, body) => {
    await turn.run((recipe) => stream({ ...body, speculation: speculationOf(recipe) }, running.signal), hooks);
    chat.follow(() => chat.keep());
    legend(panels.answer.drafters, totals(panels.answer.rounds).tokensBySource);
    panels.draw(true);
    byId("status").textContent = `End of the race: ${turn.verdict}`;
  }, (turn) => { turn.stop("stopped"); chat.keep(); });
}

/** Ask, answer, and leave the page ready for the next question, whatever happens in between. */
async function during(question, open, work, stopped) {
  running = new AbortController();
  busy(true);
  chat.system = byId("system").value;
  chat.ask(question);
  const body = requestBody();
  const turn = open();
  if (turn.rounds) panels.follow(turn);
  try {
    await work(turn, body);
  } catch (error) {
    running.abort();
    if (error.name === "AbortError") stopped(turn);
    else fail(turn, error, question);
  }
  running = null;
  busy(false);
  readState().then((fresh) => Object.assign(state.curve, fresh.curve), () => {}); // measured again while decoding
}

function begin(answer, record) {
  answer.drafters = record.drafters;
  answer.drafterNames = record.drafters.map(({ name }) => name);
  answer.budget = record.budget.nodes;
  named(answer);
}

/** Name the drafters of an answer in the legend and in the tree. */
function named(answer) {
  panels.tree.drafterNames = answer.drafterNames;
  legend(answer.drafters);
}

function addRound(answer, round, announcer) {
  answer.rounds.push(round);
  chat.follow(() => answer.add(round.pieces, round.round));
  panels.roundAdded(answer);
  announcer.push(round.pieces.map(({ text }) => text).join(""));
}

function finish(answer, notes, announcer) {
  chat.follow(() => answer.close(notes));
  chat.keep();
  panels.draw(true);
  legend(answer.drafters ?? state.drafters, totals(answer.rounds).tokensBySource);
  announcer.end(notes);
}

function fail(answer, error, question) {
  if (answer.rounds?.length) finish(answer, ["interrupted"], new Announcer());
  else {
    chat.takeBack(answer);
    byId("question").value = question;
  }
  if (error.status === 401) askForKey();
  else showAlert(error.message);
}

function busy(yes) {
  byId("stop").hidden = !yes;
  byId("send").hidden = yes;
  byId("race").hidden = yes;
  byId("fresh").disabled = yes;
  if (yes) byId("stop").focus({ preventScroll: true });
  else byId("question").focus({ preventScroll: true });
}

/** Announces the answer to screen readers, sentence by sentence. */
class Announcer {
  held = "";

  push(text) {
    this.held += text;
    const end = this.held.search(/[.!?:\n]\s[^]*$/);
    if (end >= 0 && this.held.length > 40) {
      byId("status").textContent = this.held.slice(0, end + 1);
      this.held = this.held.slice(end + 1);
    }
  }

  end(notes) {
    byId("status").textContent = `${this.held} End of the answer: ${notes.join(", ")}.`;
  }
}

function showAlert(message) {
  const home = byId("alert");
  home.textContent = message;
  home.hidden = false;
  clearTimeout(showAlert.timer);
  showAlert.timer = setTimeout(() => { home.hidden = true; }, 8000);
}

// ------------------------------------------------------------------------------------- controls
function options() {
  const found = NUMBERS.map((name) => [name, byId(name).valueAsNumber]);
  return Object.fromEntries(found.filter(([, value]) => !Number.isNaN(value)));
}

/** The request, as /v1/chat/completions has it. */
function requestBody() {
  const recipe = byId("recipe").value;
  return { model: state.name, messages: chat.messages, stream: true, ...options(), ...(recipe && { speculation: speculationOf(recipe) }) };
}

/** A recipe by its name, and its guarantee, so that one that changes the text is taken knowingly. */
function speculationOf(name) {
  const known = state.recipes.find((recipe) => recipe.name === name);
  return known?.guarantee === "lossy" ? { recipe: name, guarantee: "lossy" } : { recipe: name };
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
  byId("system").value = settings().system ?? "";
  byId("composer").addEventListener("change", () => {
    localStorage.setItem(SETTINGS, JSON.stringify({ ...options(), recipe: byId("recipe").value, system: byId("system").value }));
    if (state) byId("race").disabled = !rivals();
  });
  const take = (work) => {
    const question = byId("question").value.trim();
    if (!question || running || !state) return byId("question").focus();
    byId("question").value = "";
    return work(question);
  };
  byId("composer").addEventListener("submit", (event) => { event.preventDefault(); take(send); });
  byId("race").addEventListener("click", () => take(race));
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
  byId("key-dialog").addEventListener("close", () => { keepKey(byId("key").value); open(); });
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
    const [sign, title] = THEMES[name];
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = sign;
    byId("theme").setAttribute("aria-label", `Colours: ${title}`);
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
