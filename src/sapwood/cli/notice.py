"""The line in which `auto` says once what it uses: the model's dtype and its trained head."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sapwood.core.part import Part
    from sapwood.drafters.heads.auto_head import AutoHead
    from sapwood.llm import LLM


def notice(llm: "LLM") -> str | None:
    """The line about a model under a recipe that looks for a head; None for other recipes."""
    from sapwood.drafters.heads.auto_head import AutoHead

    parts = [part for drafter in llm.recipe.parts() for part in all_parts(drafter)]
    found = [part for part in parts if type(part) is AutoHead]
    if not found:
        return None
    info = llm.target.info
    runs = f"{info.model} runs in {info.dtype}"
    if info.note:
        runs += f", {info.note}"
    if info.why:
        runs += f", the slow path: {info.why}"
    return f"{runs}; {about_head(llm, found[0])}"


def about_head(llm: "LLM", part: "AutoHead") -> str:
    """The head in use, or how to get one."""
    from sapwood.common import drafter_store
    from sapwood.drafters.heads.eagle3 import Eagle3
    from sapwood.train.budget import training_minutes

    info = llm.target.info
    if isinstance(part.drafter, Eagle3):
        return "drafts come from its trained head"
    if drafter_store.hidden():
        return f"trained heads are hidden by {drafter_store.HIDE}"
    if "hidden" not in info.provides:
        return "no trained head, as this backend gives no hidden states"
    stale = drafter_store.search(Eagle3.trained, info.model, info.weights).stale
    minutes = training_minutes(llm.profile.curve, info)
    train = f"`sapwood train eagle3 --model {info.model} --minutes {minutes}`"
    if stale is not None:
        return f"the head in {stale} is for other weights and not used; {train} makes a new one"
    return f"no trained head for this model; {train} makes one, about {minutes} minutes here"


def all_parts(part: "Part") -> Iterator["Part"]:
    """A part and all parts inside it."""
    yield part
    for inner in part.nested():
        yield from all_parts(inner)
