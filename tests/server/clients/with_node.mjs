// What the `openai` package for Node must be able to do: node with_node.mjs URL MODEL KEY
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, model, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: "Name three uses of a paperclip." }];
const short = { model, messages, max_tokens: 12, temperature: 0 };
const schema = {
  type: "object",
  properties: { age: { type: "integer", minimum: 0, maximum: 99 } },
  required: ["age"],
  additionalProperties: false,
};
const tool = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

const whole = await client.chat.completions.create(short);
const text = whole.choices[0].message.content;
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
console.log("ok chat");

let joined = "";
let usage = null;
const options = { ...short, stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create(options)) {
  joined += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(joined, text);
// the second request finds the prompt of the first in the prefix cache
assert.ok(usage.prompt_tokens_details.cached_tokens > 0);
const cold = { ...usage, prompt_tokens_details: { cached_tokens: 0 } };
assert.deepEqual(cold, whole.usage);
const helper = await client.chat.completions.stream(short).finalContent();
assert.equal(helper, text);
console.log("ok streaming, usage");

const stop = text.slice(3, 5);
const cut = await client.chat.completions.create({ ...short, stop: [stop] });
assert.equal(cut.choices[0].message.content, text.split(stop)[0]);
console.log("ok stop");

const several = { ...short, n: 3, temperature: 1, seed: 5 };
const first = await client.chat.completions.create(several);
const again = await client.chat.completions.create(several);
assert.equal(first.choices.length, 3);
assert.deepEqual(first.choices.map((c) => c.message.content), again.choices.map((c) => c.message.content));
console.log("ok n, seed");

const logged = await client.chat.completions.create({ ...short, logprobs: true, top_logprobs: 2, logit_bias: { 40: 5 } });
assert.equal(logged.choices[0].logprobs.content[0].top_logprobs.length, 2);
console.log("ok logprobs, logit bias");

const old = await client.completions.create({ model, prompt: ["Once", "Twice"], max_tokens: 4 });
assert.equal(old.choices.length, 2);
console.log("ok completions");

const format = { type: "json_schema", json_schema: { name: "age", strict: true, schema } };
const shaped = await client.chat.completions.create({ ...short, max_tokens: 200, response_format: format });
assert.equal(typeof JSON.parse(shaped.choices[0].message.content).age, "number");
console.log("ok JSON schema");

const called = await client.chat.completions.create({ ...short, max_tokens: 200, tools: [tool], tool_choice: "required" });
assert.ok(["Paris", "Rome"].includes(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).city));
console.log("ok tools");

for (const [kind, change, other] of [
  [OpenAI.AuthenticationError, {}, new OpenAI({ baseURL: url, apiKey: "wrong-key", maxRetries: 0 })],
  [OpenAI.NotFoundError, { model: "none" }, client],
  [OpenAI.BadRequestError, { temperature: 5 }, client],
]) {
  await assert.rejects(other.chat.completions.create({ ...short, ...change }), kind);
}
console.log("ok errors");
