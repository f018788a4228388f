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
    "drafter.llma": "sapwood.drafters.llma:Llma",
    "drafter.anpd": "sapwood.drafters.anpd:Anpd",
    "drafter.n-grammys": "sapwood.drafters.ngrammys:NGrammys",
    "drafter.sam": "sapwood.drafters.sam:Sam",
    "drafter.rest": "sapwood.drafters.rest:Rest",
    "drafter.aded": "sapwood.drafters.aded:Aded",
    "drafter.recycling": "sapwood.drafters.recycling:Recycling",
    "drafter.draft-model": "sapwood.drafters.model:Model",
    "drafter.translated": "sapwood.drafters.translated:TranslatedModel",
    "drafter.universal": "sapwood.drafters.universal:Universal",
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
    "drafter.self-skip": "sapwood.drafters.self_skip:SelfSkip",
    "drafter.quantized-self": "sapwood.drafters.quantized_self:QuantizedSelf",
    "drafter.sparse-kv": "sapwood.drafters.sparse_kv:SparseKv",
    "drafter.merge": "sapwood.drafters.merge:Merge",
    "drafter.rasd": "sapwood.drafters.rasd:Rasd",
    "drafter.gsd": "sapwood.drafters.gsd:Gsd",
    "drafter.hedge": "sapwood.drafters.hedge:Hedge",
    "drafter.jacobi": "sapwood.drafters.jacobi:Jacobi",
    "drafter.lookahead": "sapwood.drafters.lookahead:Lookahead",
    "drafter.forced": "sapwood.drafters.forced:Forced",
    "drafter.prediction": "sapwood.drafters.prediction:Prediction",
    "drafter.phrases": "sapwood.drafters.phrases:Phrases",
    "drafter.cascade": "sapwood.drafters.cascade:Cascade",
    "drafter.cas-spec": "sapwood.drafters.cas_spec:CasSpec",
    "policy.chain": "sapwood.policies.chain:Chain",
    "policy.static": "sapwood.policies.static:Static",
    "policy.beam": "sapwood.policies.beam:Beam",
    "policy.best": "sapwood.policies.best:Best",
    "policy.groups": "sapwood.policies.groups:Groups",
    "policy.sparse": "sapwood.policies.sparse:Sparse",
    "policy.opt-tree": "sapwood.policies.opt_tree:OptTree",
    "policy.dyspec": "sapwood.policies.dyspec:DySpec",
    "policy.sequoia": "sapwood.policies.sequoia:Sequoia",
    "policy.rsd": "sapwood.policies.rsd:Rsd",
    "policy.specexec": "sapwood.policies.specexec:SpecExec",
    "policy.ddd": "sapwood.policies.ddd:Ddd",
    "policy.cast": "sapwood.policies.cast:Cast",
    "policy.dsbd": "sapwood.policies.dsbd:Dsbd",
    "policy.specdec++": "sapwood.policies.specdecpp:SpecDecPp",
    "policy.thompson": "sapwood.policies.thompson:Thompson",
    "policy.tapout": "sapwood.policies.tapout:TapOut",
    "policy.adaedl": "sapwood.policies.adaedl:AdaEdl",
    "policy.svip": "sapwood.policies.svip:Svip",
    "policy.hf-dynamic": "sapwood.policies.hf_dynamic:HfDynamic",
    "policy.cm-asd": "sapwood.policies.cm_asd:CmAsd",
    "policy.adasd-stop": "sapwood.policies.adasd_stop:AdaSdStop",
    "policy.fallback": "sapwood.policies.fallback:Fallback",
    "policy.c2t": "sapwood.policies.c2t:C2t",
    "policy.ltd": "sapwood.policies.ltd:Ltd",
    "policy.propd": "sapwood.policies.propd:Propd",
    "policy.whole": "sapwood.policies.whole:Whole",
    "estimator.raw": "sapwood.estimators.raw:Raw",
    "estimator.binned": "sapwood.estimators.binned:Binned",
    "estimator.logistic": "sapwood.estimators.logistic:Logistic",
    "estimator.isotonic": "sapwood.estimators.isotonic:Isotonic",
    "estimator.classified": "sapwood.estimators.c2t:C2t",
    "estimator.leader": "sapwood.estimators.leader:Leader",
    "verifier.greedy": "sapwood.verifiers.greedy:Greedy",
    "verifier.match": "sapwood.verifiers.match:Match",
    "verifier.naive": "sapwood.verifiers.naive:Naive",
    "verifier.speculative": "sapwood.verifiers.speculative:Speculative",
    "verifier.mss": "sapwood.verifiers.mss:Mss",
    "verifier.rrs": "sapwood.verifiers.rrs:Rrs",
    "verifier.mixed": "sapwood.verifiers.mixed:Mixed",
    "verifier.typical": "sapwood.verifiers.typical:Typical",
    "verifier.threshold": "sapwood.verifiers.threshold:Threshold",
    "verifier.specdec": "sapwood.verifiers.specdec:SpecDec",
    "verifier.bild": "sapwood.verifiers.bild:Bild",
    "verifier.adasd": "sapwood.verifiers.adasd:AdaSd",
    "verifier.consultant": "sapwood.verifiers.consultant:Consultant",
    "verifier.kseq": "sapwood.verifiers.kseq:Kseq",
    "verifier.spechub": "sapwood.verifiers.spechub:SpecHub",
    "verifier.block": "sapwood.verifiers.block:Block",
    "verifier.traversal": "sapwood.verifiers.traversal:Traversal",
    "verifier.traversal-iid": "sapwood.verifiers.traversal:TraversalIid",
    "verifier.optimal": "sapwood.verifiers.optimal:Optimal",
    "verifier.optimal-iid": "sapwood.verifiers.optimal:OptimalIid",
    "verifier.judge": "sapwood.verifiers.judge:Judge",
    "controller.fixed": "sapwood.controllers.fixed:Fixed",
    "controller.heuristic": "sapwood.controllers.heuristic:Heuristic",
    "controller.ema": "sapwood.controllers.ema:Ema",
    "controller.goodput": "sapwood.controllers.goodput:Goodput",
    "controller.smartspec": "sapwood.controllers.smartspec:SmartSpec",
    "controller.posterior": "sapwood.controllers.posterior:Posterior",
    "controller.banditspec": "sapwood.controllers.banditspec:BanditSpec",
    "controller.on-the-fly": "sapwood.controllers.on_the_fly:OnTheFly",
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
