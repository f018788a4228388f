"""The pages of the HTTP API and of the configuration, from the request types and the settings."""

import ast
import json
from pathlib import Path

from tools.source_text import ROOT, FieldText, fields_of, find

from sapwood.server.openai.request_schema import IGNORED
from sapwood.server.openai.unknown_fields import NEUTRAL, REFUSED, UNUSED

SCHEMA = ROOT / "src/sapwood/server/openai/request_schema.py"
EMBEDDINGS = ROOT / "src/sapwood/server/openai/embeddings.py"
RESPONSES = ROOT / "src/sapwood/server/openai/responses_schema.py"
MESSAGES = ROOT / "src/sapwood/server/anthropic/messages_schema.py"
OLLAMA = ROOT / "src/sapwood/server/ollama/schema.py"
SETTINGS = ROOT / "src/sapwood/server/settings.py"
LIMITS = ROOT / "src/sapwood/server/limits.py"
MARK = "<!-- written by tools/reference.py from the source: change that, then run `make tables` -->"
HTTP = """\
# HTTP API

An OpenAI-compatible API at `http://HOST:PORT/v1`. [Serving](../serving.md) says what the fields do;
a running server describes itself, with its own limits, at `/openapi.json`.

## Routes

| route | what it does |
| --- | --- |
{routes}
## Fields of chats and completions

Every field may be left out unless it is required. Ranges are checked before anything else happens.

{shared}
### Chat completions only

{chat}
### Completions only

{completion}
## Fields of the other routes

### Embeddings

{embeddings}
### Responses

{responses}
### Messages

{messages}
### Ollama's chats and prompts

{ollama}
Of `/api/chat` only:

{ollama_chat}
Of `/api/generate` only:

{ollama_text}
`options`:

{ollama_options}
### Ollama's embeddings

{ollama_embed}
## Ignored and refused

Taken and without effect; the header `x-sapwood-ignored` names those that came: {ignored}.

Taken and without effect here, as options of samplers that are off, of caches or of other programs:
{unused}.

Refused with status 400 and the reason, unless they are null or have the value in parentheses:

{refused}

Every other field that is not listed is refused too, with the nearest known name.

## Errors

Every failure is `{{"error": {{"message", "type", "param", "code"}}}}`; under `/v1/messages` it is
`{{"type": "error", "error": {{"type", "message", "param"}}}}`, and under `/api` it is
`{{"error": "..."}}`.

| status | type | code |
| --- | --- | --- |
{errors}
"""
CONFIGURATION = """\
# Configuration

A server reads its settings from the command line, then the environment (`SAPWOOD_PORT=8000`), then
a TOML file (`--config FILE`), in this order of precedence. Names are the same everywhere; on the
command line and in the file, words are joined by `-`.

```toml
model = "smollm2"
recipe = "auto"
port = 8000
origins = ["https://app.example"]

[limits]
request_seconds = 120
```

The model is chosen by `model`, `recipe`, `backend`, `device`, `dtype` and `threads`, as with
[`sapwood serve`](cli.md#sapwood-serve).

## Settings

{settings}
Keys come from `SAPWOOD_KEY`, `--key`, or a file with one key a line (`--keys FILE`).

## Limits

`--limit NAME=VALUE`, `SAPWOOD_LIMIT_NAME=VALUE`, or a line in the file's `[limits]` table.

{limits}
## Environment of the other commands

| variable | what it does |
| --- | --- |
| `SAPWOOD_CACHE` | folder of cost profiles, prepared models and trained drafters; \
`~/.cache/sapwood` where it is not set |
| `SAPWOOD_CPU` | instructions of the CPU kernels: `avx512`, `avxvnni`, `avx2`, or `none` for \
torch's own int8 layers; the processor's best where it is not set |
| `SAPWOOD_GUEST_RECIPE` | recipe of the plug-ins in [vLLM](../vllm.md) and [SGLang](../sglang.md) |
| `SAPWOOD_GUEST_LOG` | file that gets a line of JSON for each step of a plug-in |
| `LLAMA_SERVER` | the `llama-server` program that `sapwood bench --peers llama-server` starts |
| `OPENAI_API_KEY` | key of the server that `sapwood bench --peers openai:URL` asks |
"""


# routes whose docstrings have their path alone
MEANING = {
    "/v1/chat/completions": "the next turn of a conversation",
    "/v1/completions": "texts to continue, verbatim",
    "/v1/embeddings": "a vector for each text",
    "/v1/responses": "the next turn of a conversation, in OpenAI's Responses API",
    "/v1/messages": "the next turn of a conversation, in Anthropic's Messages API",
    "/v1/messages/count_tokens": "the tokens of such a request",
    "/v1/models": "the served model, in a list",
    "/v1/models/{id}": "the served model",
    "/version": "the version of sapwood",
    "/openapi.json": "this API as an OpenAPI 3.1 document, with this server's limits",
    "/metrics": "metrics in the form that Prometheus reads",
}


