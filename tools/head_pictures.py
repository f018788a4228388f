"""Draw the trees of recipes whose heads do not ship, on a tiny model that they are trained for.

python -m tools.head_pictures                 draw for all pages under docs/families
python -m tools.head_pictures multi-token     draw for these pages
python -m tools.head_pictures --new           draw below marks that have no pictures yet

A page names recipes in a mark, `<!-- head trees: clover, ctc -->`; the pictures go below it, up to
the closing mark. The tiny model has random weights but for its output, which goes on with the next
letter of the alphabet; a head of each kind is trained on its texts for a few seconds, and one
round is drawn, as `tools.pictures` does for the model that ships. A mark
`<!-- module trees: mtp -->` names recipes whose module comes with a checkpoint: a tiny random one
stands for it.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tests.helpers import byte_tokenizer, mtp_checkpoints
from tests.helpers.train_runs import counter
from tools.pictures import DOCS, Round, blocks, filled, play, wanted

from sapwood import LLM, SapwoodError
from sapwood.cli.methods import recipes
from sapwood.train import job
from sapwood.train.job import JobObserver, TrainJob

PROMPT = "abc"
STEPS = 60  # of training
# of kinds that learn from few rows of a text
MORE_STEPS = dict.fromkeys(("mask-rows", "hidden-transfer", "streams", "pard"), 150)
MORE_STEPS |= dict.fromkeys(("draft-model", "distillspec", "skd", "fastdraft"), 150)
MORE_STEPS |= dict.fromkeys(("ppd", "gated-masks", "ctc", "cerberus"), 90)
TOKENS = 4000  # of the texts to train on
# of kinds that need sizes that fit a tiny model
SMALL = "width=32, heads=4, layers=1"
DRAFT_MODELS = ("draft-model", "distillspec", "skd", "fastdraft")
SPELLINGS = {kind: f"{kind}({SMALL})" for kind in DRAFT_MODELS}
TUNED = {"medusa2"}  # kinds that train the target too: what they make is another model
BEFORE = {"pard": "draft-model"}  # a kind that is made from another one's part
ABOUT = (
    "by heads trained for seconds, for a tiny model that goes through the alphabet, greedy; "
    "`python -m tools.head_pictures` draws them again."
)
MODULE_ABOUT = (
    "by the module of a tiny checkpoint of random weights, laid out as Qwen3-Next's, greedy: it "
    "shows the shape, not what a trained one would guess; `python -m tools.head_pictures` draws "
    "them again."
)


def main(names: Sequence[str]) -> int:
    """Train the heads, draw their trees, and fill the pages."""
    drawn = "--new" not in names
    heads, modules = blocks("head trees", drawn=drawn), blocks("module trees", drawn=drawn)
    pages = [DOCS / "families" / f"{name}.md" for name in names if name != "--new"] or sorted(
        (DOCS / "families").glob("*.md")
    )
    named = list(dict.fromkeys(n for page in pages for n in wanted(page.read_text(), heads)))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SAPWOOD_CACHE"] = str(Path(folder) / "cache")
        model = Path(folder) / "alphabet"
        counter().save_pretrained(model)
        byte_tokenizer.save(model)
        tuned = teach(model, named, Path(folder) / "texts")
        llm = LLM(str(model), "plain", device="cpu", dtype="float32")
        assert llm.text is not None
        plain = play(llm.engine, llm.text, PROMPT)
        draw(llm, pages, plain, heads, ABOUT, tuned)
        if any(wanted(page.read_text(), modules) for page in pages):
            llm = with_module(Path(folder) / "module")
            assert llm.text is not None
            draw(llm, pages, play(llm.engine, llm.text, PROMPT), modules, MODULE_ABOUT, {})
    return 0


def draw(
    llm: LLM,
    pages: Sequence[Path],
    plain: Round,
    pattern: re.Pattern[str],
    about: str,
    tuned: Mapping[str, LLM],  # targets of their own, by recipe
) -> None:
    """Fill the marks of one kind with a round of each recipe."""
    assert llm.text is not None
    rounds: dict[str, Round] = {}
    for name in dict.fromkeys(n for page in pages for n in wanted(page.read_text(), pattern)):
        try:
            mine = tuned.get(name, llm).with_recipe(name)
            rounds[name] = play(mine.engine, llm.text, PROMPT)
            sys.stderr.write(f"{name}: {rounds[name].caption(plain)}\n")
        except SapwoodError as error:
            sys.stderr.write(f"{name} is left out: {error}\n")
    for page in pages:
        old = page.read_text()
        page.write_text(filled(old, rounds, plain, llm.text, pattern, about))


def with_module(folder: Path) -> LLM:
    """A tiny random model whose checkpoint has a module for further tokens."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": byte_tokenizer.EOS}
    mtp_checkpoints.write("qwen", folder, vocab_size=byte_tokenizer.SIZE, **special)
    byte_tokenizer.save(folder)
    return LLM(str(folder), "plain", device="cpu", dtype="float32")


def teach(model: Path, named: Sequence[str], data: Path) -> dict[str, LLM]:
    """Train the parts of these recipes for the model; targets that were tuned, by recipe."""
    tuned: dict[str, LLM] = {}
    kinds = {row["name"]: row["training"] for row in recipes()}
    wanted_kinds = [kinds[name] for name in named if kinds[name] != "none"]
    order = [kind for one in wanted_kinds for kind in (BEFORE.get(one, one), one)]
    for kind in dict.fromkeys(order):
        asked = TrainJob(
            (SPELLINGS.get(kind, kind),),
            model=str(model),
            steps=MORE_STEPS.get(kind, STEPS),
            tokens=TOKENS,
            data=data,
            device="cpu",
            threads=1,
        )
        try:
            [found] = job.train(asked, JobObserver(), 0.0)
            sys.stderr.write(f"trained {kind}, loss {found['loss']:.3f}\n")
            if kind in TUNED:
                tuned[kind] = LLM(str(found["out"]), "plain", device="cpu", dtype="float32")
        except SapwoodError as error:
            sys.stderr.write(f"{kind} was not trained: {error}\n")
    return tuned


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
