"""The kinds of drafter that can be trained: one line each, nothing imported until it is named."""

import dataclasses
import importlib
import typing
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.recipe import fit
from sapwood.spelling import read
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


def course(text: str) -> Course:
    """The course that a spelling such as `eagle3` or `eagle3(unroll=5)` names."""
    call = read(text)
    if call.name not in COURSES:
        raise SapwoodError(f"{call.name!r} cannot be trained; known: {', '.join(COURSES)}")
    module, _, attribute = COURSES[call.name].partition(":")
    made: Any = getattr(importlib.import_module(module), attribute)
    hints = typing.get_type_hints(made)
    known = [option.name for option in dataclasses.fields(made)]
    values = {}
    for key, value in call.options.items():
        if key not in known:
            raise SapwoodError(f"{call.name} has no option {key!r} in training; it has: {', '.join(known)}")
        values[key] = fit(value, hints[key], f"{key} of {call.name}")
    built: Course = made(**values)
    return built
