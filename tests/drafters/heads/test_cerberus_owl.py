"""Cerberus and OWL against slow references, plain decoding, the exact law, and their training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.heads import head_base
from sapwood.drafters.heads.cerberus import Cerberus
from sapwood.drafters.heads.owl import Owl
from sapwood.drafters.propose import propose
from sapwood.errors import SapwoodError
from sapwood.heads.cerberus import CerberusConfig, CerberusHeads
from sapwood.heads.owl import OwlConfig, OwlHead
from sapwood.policies.beam import Beam
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.train.cerberus import CerberusObjective
from sapwood.train.owl import OwlObjective
from sapwood.train.recurrent import unroll
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import rounds_until
from tests.helpers.head_checks import (
    SAMPLINGS,
    bound,
    check_files,
    check_learns,
    check_text,
    law_off,
    randomised,
)
from tests.helpers.head_training import batch_of, random_head, teacher
from tests.helpers.state_head_training import normed, silu

torch.set_num_threads(1)
KINDS: dict[str, Any] = {"cerberus": Cerberus, "owl": Owl}
FAST: dict[str, Any] = {"vocabulary": 48, "rate": 0.01, "matrix_rate": 0.02}
OBJECTIVES: dict[str, Any] = {
    "cerberus": CerberusObjective(heads=3, **FAST),
    "owl": OwlObjective(unroll=3, **FAST),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def make_head(kind: str, vocab: int = 61, draft_vocab: int = 40, layer: int = 2) -> Any:
    head: Any = (
        CerberusHeads(CerberusConfig(32, vocab, 3, 2, draft_vocab))
        if kind == "cerberus"
        else OwlHead(OwlConfig(32, vocab, draft_vocab, layer))
    )
    return randomised(head, 0.3, vocab, draft_vocab)


def drafter_of(kind: str, head: Any, **options: Any) -> Any:
    """A drafter whose gate, if it has one, is open."""
    return KINDS[kind](head=head, **options, **({"gate": 99.0} if kind == "cerberus" else {}))


def slow_cerberus(head: Any, final: Tensor, depth: int) -> Tensor:
    """The state of one head, by recursion over blocks and heads."""

    def after(level: int, number: int) -> Tensor:
        if level == 0 or number < 0:
            return final
        block = head.levels[level - 1][number].linear
        x = after(level - 1, number)
        joined = torch.cat((x, after(level - 1, number - 1)))
        return x + silu(block.weight @ joined + block.bias)

    return after(len(head.levels), depth)


def slow_owl(head: Any, final: Tensor, embeds: list[Tensor]) -> Tensor:
    """The LSTM by the textbook's equations, a token at a time; normed for the output head."""
    hidden = normed(head.begin_norm, final)
    cell = torch.zeros_like(hidden)
    width = len(hidden)
    for embed in embeds:
        joined = torch.cat((hidden, normed(head.token_norm, embed)))
        z = head.gates.weight @ joined + head.gates.bias
        enter, keep, fresh, leave = (z[at * width : (at + 1) * width] for at in range(4))
        cell = cell / (1 + (-keep).exp()) + fresh.tanh() / (1 + (-enter).exp())
        hidden = cell.tanh() / (1 + (-leave).exp())
    return normed(head.norm, head.leave.weight @ hidden)


@torch.no_grad()
def slow_probs(kind: str, head: Any, text: list[int], path: list[int]) -> Tensor:
    """Distribution after a text, its root last, and a drafted path."""
    model = tiny_models.backend("llama").model
    table = model.get_input_embeddings().weight
    final = model.base_model(torch.tensor([text[:-1]])).last_hidden_state[0, -1]
    state = (
        slow_cerberus(head, final, len(path))
        if kind == "cerberus"
        else slow_owl(head, final, [table[token] for token in (text[-1], *path)])
    )
    found: Tensor = (model.get_output_embeddings().weight[head.vocabulary] @ state).softmax(0)
    return found


@each_kind
def test_children_are_the_best_tokens_of_the_slow_reference(kind: str) -> None:
    head = make_head(kind)
    recipe = Recipe(
        drafter_of(kind, head), Static(shape=[3, 2, 2]), Match(), Fixed(nodes=30, depth=3, width=4)
    )
    text = [5, 6, 7, 5]
    for outcome in rounds_until(tiny_models.backend("llama"), recipe, text, 8, Sampling()):
        tree = outcome.grown
        assert tree.height == 3
        for node in np.flatnonzero(tree.expanded).tolist():
            probs = slow_probs(kind, head, text, tree.spell(node)[1:])
            children = tree.children(node)
            assert tree.probs[children] == pytest.approx(
                probs.topk(len(children)).values.numpy(), abs=1e-4
            )
        text = text + outcome.tokens


@each_kind
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", [Chain(), Beam(beam=3)], ids=lambda one: type(one).__name__)
def test_the_text_is_plain_decodings(kind: str, policy: Any, sampling: str) -> None:
    check_text(drafter_of(kind, make_head(kind)), policy, SAMPLINGS[sampling])


LAWS: list[tuple[Draw, Any, Any, int]] = [
    (Draw.IID, Chain(), Speculative(), 1),
    (Draw.SWOR, Static(shape=[2]), Rrs(), 1),
]


