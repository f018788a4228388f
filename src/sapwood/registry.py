"""Registry of parts: one line each, nothing imported until it is named.

Other packages add lines through the entry-point group `sapwood.methods`, with names such as
`policy.mine`; built-in parts take precedence, so that an add-on cannot replace a proven part.
"""

import functools
import importlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from sapwood.common.suggest import suggestion
from sapwood.core.part import Part
from sapwood.errors import SapwoodError

FAMILIES = ("drafter", "policy", "estimator", "verifier", "controller")
GROUP = "sapwood.methods"

TABLE: dict[str, str] = {
    "drafter.ngram": "sapwood.drafters.lookup.ngram:Ngram",
    "drafter.suffix": "sapwood.drafters.lookup.suffix:Suffix",
    "drafter.suffix-decoding": "sapwood.drafters.lookup.suffix_decoding:SuffixDecoding",
    "drafter.llma": "sapwood.drafters.lookup.llma:Llma",
    "drafter.anpd": "sapwood.drafters.lookup.anpd:Anpd",
    "drafter.n-grammys": "sapwood.drafters.lookup.n_grammys:NGrammys",
    "drafter.sam": "sapwood.drafters.lookup.sam:Sam",
    "drafter.rest": "sapwood.drafters.lookup.rest:Rest",
    "drafter.aded": "sapwood.drafters.lookup.aded:Aded",
    "drafter.recycling": "sapwood.drafters.lookup.recycling:Recycling",
    "drafter.stand": "sapwood.drafters.lookup.stand:Stand",
    "drafter.draft-model": "sapwood.drafters.compose.draft_model:DraftModel",
    "drafter.pard": "sapwood.drafters.compose.pard:Pard",
    "drafter.translated": "sapwood.drafters.compose.translated:Translated",
    "drafter.universal": "sapwood.drafters.compose.universal:Universal",
    "drafter.eagle3": "sapwood.drafters.heads.eagle3:Eagle3",
    "drafter.eagle": "sapwood.drafters.heads.eagle:Eagle",
    "drafter.medusa": "sapwood.drafters.heads.medusa:Medusa",
    "drafter.medusa2": "sapwood.drafters.heads.medusa2:Medusa2",
    "drafter.hydra": "sapwood.drafters.heads.hydra:Hydra",
    "drafter.clover": "sapwood.drafters.heads.clover:Clover",
    "drafter.amphista": "sapwood.drafters.heads.amphista:Amphista",
    "drafter.hidden-transfer": "sapwood.drafters.heads.hidden_transfer:HiddenTransfer",
    "drafter.gumiho": "sapwood.drafters.heads.gumiho:Gumiho",
    "drafter.ctc": "sapwood.drafters.heads.ctc:Ctc",
    "drafter.early-exit": "sapwood.drafters.heads.early_exit:EarlyExit",
    "drafter.parallel": "sapwood.drafters.heads.parallel:Parallel",
    "drafter.recurrent": "sapwood.drafters.heads.recurrent:Recurrent",
    "drafter.falcon": "sapwood.drafters.heads.falcon:Falcon",
    "drafter.cerberus": "sapwood.drafters.heads.cerberus:Cerberus",
    "drafter.owl": "sapwood.drafters.heads.owl:Owl",
    "drafter.moa": "sapwood.drafters.heads.moa:Moa",
    "drafter.glide": "sapwood.drafters.heads.glide:Glide",
    "drafter.mask-rows": "sapwood.drafters.heads.mask_rows:MaskRows",
    "drafter.ppd": "sapwood.drafters.heads.ppd:Ppd",
    "drafter.gated-masks": "sapwood.drafters.heads.gated_masks:GatedMasks",
    "drafter.streams": "sapwood.drafters.heads.streams:Streams",
    "drafter.mtp": "sapwood.drafters.heads.mtp:Mtp",
    "drafter.auto-head": "sapwood.drafters.heads.auto_head:AutoHead",
    "drafter.auto-draft-model": "sapwood.drafters.compose.auto_draft_model:AutoDraftModel",
    "drafter.auto-boosted-model": "sapwood.drafters.compose.auto_boosted_model:AutoBoostedModel",
    "drafter.online": "sapwood.drafters.heads.online:Online",
    "drafter.self-skip": "sapwood.drafters.self.self_skip:SelfSkip",
    "drafter.draft-on-the-fly": "sapwood.drafters.self.draft_on_the_fly:DraftOnTheFly",
    "drafter.layer-exit": "sapwood.drafters.self.layer_exit:LayerExit",
    "drafter.dvi": "sapwood.drafters.self.dvi:Dvi",
    "drafter.quantized-self": "sapwood.drafters.self.quantized_self:QuantizedSelf",
    "drafter.sparse-kv": "sapwood.drafters.self.sparse_kv:SparseKv",
    "drafter.merge": "sapwood.drafters.compose.merge:Merge",
    "drafter.rasd": "sapwood.drafters.compose.rasd:Rasd",
    "drafter.respec": "sapwood.drafters.compose.respec:Respec",
    "drafter.gsd": "sapwood.drafters.compose.gsd:Gsd",
    "drafter.hedge": "sapwood.drafters.compose.hedge:Hedge",
    "drafter.minions": "sapwood.drafters.compose.minions:Minions",
    "drafter.spin": "sapwood.drafters.compose.spin:Spin",
    "drafter.jacobi": "sapwood.drafters.lookup.jacobi:Jacobi",
    "drafter.lookahead": "sapwood.drafters.lookup.lookahead:Lookahead",
    "drafter.forced": "sapwood.drafters.lookup.forced:Forced",
    "drafter.prediction": "sapwood.drafters.lookup.prediction:Prediction",
    "drafter.phrases": "sapwood.drafters.lookup.phrases:Phrases",
    "drafter.cascade": "sapwood.drafters.compose.cascade:Cascade",
    "drafter.remote": "sapwood.drafters.compose.remote:Remote",
    "drafter.cas-spec": "sapwood.drafters.compose.cas_spec:CasSpec",
    "policy.chain": "sapwood.policies.chain:Chain",
    "policy.pearl": "sapwood.policies.pearl:Pearl",
    "policy.amusd": "sapwood.policies.amusd:Amusd",
    "policy.pipeinfer": "sapwood.policies.pipeinfer:PipeInfer",
    "policy.pipedec": "sapwood.policies.pipedec:PipeDec",
    "policy.ppsd": "sapwood.policies.ppsd:Ppsd",
    "policy.predictive": "sapwood.policies.predictive:Predictive",
    "policy.specbranch": "sapwood.policies.specbranch:SpecBranch",
    "policy.static": "sapwood.policies.static:Static",
    "policy.beam": "sapwood.policies.beam:Beam",
    "policy.best": "sapwood.policies.best:Best",
    "policy.groups": "sapwood.policies.groups:Groups",
    "policy.rank-paths": "sapwood.policies.rank_paths:RankPaths",
    "policy.prompt-tree": "sapwood.policies.prompt_tree:PromptTree",
    "policy.beam-path": "sapwood.policies.beam_path:BeamPath",
    "policy.causal-path": "sapwood.policies.causal_path:CausalPath",
    "policy.opt-tree": "sapwood.policies.opt_tree:OptTree",
    "policy.dyspec": "sapwood.policies.dyspec:DySpec",
    "policy.sequoia": "sapwood.policies.sequoia:Sequoia",
    "policy.rsd": "sapwood.policies.rsd:Rsd",
    "policy.specexec": "sapwood.policies.specexec:SpecExec",
    "policy.ddd": "sapwood.policies.ddd:Ddd",
    "policy.radar": "sapwood.policies.radar:Radar",
    "policy.cast": "sapwood.policies.cast:Cast",
    "policy.dsbd": "sapwood.policies.dsbd:Dsbd",
    "policy.specdec++": "sapwood.policies.specdecpp:SpecDecPp",
    "policy.swift": "sapwood.policies.swift:Swift",
    "policy.cape": "sapwood.policies.cape:Cape",
    "policy.thompson": "sapwood.policies.thompson:Thompson",
    "policy.tapout": "sapwood.policies.tapout:TapOut",
    "policy.tapout-token": "sapwood.policies.tapout_token:TapOutToken",
    "policy.adaedl": "sapwood.policies.adaedl:AdaEdl",
    "policy.svip": "sapwood.policies.svip:Svip",
    "policy.draft-verify": "sapwood.policies.draft_verify:DraftVerify",
    "policy.svip-difference": "sapwood.policies.svip_difference:SvipDifference",
    "policy.logit-margin": "sapwood.policies.logit_margin:LogitMargin",
    "policy.hf-dynamic": "sapwood.policies.hf_dynamic:HfDynamic",
    "policy.cm-asd": "sapwood.policies.cm_asd:CmAsd",
    "policy.adasd-stop": "sapwood.policies.adasd_stop:AdaSdStop",
    "policy.max-confidence": "sapwood.policies.max_confidence:MaxConfidence",
    "policy.fallback": "sapwood.policies.fallback:Fallback",
    "policy.c2t": "sapwood.policies.c2t:C2t",
    "policy.ltd": "sapwood.policies.ltd:Ltd",
    "policy.propd": "sapwood.policies.propd:Propd",
    "policy.keep-all": "sapwood.policies.keep_all:KeepAll",
    "estimator.raw": "sapwood.estimators.raw:Raw",
    "estimator.binned": "sapwood.estimators.binned:Binned",
    "estimator.logistic": "sapwood.estimators.logistic:Logistic",
    "estimator.isotonic": "sapwood.estimators.isotonic:Isotonic",
    "estimator.classified": "sapwood.estimators.classified:Classified",
    "estimator.leader": "sapwood.estimators.leader:Leader",
    "estimator.ranked": "sapwood.estimators.ranked:Ranked",
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
    "verifier.traversal-iid": "sapwood.verifiers.traversal_iid:TraversalIid",
    "verifier.optimal": "sapwood.verifiers.optimal:Optimal",
    "verifier.optimal-iid": "sapwood.verifiers.optimal_iid:OptimalIid",
    "verifier.khisti": "sapwood.verifiers.khisti:Khisti",
    "verifier.cascades": "sapwood.verifiers.cascades:Cascades",
    "verifier.mtad": "sapwood.verifiers.mtad:Mtad",
    "verifier.judge": "sapwood.verifiers.judge:Judge",
    "controller.fixed": "sapwood.controllers.fixed:Fixed",
    "controller.heuristic": "sapwood.controllers.heuristic:Heuristic",
    "controller.ema": "sapwood.controllers.ema:Ema",
    "controller.goodput": "sapwood.controllers.goodput:Goodput",
    "controller.smartspec": "sapwood.controllers.smartspec:SmartSpec",
    "controller.specserve": "sapwood.controllers.specserve:SpecServe",
    "controller.posterior": "sapwood.controllers.posterior:Posterior",
    "controller.banditspec": "sapwood.controllers.banditspec:BanditSpec",
    "controller.on-the-fly": "sapwood.controllers.on_the_fly:OnTheFly",
    "controller.adaptive-length": "sapwood.controllers.adaptive_length:AdaptiveLength",
    "controller.ldlp": "sapwood.controllers.ldlp:Ldlp",
}


