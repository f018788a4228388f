"""Heads that use the target's tables: draft vocabularies, what is borrowed, and for whom it fits."""

import pytest
import torch

from sapwood.errors import SapwoodError
from sapwood.heads.hydra import HydraConfig, HydraHeads
from sapwood.heads.medusa import MedusaConfig, MedusaHeads
from sapwood.heads.recurrent import RecurrentConfig, RecurrentHead

WIDTH, VOCAB = 6, 11
TOKENS = torch.tensor([1, 4, 5, 9])


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


EMBEDDING, OUTPUT = noise(VOCAB, WIDTH), noise(VOCAB, WIDTH, seed=1)


def narrow() -> MedusaHeads:
    head = MedusaHeads(MedusaConfig(WIDTH, VOCAB, heads=2, draft_vocab=len(TOKENS)))
    head.use_vocabulary(TOKENS)
    return head


def test_a_draft_vocabulary_names_the_targets_tokens() -> None:
    head = narrow()
    assert head.vocabulary.tolist() == TOKENS.tolist()
    assert head.t2d.nonzero().flatten().tolist() == TOKENS.tolist()
    assert head.t2d.shape == (VOCAB,)


def test_without_a_draft_vocabulary_every_token_can_be_proposed() -> None:
    head = MedusaHeads(MedusaConfig(WIDTH, VOCAB, heads=2))
    assert head.vocabulary.tolist() == list(range(VOCAB))
    assert head.t2d.all()
    assert "d2t" not in head.state_dict()


def test_the_targets_tables_are_borrowed_and_not_saved() -> None:
    head = MedusaHeads(MedusaConfig(WIDTH, VOCAB, heads=2))
    head.attach(EMBEDDING, OUTPUT)
    assert head.embedding.data_ptr() == EMBEDDING.data_ptr()
    assert head.output.data_ptr() == OUTPUT.data_ptr()
    assert not {"embedding", "output"} & set(head.state_dict())


def test_a_narrow_head_speaks_by_its_own_rows() -> None:
    head = narrow()
    head.attach(EMBEDDING, OUTPUT)
    states = noise(3, WIDTH, seed=2)
    assert torch.allclose(head.output_logits(states), (states @ OUTPUT.T)[:, TOKENS], atol=1e-5)
    assert torch.equal(head.embed(torch.tensor([7])), EMBEDDING[[7]])


def test_embeddings_come_in_the_heads_number_format() -> None:
    head = narrow().bfloat16()
    head.attach(EMBEDDING, OUTPUT)
    assert head.embed(torch.tensor([7])).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("embedding", "output"),
    [
        (noise(VOCAB + 1, WIDTH), OUTPUT),
        (EMBEDDING, noise(VOCAB, WIDTH - 1)),
    ],
)
def test_tables_of_another_target_are_refused(
    embedding: torch.Tensor, output: torch.Tensor
) -> None:
    with pytest.raises(SapwoodError, match="is for a target of 11 tokens and width 6"):
        narrow().attach(embedding, output)


@pytest.mark.parametrize("tokens", [[0, 1, 2, VOCAB], [-1, 0, 1, 2]])
def test_a_vocabulary_that_leaves_the_targets_is_refused(tokens: list[int]) -> None:
    head = narrow()
    head.use_vocabulary(torch.tensor(tokens))
    with pytest.raises(
        SapwoodError, match="the draft vocabulary of this medusa head leaves its 11"
    ):
        head.attach(EMBEDDING, OUTPUT)


# ------------------------------------------------------------------------------------ kinds of heads
@torch.no_grad()
def test_a_new_medusa_head_says_what_the_target_would() -> None:
    head = MedusaHeads(MedusaConfig(WIDTH, VOCAB, heads=3, blocks=2))
    head.attach(EMBEDDING, OUTPUT)
    final = noise(4, WIDTH, seed=2)
    states = head.states(final)
    assert states.shape == (3, 4, WIDTH)
    assert torch.equal(states[2], final)  # blocks begin as the identity
    assert torch.allclose(head.logits(states)[1], final @ OUTPUT.T, atol=1e-5)
    assert head.rows(0) is head.output


@torch.no_grad()
def test_medusa_heads_may_bring_output_rows_of_their_own() -> None:
    head = MedusaHeads(MedusaConfig(WIDTH, VOCAB, heads=2, own_head=True, draft_vocab=4))
    states = noise(2, 3, WIDTH)
    logits = head.logits(states)
    for number in range(2):
        rows = head.get_parameter(f"heads.{number}.lm_head.weight")
        assert rows.shape == (4, WIDTH)
        assert torch.allclose(logits[number], states[number] @ rows.T, atol=1e-5)


@torch.no_grad()
def test_a_hydra_head_is_chosen_by_how_many_tokens_it_reads() -> None:
    torch.manual_seed(0)
    head = HydraHeads(HydraConfig(WIDTH, VOCAB, heads=3, blocks=1, inner=5))
    head.attach(EMBEDDING, OUTPUT)
    final, tokens = noise(2, WIDTH), torch.tensor([[3, 4, 5], [6, 7, 8]])
    for count in (1, 2, 3):
        states = head.states(final, tokens[:, :count])
        assert torch.equal(states, final)  # a new one is the final state itself
        torch.nn.init.normal_(head.get_parameter(f"heads.{count - 1}.leave.weight"))
        changed = head.states(final, tokens[:, :count])
        assert not torch.allclose(changed, final)
        other = head.states(final, (tokens[:, :count] + 1) % VOCAB)
        assert not torch.allclose(changed, other)  # it reads the tokens


@torch.no_grad()
def test_a_recurrent_head_moves_its_state_by_a_gate() -> None:
    torch.manual_seed(0)
    head = RecurrentHead(RecurrentConfig(WIDTH, VOCAB, 4, 2))
    state, embed = noise(2, WIDTH), noise(2, WIDTH, seed=1)
    torch.nn.init.zeros_(head.gate.weight)
    torch.nn.init.constant_(head.gate.bias, 50.0)
    assert torch.allclose(head.step(state, embed), state)  # the gate keeps all of it
    torch.nn.init.constant_(head.gate.bias, -50.0)
    joined = torch.cat((head.state_norm(state), head.token_norm(embed)), -1)
    wanted = torch.nn.functional.silu(head.update(joined))
    assert torch.allclose(head.step(state, embed), wanted, atol=1e-6)
    assert head.outputs(state, head.begin(state)).shape == (2, WIDTH)
