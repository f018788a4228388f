"""`sapwood export`: a trained head for other engines."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapwood.cli import options as o
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from sapwood.heads.target_info import TargetInfo

DIALECT = "eagle (EAGLE, SGLang, SpecForge) or speculators (vLLM)."
PUBLISHED = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}  # names on the Hub

Source = Annotated[
    Path, typer.Argument(help="The folder of an EAGLE-3 head, of sapwood or another trainer.")
]
Dialect = Annotated[str, typer.Option("--dialect", help=DIALECT)]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.")]


def command(
    source: Source,
    out: Out,
    dialect: Dialect = "eagle",
    model: o.Name = "smollm2",
    as_json: o.AsJson = False,
) -> None:
    """Write a trained head in the format of another engine, and check it."""
    if out.resolve() == source.resolve():
        raise SapwoodError(f"--out {out} is the head itself; name another folder")
    facts = facts_of(model)
    found = convert(source, out, dialect, PUBLISHED.get(model, model), facts)
    if as_json:
        print(
            json.dumps(
                {
                    "source": str(source),
                    "out": str(out),
                    "dialect": dialect,
                    "model": model,
                    **found,
                }
            )
        )
    else:
        print(
            f"{found['tensors']} tensors, {found['bytes'] / 1e6:.1f} MB in {out}, "
            f"dialect {dialect}: checked"
        )


def facts_of(model: str) -> "TargetInfo":
    """Sizes of the target, from its config alone."""
    from sapwood.backends.torch.resolve_model import check, find_folder
    from sapwood.cli import render
    from sapwood.heads.folder import read_config
    from sapwood.heads.target_info import TargetInfo

    check(model, None, None)
    with render.progress() as progress:
        return TargetInfo.of(read_config(find_folder(model, progress)), model)


def convert(
    source: Path, out: Path, dialect: str, verifier: str, facts: "TargetInfo"
) -> dict[str, int]:
    """Read, write and check a head; return the size of the output."""
    from sapwood.heads.eagle3_formats import about, read, write
    from sapwood.heads.eagle3_validator import check
    from sapwood.heads.folder import read_tensors, weight_files

    head, embedding = read(source, facts)
    write(head, out, dialect, verifier, facts, embedding, about(source))
    faults = check(out)
    if faults:
        raise SapwoodError(f"the head in {out} may not load elsewhere: {faults[0]}; check {source}")
    [weights] = weight_files(out)
    return {"tensors": len(read_tensors(out)), "bytes": weights.stat().st_size}
