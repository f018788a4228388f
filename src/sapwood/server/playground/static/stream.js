// Requests to the server: its state, and one stream of events for each answer.
const STORED = "sapwood-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => Boolean(sessionStorage.getItem(STORED));
export const keepKey = (key) => sessionStorage.setItem(STORED, key);

function headers() {
  const key = sessionStorage.getItem(STORED);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function refusal(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // a response that is not JSON has no message beyond its status
  }
  return new Refused(response.status, message);
}

export async function readState() {
  const response = await fetch("/playground/state", { headers: headers(), cache: "no-store" });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/** The events of one answer, as [name, record]. */
export async function* answer(question, signal) {
  const response = await fetch("/playground/chat", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(question),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  let held = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (held + value).split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      const event = parse(block);
      if (event) yield event;
    }
  }
}

function parse(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? [name, JSON.parse(data.join("\n"))] : null;
}
