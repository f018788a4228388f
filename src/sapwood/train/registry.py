"""The kinds that can be trained: one line each, imported when named."""

import dataclasses
import importlib
import typing
from collections.abc import Sequence
from typing import Any

from sapwood.core.part import between
from sapwood.errors import SapwoodError
from sapwood.recipe import convert
from sapwood.spec_parser import PartSpec, read
from sapwood.train.objective import Objective

OBJECTIVES: dict[str, str] = {
    "eagle3": "sapwood.train.eagle3:Eagle3Objective",
    "eagle": "sapwood.train.eagle:EagleObjective",
    "medusa": "sapwood.train.medusa:MedusaObjective",
    "hydra": "sapwood.train.hydra:HydraObjective",
    "clover": "sapwood.train.clover:CloverObjective",
    "amphista": "sapwood.train.amphista:AmphistaObjective",
    "hidden-transfer": "sapwood.train.hidden_transfer:HiddenTransferObjective",
    "gumiho": "sapwood.train.gumiho:GumihoObjective",
    "ctc": "sapwood.train.ctc:CtcObjective",
    "early-exit": "sapwood.train.early_exit:EarlyExitObjective",
    "parallel": "sapwood.train.parallel:ParallelObjective",
    "recurrent": "sapwood.train.recurrent:RecurrentObjective",
    "falcon": "sapwood.train.falcon:FalconObjective",
    "cerberus": "sapwood.train.cerberus:CerberusObjective",
    "owl": "sapwood.train.owl:OwlObjective",
    "moa": "sapwood.train.moa:MoaObjective",
    "glide": "sapwood.train.glide:GlideObjective",
    "mask-rows": "sapwood.train.mask_rows:MaskRowsObjective",
    "medusa2": "sapwood.train.medusa2:Medusa2Objective",
    "cllm": "sapwood.train.cllm:CllmObjective",
    "draft-model": "sapwood.train.draft_model:DraftModelObjective",
    "boosted-draft-model": "sapwood.train.draft_model:BoostedDraftModelObjective",
    "gated-masks": "sapwood.train.gated_masks:GatedMasksObjective",
    "streams": "sapwood.train.streams:StreamsObjective",
    "ppd": "sapwood.train.ppd:PpdObjective",
    "pard": "sapwood.train.pard:PardObjective",
    "distillspec": "sapwood.train.distillspec:DistillSpecObjective",
    "skd": "sapwood.train.skd:SkdObjective",
    "fastdraft": "sapwood.train.fastdraft:FastDraftObjective",
}
# fitted on rounds of a drafter; see predictors.py
PREDICTORS = ("specdec++", "ldlp", "c2t", "ltd", "judge")


def of_predictors(kinds: Sequence[str]) -> bool:
    """True for predictors, False for drafters; raises for other names, or both at once."""
    names = [read(kind).name for kind in kinds]
    for name in names:
        if name not in (*OBJECTIVES, *PREDICTORS):
            raise SapwoodError(
                f"{name!r} cannot be trained; known: {', '.join((*OBJECTIVES, *PREDICTORS))}"
            )
    small, large = [[name for name in names if name in table] for table in (PREDICTORS, OBJECTIVES)]
    if small and large:
        raise SapwoodError(
            f"{small[0]} is fitted on rounds of a trained drafter; "
            f"train {large[0]} first, by itself"
        )
    return bool(small)


def objective(text: str) -> Objective:
    """The objective of a spelling such as `eagle3` or `eagle3(unroll=5)`."""
    call = read(text)
    if call.name not in OBJECTIVES:
        raise SapwoodError(
            f"{call.name!r} is no drafter that can be trained; known: {', '.join(OBJECTIVES)}"
        )
    module, _, attribute = OBJECTIVES[call.name].partition(":")
    built: Objective = filled(getattr(importlib.import_module(module), attribute), call)
    between(0, 1, rate=built.rate, matrix_rate=built.matrix_rate)
    return built


def filled(made: Any, call: PartSpec) -> Any:
    """The dataclass with the options of a spelling; unknown ones and wrong types are errors."""
    hints = typing.get_type_hints(made)
    known = [option.name for option in dataclasses.fields(made)]
    values = {}
    for key, value in call.options.items():
        if key not in known:
            raise SapwoodError(
                f"{call.name} has no option {key!r} in training; it has: {', '.join(known)}"
            )
        values[key] = convert(value, hints[key], f"{key} of {call.name}")
    return made(**values)