@each_kind
@pytest.mark.parametrize(("draws", "policy", "verifier", "rounds"), LAWS, ids=str)
def test_the_law_is_the_targets(
    kind: str, draws: Draw, policy: Any, verifier: Any, rounds: int
) -> None:
    drafter = drafter_of(kind, make_head(kind, 3, 3), draws=draws)
    assert law_off(drafter, policy, verifier, rounds) <= 1e-12


@each_kind
def test_a_mutant_that_states_another_law_than_it_draws_from_is_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(tree: Any, node: int, *rest: Any) -> None:
        propose(tree, node, *rest)
        for name, probs in list(tree.proposals.items()):
            if name[0] == node:
                tree.proposals[name] = np.roll(probs, 1)

    monkeypatch.setattr(head_base, "propose", wrong)
    drafter = drafter_of(kind, make_head(kind, 3, 3), draws=Draw.IID)
    assert law_off(drafter, Chain(), Speculative(), 1) > 1e-3


def test_behind_a_closed_gate_the_law_is_the_targets_too() -> None:
    drafter = Cerberus(head=make_head("cerberus", 3, 3), draws=Draw.IID, gate=1.0)
    assert law_off(drafter, Chain(), Speculative(), 1) <= 1e-12


def test_the_gate_is_the_entropy_of_the_targets_last_distribution() -> None:
    head = make_head("cerberus")
    target = tiny_models.backend("llama")
    model: Any = target.model
    with torch.no_grad():
        final = model.base_model(torch.tensor([[5, 6, 7]])).last_hidden_state[0, -1]
        probs = (model.get_output_embeddings().weight[head.vocabulary] @ final).softmax(0)
    entropy = float(-(probs * probs.log()).sum())
    sizes = []
    for gate in (entropy - 1e-3, entropy + 1e-3):
        recipe = Recipe(Cerberus(head=head, gate=gate), Chain(), Match(), Fixed(nodes=3, depth=3))
        sizes.append(len(rounds_until(target, recipe, [5, 6, 7, 5], 1, Sampling())[0].grown))
    assert sizes == [1, 4]
    with pytest.raises(SapwoodError, match="gate=-1"):
        Cerberus(gate=-1.0)


@each_kind
def test_heads_survive_their_files(kind: str, tmp_path: Path) -> None:
    check_files(KINDS[kind], make_head(kind), tmp_path)


@each_kind
def test_a_head_for_another_target_is_refused(kind: str) -> None:
    with pytest.raises(SapwoodError, match="50 tokens"):
        bound(KINDS[kind](head=make_head(kind, vocab=50)))
    if kind == "owl":
        with pytest.raises(SapwoodError, match="this owl head reads the state after 3 layers"):
            bound(Owl(head=make_head(kind, layer=3)))


# ---------------------------------------------------------------------------------------- training
@each_kind
def test_the_loss_is_what_loops_over_places_give(kind: str) -> None:
    objective = OBJECTIVES[kind]
    head = random_head(objective, teacher())
    batch = batch_of(objective, teacher(), [0, 3])
    words = head.vocabulary.tolist()
    rows = teacher().head[head.vocabulary]
    lost: list[list[Tensor]] = [[], [], []]
    for text in range(2):
        for place in range(int(batch.answers[text]), int(batch.lengths[text])):
            if int(batch.tokens[text, place]) not in words:
                continue
            probs = (rows @ batch.final[text, place - 1]).softmax(0)
            aim = probs * (1 - objective.hard)
            aim[probs.argmax()] += objective.hard
            for step in range(3):
                row = place - 2 - step
                if row < 0:
                    continue
                final = batch.final[text, row]
                read = [
                    teacher().embedding[batch.tokens[text, row + 1 + at]] for at in range(step + 1)
                ]
                state = (
                    slow_cerberus(head, final, step)
                    if kind == "cerberus"
                    else slow_owl(head, final, read)
                )
                lost[step].append(-(aim * (rows @ state).log_softmax(0)).sum())
    weights = [objective.decay**step for step in range(3)]
    means = [torch.stack(one).mean() * weight for one, weight in zip(lost, weights, strict=True)]
    lesson = objective.loss(head, teacher(), batch)
    wanted = (torch.stack(means).sum() / sum(weights)).item()
    assert lesson.loss.item() == pytest.approx(wanted, rel=1e-6)


@each_kind
def test_the_loss_falls(kind: str, tmp_path: Path) -> None:
    check_learns(OBJECTIVES[kind], tmp_path, least=0.02)


def test_the_lstm_reads_no_text_but_its_last_state() -> None:
    head = random_head(OBJECTIVES["owl"], teacher())
    batch = batch_of(OBJECTIVES["owl"], teacher(), [0])
    whole = unroll(head, teacher().embedding, batch, 2)
    batch.final[:, :4] += 1.0
    changed = unroll(head, teacher().embedding, batch, 2)
    for one, other in zip(whole, changed, strict=True):
        assert torch.equal(one[:, 4:], other[:, 4:])
        assert not torch.equal(one[:, :4], other[:, :4])