def http_page() -> str:
    """The page of the HTTP API."""
    from sapwood.server.errors import KINDS

    errors = "\n".join(
        f"| {status} | `{kind}` | {f'`{code}`' if code else ''} |"
        for status, (kind, code) in KINDS.items()
    )
    text = HTTP.format(
        routes=routes(),
        shared=request_table("RequestFields"),
        chat=request_table("ChatRequest"),
        completion=request_table("CompletionRequest"),
        ignored=", ".join(f"`{name}`" for name in IGNORED),
        embeddings=request_table("EmbeddingRequest", EMBEDDINGS),
        responses=request_table("ResponsesRequest", RESPONSES),
        messages=request_table("MessagesRequest", MESSAGES),
        ollama=request_table("OllamaFields", OLLAMA),
        ollama_chat=request_table("OllamaChatRequest", OLLAMA),
        ollama_text=request_table("OllamaGenerateRequest", OLLAMA),
        ollama_options=request_table("OllamaOptions", OLLAMA),
        ollama_embed=request_table("OllamaEmbedRequest", OLLAMA),
        unused=", ".join(f"`{name}`" for name in UNUSED),
        refused="\n".join(refused_line(name, reason) for name, reason in REFUSED.items()),
        errors=errors,
    )
    return f"{MARK}\n\n{text}"


def refused_line(name: str, reason: str) -> str:
    """A refused field with its neutral values and the reason."""
    neutral = " or ".join(f"`{json.dumps(value)}`" for value in NEUTRAL.get(name, ()))
    return f"- `{name}`{f' ({neutral})' if neutral else ''}: {reason}"


def configuration_page() -> str:
    """The page of the settings."""
    settings = setting_table(SETTINGS, "ServerSettings", skip=("limits", "keys"))
    limits = setting_table(LIMITS, "Limits")
    return f"{MARK}\n\n{CONFIGURATION.format(settings=settings, limits=limits)}"


def routes() -> str:
    """The routes of the application, with the first lines of their handlers."""
    app = ROOT / "src/sapwood/server/app.py"
    playground = ROOT / "src/sapwood/server/playground/routes.py"
    ollama = ROOT / "src/sapwood/server/ollama/routes.py"
    made = [*route_rows(app), *route_rows(ollama), *route_rows(playground)]
    return "".join(f"{row}\n" for row in made)


def route_rows(path: Path) -> list[str]:
    """A row for each documented handler of a file: `GET /path: what it does`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        summary = (ast.get_docstring(node) or "").partition("\n")[0]
        verb, _, rest = summary.partition(" ")
        if verb in ("GET", "POST"):
            route, _, words = rest.rstrip(".").partition(": ")
            found.append(f"| `{verb} {route}` | {words or MEANING.get(route, '')} |")
    return found


def request_table(name: str, path: Path = SCHEMA) -> str:
    """The fields of a request type; ignored ones of chats are named elsewhere."""
    aliases = alias_table()
    rows = []
    for field in fields_of(path, class_of(path, name)):
        if field.name in IGNORED and path == SCHEMA:
            continue
        kind = field.kind.removesuffix(" | None")
        kind = aliases.get(kind, kind).replace("list[Word]", "list[str]")
        kind = kind.replace("list[Token]", "list[int]")
        required = "required" if field.default is None else ""
        rows.append(f"| `{field.name}` | {cell(kind)} | {required} | {field.comment} |")
    return table(("field", "type", "", ""), rows)


def alias_table() -> dict[str, str]:
    """Type aliases at the top of the schema, with their definitions."""
    tree = ast.parse(SCHEMA.read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper():
                found[name] = ast.unparse(node.value)
    return found


def cell(kind: str) -> str:
    """A type as readers know it: `Annotated[float, Meta(ge=0, le=2)]` is `float`, 0 to 2."""
    tree = ast.parse(kind, mode="eval").body
    if isinstance(tree, ast.Subscript) and ast.unparse(tree.value) == "Annotated":
        assert isinstance(tree.slice, ast.Tuple)
        base, meta = tree.slice.elts[:2]
        assert isinstance(meta, ast.Call)
        bounds = {str(word.arg): ast.unparse(word.value) for word in meta.keywords}
        limits = ", ".join(f"{BOUNDS[name]} {number(value)}" for name, value in bounds.items())
        return f"`{ast.unparse(base)}`, {limits}".replace("|", "\\|")
    text = "object of token id to bias, -100 to 100" if kind.startswith("dict[Annotated") else kind
    return (text if text.startswith("object") else f"`{text}`").replace("|", "\\|")


BOUNDS = {
    "ge": "at least",
    "le": "at most",
    "max_length": "length at most",
    "min_length": "length at least",
    "pattern": "like",
}


def number(value: str) -> str:
    """A bound as a number; large powers of two stay as they are written."""
    return value.replace("**", "^").replace(" ", "")


def setting_table(path: Path, name: str, skip: tuple[str, ...] = ()) -> str:
    """The fields of a settings class."""
    node = class_of(path, name)
    rows = [
        f"| `{field.name}` | {default(field)} | {field.comment} |"
        for field in fields_of(path, node)
        if field.name not in skip
    ]
    return table(("name", "default", ""), rows)


def default(field: FieldText) -> str:
    """A default with its arithmetic done; empty for an empty one."""
    value = field.default or ""
    made = shifted(value) if "<<" in value else ast.literal_eval(value)
    return "" if made in ("", ()) else f"`{made}`"


def shifted(value: str) -> int:
    """The value of an expression such as `8 << 20`."""
    left, _, right = value.partition("<<")
    return int(left) << int(right)


def class_of(path: Path, name: str) -> ast.ClassDef:
    """A class of a file."""
    node = find(path, name)
    assert isinstance(node, ast.ClassDef)
    return node


def table(heads: tuple[str, ...], rows: list[str]) -> str:
    """A table in Markdown."""
    return "\n".join([f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *rows]) + "\n"
