"""What can be trained: one line a kind, nothing imported until it is named."""

import dataclasses
import importlib
import typing
from collections.abc import Sequence
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.part import between
from sapwood.recipe import fit
from sapwood.spelling import Call, read
from sapwood.train.course import Course

COURSES: dict[str, str] = {
    "eagle3": "sapwood.train.eagle3:Eagle3Course",
    "eagle": "sapwood.train.eagle:EagleCourse",
    "medusa": "sapwood.train.medusa:MedusaCourse",
    "hydra": "sapwood.train.hydra:HydraCourse",
    "early-exit": "sapwood.train.early_exit:EarlyExitCourse",
    "parallel": "sapwood.train.parallel:ParallelCourse",
    "recurrent": "sapwood.train.recurrent:RecurrentCourse",
    "draft-model": "sapwood.train.draft_model:DraftModelCourse",
}
PREDICTORS = ("specdec++", "ldlp", "c2t", "ltd", "judge")  # fitted on rounds of a drafter; see predictors.py


def of_predictors(kinds: Sequence[str]) -> bool:
    """True for predictors, False for drafters; refuses what is neither, or both at once."""
    names = [read(kind).name for kind in kinds]
    for name in names:
        if name not in (*COURSES, *PREDICTORS):
            raise SapwoodError(f"{name!r} cannot be trained; known: {', '.join((*COURSES, *PREDICTORS))}")
    small, large = [[name for name in names if name in table] for table in (PREDICTORS, COURSES)]
    if small and large:
        raise SapwoodError(f"{small[0]} is fitted on rounds of a trained drafter; train {large[0]} first, by itself")
    return bool(small)


def course(text: str) -> Course:
    """The course that a spelling such as `eagle3` or `eagle3(unroll=5)` names."""
    call = read(text)
    if call.name not in COURSES:
        raise SapwoodError(f"{call.name!r} is no drafter that can be trained; known: {', '.join(COURSES)}")
    module, _, attribute = COURSES[call.name].partition(":")
    built: Course = filled(getattr(importlib.import_module(module), attribute), call)
    between(0, 1, rate=built.rate, matrix_rate=built.matrix_rate)
    return built


def filled(made: Any, call: Call) -> Any:
    """The dataclass with the options of a spelling; unknown ones and wrong types are errors."""
    hints = typing.get_type_hints(made)
    known = [option.name for option in dataclasses.fields(made)]
    values = {}
    for key, value in call.options.items():
        if key not in known:
            raise SapwoodError(f"{call.name} has no option {key!r} in training; it has: {', '.join(known)}")
        values[key] = fit(value, hints[key], f"{key} of {call.name}")
    return made(**values)
