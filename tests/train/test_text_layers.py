"""Training of heads with layers over the text: it learns, and only answers are labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sapwood.errors import SapwoodError
from sapwood.train.amphista import AmphistaObjective
from sapwood.train.clover import CloverObjective
from sapwood.train.gumiho import GumihoObjective
from tests.helpers.head_training import batch_of, corpus, random_head, short_loop, teacher
from tests.helpers.text_heads import STEPS

VOCABULARY = 48
OBJECTIVES: list[Any] = [
    CloverObjective(heads=3, inner=24, vocabulary=VOCABULARY),
    AmphistaObjective(heads=3, inner=24, vocabulary=VOCABULARY),
    GumihoObjective(heads=4, inner=24, narrow=16, vocabulary=VOCABULARY),
]
each_course = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)


@each_course
def test_training_lowers_the_loss_and_raises_the_agreement(objective: Any, tmp_path: Path) -> None:
    fast = replace(objective, rate=1e-2, matrix_rate=2e-2)
    head, notes = short_loop(fast, corpus(), tmp_path).run()
    first, last = notes.curve[0], notes.curve[-1]
    assert last.loss < first.loss * 0.9
    assert sum(last.agreement) > sum(first.agreement)
    assert not {"embedding", "output"} & set(head.state_dict())


@each_course
def test_every_weight_has_a_slope_and_the_slope_is_right(objective: Any) -> None:
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [0, 3], longest=17)
    loss = objective.loss(head, guide, batch).loss
    weights = list(head.parameters())
    slopes = torch.autograd.grad(loss, weights)
    torch.manual_seed(5)
    ways = [torch.randn_like(weight) for weight in weights]
    for weight, slope in zip(weights, slopes, strict=True):
        assert float(slope.abs().max()) > 0, weight.shape
    found = []
    with torch.no_grad():
        for side in (1e-6, -1e-6):
            for weight, way in zip(weights, ways, strict=True):
                weight += side * way
            found.append(objective.loss(head, guide, batch).loss)
            for weight, way in zip(weights, ways, strict=True):
                weight -= side * way
    wanted = sum((slope * way).sum() for slope, way in zip(slopes, ways, strict=True))
    assert float(found[0] - found[1]) / 2e-6 == pytest.approx(float(wanted), rel=1e-3)


@each_course
def test_prompts_padding_and_later_tokens_are_no_labels(objective: Any) -> None:
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [0, 3, 9])
    before = objective.loss(head, guide, batch)
    for text, length in enumerate(batch.lengths.tolist()):
        batch.tokens[text, length:] = 7
        batch.final[text, length - 1 :] += 1.0
    after = objective.loss(head, guide, batch)
    assert torch.equal(before.loss, after.loss)
    batch.lengths.copy_(batch.answers)
    assert objective.loss(head, guide, batch).loss.item() == 0.0


@each_course
def test_a_row_reads_no_token_beyond_those_drafted(objective: Any) -> None:
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [1], longest=12)
    steps = STEPS[objective.kind]
    before = [step[0, 3].clone() for step in steps(head, batch)]
    # row 3 of step s may read tokens up to 4 + s, and states up to 3
    batch.final[:, 4:] += 1.0
    for step, mine in enumerate(before):
        batch.tokens[:, 5 + step :] = 7
        assert torch.equal(steps(head, batch)[step][0, 3], mine)
        batch = replace(batch, tokens=batch_of(objective, guide, [1], longest=12).tokens)


@each_course
def test_sizes_that_make_no_head_are_refused(objective: Any) -> None:
    for changes in ({"heads": 0}, {"vocabulary": 0}, {"hard": 1.5}):
        with pytest.raises(SapwoodError):
            replace(objective, **changes)
