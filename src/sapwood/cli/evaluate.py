"""`sapwood evaluate`: tokens per pass of a trained head, by the size of its trees."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sapwood.bench.suites import BenchPrompt
    from sapwood.train.evaluate import TreeLimits

HEAD = "Folder of an EAGLE-3 head, ours or another trainer's. [default: the one recipes find]"
SUITE = "Prompts: chat, copy, edit, json, long, random; or JSONL files. Several by commas."
TREE = "NODES,DEPTH,BEAM of a tree; may be given again. [default: a chain of 6; 16, 32, 64 nodes]"

Head = Annotated[Path | None, typer.Argument(help=HEAD)]
Suite = Annotated[str, typer.Option("--suite", help=SUITE)]
Limit = Annotated[
    int | None, typer.Option("--limit", help="At most so many prompts. [default: all]")
]
Trees = Annotated[list[str] | None, typer.Option("--tree", help=TREE)]


def command(
    head: Head = None,
    model: o.Name = "smollm2",
    suite: Suite = "chat,copy,edit",
    limit: Limit = None,
    tree: Trees = None,
    max_tokens: o.Longest = 128,
    device: o.Device = None,
    dtype: o.Dtype = None,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Measure a trained head: tokens per pass, by the size of its trees."""
    from sapwood.bench.suites import gather
    from sapwood.core.part import at_least

    at_least(1, max_tokens=max_tokens)
    sizes = [read_tree(text) for text in tree or ()]
    place = {"device": device, "dtype": dtype, "threads": threads}
    found = scored(head, model, gather(suite, (), limit, turns=1), sizes, max_tokens, place)
    if as_json:
        print(json.dumps(found))
    else:
        table(found)


def read_tree(text: str) -> tuple[int, int, int]:
    """Nodes, depth and beam of a tree."""
    from sapwood.core.part import between
    from sapwood.core.tree import CAPACITY

    words = [word.strip() for word in text.split(",")]
    if len(words) != 3 or not all(word.isdigit() for word in words):
        raise SapwoodError(f"--tree {text!r} must be NODES,DEPTH,BEAM, such as 64,16,10")
    nodes, depth, beam = map(int, words)
    between(1, CAPACITY - 1, nodes=nodes, depth=depth, beam=beam)
    return nodes, depth, beam


def scored(
    head: Path | None,
    model: str,
    prompts: "Sequence[BenchPrompt]",
    sizes: "Sequence[tuple[int, int, int]]",
    longest: int,
    place: dict[str, Any],
) -> dict[str, Any]:
    """The record: tokens per pass of every tree, by category of prompts."""
    from sapwood.cli import render

    with render.progress() as progress:
        progress("starting torch")
        from sapwood.backends.torch.load import load
        from sapwood.common.drafter_store import check_target, find
        from sapwood.heads.load_head import open_head
        from sapwood.tokenizer.tokenizer import Tokenizer
        from sapwood.train.evaluate import answered, tokens_per_pass
        from sapwood.train.teacher import Teacher

        if head is not None:
            check_kind(head)  # before the model is loaded
        backend, files = load(model, **place, progress=progress, stock=True)
        folder = head or find("eagle3", model, backend.info.weights)
        check_target(folder, "eagle3", model, backend.info.weights)
        teacher = Teacher(backend)
        net, own = open_head(
            folder,
            "eagle3",
            backend.model,
            model,
            device=teacher.device,
            dtype=teacher.embedding.dtype,
        )
        text = Tokenizer.load(files)
        asked = [prompt.tokens(backend.info, text) for prompt in prompts]
        texts = answered(
            backend,
            asked,
            text.eos,
            longest,
            lambda count: progress(f"{model} answers {len(asked)} prompts: {count} tokens"),
        )

        def replay(shape: "TreeLimits") -> list[float]:
            progress(f"replaying the answers with {shape.nodes} nodes")
            return tokens_per_pass(net, teacher, texts, shape, own)

        trees = [row(shape, prompts, replay(shape)) for shape in tree_sizes(sizes)]
    info = backend.info
    return {
        "head": str(folder),
        "model": info.model,
        "device": info.device,
        "dtype": info.dtype,
        "prompts": len(texts),
        "tokens": sum(len(tokens) - start for tokens, start in texts),
        "trees": trees,
    }


def tree_sizes(sizes: "Sequence[tuple[int, int, int]]") -> "list[TreeLimits]":
    """The given trees, or else a chain and three sizes of trees."""
    from sapwood.train.evaluate import CHAIN6, LARGE, MIDDLE, SMALL, TreeLimits

    return [TreeLimits(*size) for size in sizes] or [CHAIN6, SMALL, MIDDLE, LARGE]


def check_kind(folder: Path) -> None:
    """Raise for a head that is not EAGLE-3, before a model is loaded."""
    from sapwood.heads.files import BLOCK
    from sapwood.heads.folder import read_config

    block = read_config(folder).get(BLOCK)
    kind = block.get("kind") if isinstance(block, dict) else None
    if kind not in (None, "eagle3"):
        raise SapwoodError(
            f"{folder} holds a {kind} head, and only eagle3 heads are evaluated; "
            f"`sapwood bench --recipes \"{kind}(head='{folder}') + beam + match + fixed\" "
            "--nodes 60` runs it"
        )


def row(
    shape: "TreeLimits", prompts: "Sequence[BenchPrompt]", rates: list[float]
) -> dict[str, Any]:
    """Tokens per pass with one tree: the mean of each category, and the mean of these."""
    groups: dict[str, list[float]] = {}
    for prompt, rate in zip(prompts, rates, strict=True):
        groups.setdefault(prompt.category, []).append(rate)
    means = {name: sum(found) / len(found) for name, found in sorted(groups.items())}
    return {
        "nodes": shape.nodes,
        "depth": shape.depth,
        "beam": shape.beam,
        "tokens_per_pass": sum(means.values()) / len(means),
        "categories": means,
    }


def table(found: dict[str, Any]) -> None:
    """Print one line per tree, one column per category."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"tokens per pass, {found['model']} on {found['device']}, {found['dtype']}"
    shown = Table("nodes", "depth", "beam", box=box.SIMPLE, title=title)
    names = list(found["trees"][0]["categories"])
    for name in ("mean", *names):
        shown.add_column(name, justify="right")
    for one in found["trees"]:
        rates = [one["tokens_per_pass"], *(one["categories"][name] for name in names)]
        sizes = [str(one[side]) for side in ("nodes", "depth", "beam")]
        shown.add_row(*sizes, *(f"{rate:.2f}" for rate in rates))
    console = Console()
    console.print(shown)
    console.print(
        f"{found['tokens']} tokens of {found['prompts']} greedy answers, head in {found['head']}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