def names(family: str) -> list[str]:
    """Every registered name of a family, built-in ones first."""
    added = {key for key in addons() if key not in TABLE}
    return [
        key.partition(".")[2] for key in (*TABLE, *sorted(added)) if key.startswith(f"{family}.")
    ]


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
        known = names(family)
        end = suggestion(name, known, f"known: {', '.join(known)}")
        raise SapwoodError(f"unknown {family} {name!r}; {end}")
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise SapwoodError(f"{family} {name!r} names {found!r}, which is not a sapwood.Part")
    found.name = name
    return found


def name_of(part: object) -> str:
    """The registered name of a part, also of one made by hand; else its class's name."""
    kind = type(part)
    home = f"{kind.__module__}:{kind.__qualname__}"
    return next(
        (key.partition(".")[2] for key, place in TABLE.items() if place == home),
        kind.__name__.lower(),
    )


def everything() -> Iterator[tuple[str, str, type[Part]]]:
    """Every part as (family, name, class)."""
    for family in FAMILIES:
        for name in names(family):
            yield family, name, lookup(family, name)


def family_of(name: str) -> str:
    """The family of a name."""
    for family in FAMILIES:
        if name in names(family):
            return family
    every = [known for family in FAMILIES for known in names(family)]
    end = suggestion(name, every, "`sapwood methods` lists every part and recipe")
    if "+" in name.rstrip("+"):
        end = "put spaces around the + between two parts"
    raise SapwoodError(f"unknown part {name!r}; {end}")


@functools.cache  # reading the metadata of all packages takes milliseconds
def addons() -> dict[str, EntryPoint]:
    """Parts registered by other packages."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}
