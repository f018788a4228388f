"""The table of methods: one line per part, nothing imported until it is named.

Other packages add lines through the entry-point group `sapwood.methods`, with names such as
`policy.mine`; built-ins win, so an add-on cannot replace a proven part by accident.
"""

import functools
import importlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from sapwood.errors import SapwoodError
from sapwood.part import Part

FAMILIES = ("drafter", "policy", "estimator", "verifier", "controller")
GROUP = "sapwood.methods"

TABLE: dict[str, str] = {
    "drafter.ngram": "sapwood.drafters.ngram:Ngram",
    "drafter.suffix": "sapwood.drafters.suffix:Suffix",
    "drafter.recycling": "sapwood.drafters.recycling:Recycling",
    "drafter.draft-model": "sapwood.drafters.model:Model",
    "drafter.eagle3": "sapwood.drafters.eagle:Eagle",
    "drafter.eagle": "sapwood.drafters.eagle1:Eagle1",
    "drafter.medusa": "sapwood.drafters.medusa:Medusa",
    "drafter.hydra": "sapwood.drafters.hydra:Hydra",
    "drafter.early-exit": "sapwood.drafters.early_exit:EarlyExit",
    "drafter.parallel": "sapwood.drafters.parallel:Parallel",
    "drafter.recurrent": "sapwood.drafters.recurrent:Recurrent",
    "drafter.head": "sapwood.drafters.found:Found",
    "drafter.small": "sapwood.drafters.small:Small",
    "drafter.online": "sapwood.drafters.online:Online",
    "drafter.merge": "sapwood.drafters.merge:Merge",
    "policy.chain": "sapwood.policies.chain:Chain",
    "policy.static": "sapwood.policies.static:Static",
    "policy.beam": "sapwood.policies.beam:Beam",
    "policy.best": "sapwood.policies.best:Best",
    "policy.groups": "sapwood.policies.groups:Groups",
    "policy.sparse": "sapwood.policies.sparse:Sparse",
    "policy.specdec++": "sapwood.policies.specdecpp:SpecDecPp",
    "policy.thompson": "sapwood.policies.thompson:Thompson",
    "policy.c2t": "sapwood.policies.c2t:C2t",
    "policy.ltd": "sapwood.policies.ltd:Ltd",
    "estimator.raw": "sapwood.estimators.raw:Raw",
    "estimator.binned": "sapwood.estimators.binned:Binned",
    "estimator.classified": "sapwood.estimators.c2t:C2t",
    "verifier.greedy": "sapwood.verifiers.greedy:Greedy",
    "verifier.match": "sapwood.verifiers.match:Match",
    "verifier.naive": "sapwood.verifiers.naive:Naive",
    "verifier.speculative": "sapwood.verifiers.speculative:Speculative",
    "verifier.mss": "sapwood.verifiers.mss:Mss",
    "verifier.rrs": "sapwood.verifiers.rrs:Rrs",
    "verifier.mixed": "sapwood.verifiers.mixed:Mixed",
    "verifier.judge": "sapwood.verifiers.judge:Judge",
    "controller.fixed": "sapwood.controllers.fixed:Fixed",
    "controller.heuristic": "sapwood.controllers.heuristic:Heuristic",
    "controller.ema": "sapwood.controllers.ema:Ema",
    "controller.goodput": "sapwood.controllers.goodput:Goodput",
    "controller.ldlp": "sapwood.controllers.ldlp:Ldlp",
}


def names(family: str) -> list[str]:
    """Every known name of a family, built-in first."""
    added = {key for key in addons() if key not in TABLE}
    return [key.partition(".")[2] for key in (*TABLE, *sorted(added)) if key.startswith(f"{family}.")]


def lookup(family: str, name: str) -> type[Part]:
    """The class of a part; an unknown name is an error that lists the known ones."""
    key = f"{family}.{name}"
    if key in TABLE:
        module, _, attribute = TABLE[key].partition(":")
        found = getattr(importlib.import_module(module), attribute)
    elif key in (more := addons()):
        found = more[key].load()
    elif family not in FAMILIES:
        raise SapwoodError(f"unknown family {family!r} of {name!r}; known: {', '.join(FAMILIES)}")
    else:
        raise SapwoodError(f"unknown {family} {name!r}; known: {', '.join(names(family))}")
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise SapwoodError(f"{family} {name!r} names {found!r}, which is not a sapwood.Part")
    found.name = name
    return found


def everything() -> Iterator[tuple[str, str, type[Part]]]:
    """Every part as (family, name, class)."""
    for family in FAMILIES:
        for name in names(family):
            yield family, name, lookup(family, name)


def family_of(name: str) -> str:
    """The family a bare name belongs to."""
    for family in FAMILIES:
        if name in names(family):
            return family
    raise SapwoodError(f"unknown part {name!r}; `sapwood methods` lists every part and recipe")


@functools.cache  # a look at every installed package takes milliseconds
def addons() -> dict[str, EntryPoint]:
    """Parts registered by other packages."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}
