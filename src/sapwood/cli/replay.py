"""`sapwood replay`: what another recipe would have done on a recorded text."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapwood.cli import options as o

if TYPE_CHECKING:
    from sapwood.engine.cost_model import CostModel
    from sapwood.llm import LLM
    from sapwood.recipe import Recipe
    from sapwood.trace.replay import ReplayRun, TracePlayer
    from sapwood.trace.rounds import Trace

RECIPES = "Names or spellings, separated by commas or semicolons."
CURVE = (
    "Seconds of a pass: a file that `sapwood profile --json` wrote, `flat` or `linear`. "
    "[default: the recorded one]"
)
NODES = "The recorded recipe with so many nodes every round; several by commas."
NO_MODEL = (
    "Load no model: drafters with trained weights are left out, "
    "and those that learn from rejected nodes are computed approximately."
)
SEARCH = "Replay a grid of drafters, policies and budgets, and name the fastest."
DRAFTERS = (
    "Drafters of the grid, separated by semicolons. [default: the recorded one, ngram, suffix]"
)

File = Annotated[Path, typer.Argument(help="A trace.")]
Recipes = Annotated[str, typer.Option("--recipes", help=RECIPES)]
Nodes = Annotated[str, typer.Option("--nodes", help=NODES)]
Curve = Annotated[str, typer.Option("--curve", help=CURVE)]
Oracle = Annotated[
    bool, typer.Option("--oracle/--no-oracle", help="Compare with the best possible trees.")
]
Search = Annotated[bool, typer.Option("--search", help=SEARCH)]
Drafters = Annotated[str, typer.Option("--drafters", help=DRAFTERS)]
NoModel = Annotated[bool, typer.Option("--no-model", help=NO_MODEL)]
Name = Annotated[
    str,
    typer.Option("--model", help="The recorded model, if it has another name on this machine."),
]


def command(
    trace: File,
    recipes: Recipes = "",
    drafter: o.DrafterText = None,
    policy: o.PolicyText = None,
    estimator: o.EstimatorText = None,
    controller: o.ControllerText = None,
    nodes: Nodes = "",
    curve: Curve = "",
    oracle: Oracle = True,
    search: Search = False,
    drafters: Drafters = "",
    no_model: NoModel = False,
    model: Name = "",
    as_json: o.AsJson = False,
) -> int:
    """Compute how another recipe, budget or machine would have done on a recorded run."""
    from sapwood.bench.recipe_set import split
    from sapwood.cli import render
    from sapwood.trace.read import read
    from sapwood.trace.replay import TracePlayer, differences

    found = read(trace)
    changed = {
        "drafter": drafter,
        "policy": policy,
        "estimator": estimator,
        "controller": controller,
    }
    wanted = {**asked(found, split(recipes)), **others(found, changed, sizes(nodes))}
    with render.progress() as progress:
        llm = None if no_model or not needs_model(found, wanted) else opened(found, model, progress)
        player = TracePlayer(found, llm, read_curve(curve, found))
        progress("replaying the recorded recipe")
        gaps = differences(found, player.replay_recorded())
        player.calibrate()
        rows = played(player, wanted, progress)
        best = oracle_rows(player, progress) if oracle else []
    tried = searched(player, drafters) if search else []
    record = {"trace": str(trace), "exact": not gaps, "differences": gaps, "scale": player.scale}
    record |= {
        "rows": rows,
        "oracle": best,
        "search": tried,
        "best": tried[0]["recipe"] if tried else None,
    }
    if as_json:
        print(json.dumps(record, allow_nan=False))
    else:
        table(found, record)
    return 1 if gaps else 0


def asked(trace: "Trace", names: list[str]) -> "dict[str, Recipe]":
    """The recorded recipe, plain decoding, and the recipes of the command line."""
    from sapwood.recipes import resolve

    own = trace.header
    return {
        f"{own.recipe} (recorded)": resolve(own.spelling),
        **{name: resolve(name) for name in ("plain", *names)},
    }


def others(trace: "Trace", changed: dict[str, str | None], sizes: list[int]) -> "dict[str, Recipe]":
    """The recorded recipe with single parts replaced, and with other budgets."""
    from sapwood.controllers.fixed import Fixed
    from sapwood.core.part import option_value
    from sapwood.recipes import resolve

    own: Any = resolve(trace.header.spelling)
    found = {
        f"{trace.header.recipe}, {part} {value}": resolve(own, **{part: value})
        for part, value in changed.items()
        if value is not None
    }
    for nodes in sizes:
        shape = {
            side: option_value(own.controller, side, getattr(Fixed, side))
            for side in ("depth", "width")
        }
        found[f"{trace.header.recipe}, {nodes} nodes"] = replace(
            own, controller=Fixed(nodes=nodes, **shape)
        )
    return found


def sizes(text: str) -> list[int]:
    """Parse numbers of nodes."""
    from sapwood.core.part import between
    from sapwood.core.tree import CAPACITY
    from sapwood.errors import SapwoodError

    words = [word.strip() for word in text.split(",") if word.strip()]
    if strange := [word for word in words if not word.isdigit()]:
        raise SapwoodError(f"--nodes {strange[0]!r} must be whole numbers, separated by commas")
    found = [int(word) for word in words]
    for nodes in found:
        between(0, CAPACITY - 1, nodes=nodes)
    return found


def needs_model(trace: "Trace", recipes: "dict[str, Recipe]") -> bool:
    """True if a recipe drafts with weights, or learns from data that no trace holds."""
    from sapwood.trace.part_names import drafters
    from sapwood.trace.replay import replays_without_model

    learns = any("recycling" in drafters(recipe) for recipe in recipes.values())
    return learns or not all(
        replays_without_model(recipe, trace.header.info) for recipe in recipes.values()
    )


def opened(trace: "Trace", model: str, progress: Any) -> "LLM":
    """The recorded model, with the recorded options."""
    from sapwood.errors import SapwoodError
    from sapwood.llm import LLM

    info = trace.header.info
    llm = LLM(
        model or trace.header.model,
        "plain",
        backend=None if info.name == "torch" else info.name,
        device=info.device,
        dtype=info.dtype,
        threads=info.threads,
        progress=progress,
    )
    if llm.target.info.vocab != info.vocab:
        raise SapwoodError(
            f"{llm.target.info.model} has {llm.target.info.vocab} tokens, and the recorded model "
            f"{info.vocab}; name the model that was recorded with --model"
        )
    return llm


def read_curve(text: str, trace: "Trace") -> "CostModel | None":
    """A cost curve by name or from a file; None is the recorded one."""
    from sapwood.engine.cost_model import CostModel, flat
    from sapwood.errors import SapwoodError

    if not text:
        return None
    # made-up curves begin at the recorded seconds, so that drafting keeps its relative cost
    one = trace.header.curve.seconds(1, 256)
    if text == "flat":
        return flat(one)
    if text == "linear":
        return CostModel([1, 1024], [0], [[one, 1024 * one]])
    try:
        return CostModel.from_json(json.loads(Path(text).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SapwoodError(
            f"--curve {text!r} is no cost curve ({error}); use a profile's file, flat or linear"
        ) from error


def played(
    player: "TracePlayer", recipes: "dict[str, Recipe]", progress: Any
) -> list[dict[str, Any]]:
    """A row for each recipe, or the reason why it cannot be replayed."""
    from sapwood.errors import SapwoodError

    plain = player.play("plain", recipes["plain"])
    rows = []
    for name, recipe in recipes.items():
        progress(f"replaying {name}")
        try:
            rows.append(row_of(plain if name == "plain" else player.play(name, recipe), plain))
        except SapwoodError as error:
            rows.append({"recipe": name, "skipped": str(error)})
    return rows


def row_of(run: "ReplayRun", plain: "ReplayRun") -> dict[str, Any]:
    """The numbers of a run; near if a row that was not recorded was replaced by another."""
    return {**run.row(plain), "near": run.near, "skipped": None}


def oracle_rows(player: "TracePlayer", progress: Any) -> list[dict[str, Any]]:
    """Rows of the best possible trees of the recorded drafter."""
    from sapwood.core.part import option_value
    from sapwood.errors import SapwoodError
    from sapwood.recipes import resolve
    from sapwood.trace.oracle import oracle

    own: Any = resolve(player.trace.header.spelling)
    progress("replaying the best possible trees")
    try:
        runs = oracle(player, own, max(1, option_value(own.controller, "width", 4)))
    except SapwoodError as error:
        return [{"recipe": "oracle", "skipped": str(error)}]
    plain = player.play("plain")
    return [row_of(run, plain) for run in runs]


def searched(player: "TracePlayer", drafters: str) -> list[dict[str, Any]]:
    """Rows of the grid, fastest first."""
    from sapwood.bench.recipe_set import split
    from sapwood.cli.bench import bar
    from sapwood.recipes import resolve
    from sapwood.trace.search import grid, search

    own = str(resolve(player.trace.header.spelling).drafter)
    with bar() as tick:
        found = search(player, grid(split(drafters) or [own, "ngram", "suffix"]), tick)
    plain = next(run for run in found.runs if run.recipe == "plain")
    return [row_of(run, plain) for run in found.runs]


def table(trace: "Trace", record: dict[str, Any]) -> None:
    """Print the results."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    header = trace.header
    shown = Table(
        title=f"{header.info.model}, {len(trace.asked)} prompts, recorded with {header.recipe}",
        box=None,
    )
    for name in (
        "recipe",
        "tokens/pass",
        "nodes/pass",
        "waste",
        "draft s",
        "verify s",
        "tokens/s",
        "speedup",
    ):
        shown.add_column(name, justify="left" if name == "recipe" else "right", overflow="fold")
    for row in [*record["rows"], *record["oracle"], *record["search"][:10]]:
        shown.add_row(*cells(row))
    console.print(shown)
    exact = (
        "the recorded recipe replays exactly"
        if record["exact"]
        else "; ".join(record["differences"])
    )
    console.print(
        f"{exact}; times are predicted by the cost curve and measured drafting",
        style="dim",
        highlight=False,
    )
    if record["best"]:
        console.print(
            f"best recipe for this workload: {record['best']}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    if row["skipped"]:
        return [f"{row['recipe']}: {row['skipped']}"]
    name = f"{row['recipe']} (near)" if row["near"] else row["recipe"]
    speedup = "-" if row["speedup"] is None else f"{row['speedup']:.2f}x"
    shares = [
        f"{row['tokens_per_pass']:.2f}",
        f"{row['nodes_per_pass']:.1f}",
        f"{row['waste']:.0%}",
    ]
    times = [
        f"{row['draft_s']:.2f}",
        f"{row['verify_s']:.2f}",
        f"{row['tokens_per_second']:.1f}",
        speedup,
    ]
    return [name, *shares, *times]
