"""The EAGLE drafter against a slow reference, on plain decoding's text, and on the target's exact law."""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Capabilities, EngineContext, RequestContext, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import BackendInfo, Draw
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.errors import SapwoodError
from sapwood.heads.eagle3 import Eagle3Head
from sapwood.heads.files import save
from sapwood.heads.layers import LayerShape
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.covering import pairwise
from tests.helpers.draw_kinds import each_draw_kind
from tests.helpers.driven_request import LAST_NODES, DrivenRequest
from tests.helpers.eagle_heads import FEATURES, make_head
from tests.helpers.engine_rounds import make_text, rounds_until, tokens_of
from tests.helpers.head_checks import few_tokens

SEVEN = Fixed(nodes=7, depth=4, width=3)


class Bare:
    """A model in double precision without a backend: a row's states come from a pass over its own text."""

    def __init__(self) -> None:
        self.model = tiny_models.make("llama").double()
        self.capabilities = Capabilities(
            self.model, layers=self.model.config.get_text_config().num_hidden_layers
        )
        self.info = BackendInfo("bare", "tiny", 61, 128, provides=frozenset({"hidden"}))
        self.watched: list[int] = []

    def watch(self, layers: Sequence[int]) -> None:
        self.watched += layers

    def open(self, tokens: Sequence[int]) -> "BareSession":
        return BareSession(self, list(tokens))

    def score(self, work: Sequence[TreeInput]) -> list[Any]:
        rows = []
        for job in work:
            session: Any = job.session
            session.tree = job.tree
            rows.append(
                BareScores(
                    self, [session.tokens + job.tree.spell(node) for node in range(len(job.tree))]
                )
            )
        return rows

    @torch.inference_mode()
    def features(self, text: Sequence[int]) -> Tensor:
        """What the model thinks of each token, [n, 3 * width]."""
        states = self.model(torch.tensor([text]), output_hidden_states=True).hidden_states
        return torch.cat([states[layer][0] for layer in FEATURES], -1)


@dataclass
class BareScores:
    target: Bare
    texts: list[list[int]]  # of each row, itself included

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Tensor:
        assert set(layers) <= set(self.target.watched)
        return torch.stack([self.target.features(self.texts[row])[-1] for row in rows])


@dataclass
class BareSession:
    target: Bare
    tokens: list[int]
    tree: Tree | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    def prefill_output(self, last: int) -> BareScores | None:
        ends = range(max(self.length - last, 0), self.length)
        return BareScores(self.target, [self.tokens[: end + 1] for end in ends]) if ends else None

    def commit(self, path: Sequence[int]) -> None:
        assert self.tree is not None
        self.tokens = self.tokens + self.tree.tokens[list(path)].tolist()


@cache
def exact_target() -> Bare:
    return Bare()


# ------------------------------------------------------------------------------- the slow reference
class Reference:
    """The head from scratch on whole sequences: the text's pairs, then those of one path."""

    def __init__(self, head: Eagle3Head) -> None:
        self.head = copy.deepcopy(head).to(torch.float64)
        self.target = exact_target()

    @torch.inference_mode()
    def output(self, text: Sequence[int], first: int, path: Sequence[int]) -> Tensor:
        """The head's output at the end of a text and a drafted path; rows of the text begin at `first`."""
        states = self.head.begin(self.target.features(text[:-1]))[first:]
        for count in range(len(path) + 1):
            outputs = self.run(states, [*text[first + 1 :], *path[:count]], first)
            states = torch.cat((states, outputs[-1:]))
        return outputs[-1]

    def run(self, states: Tensor, tokens: Sequence[int], first: int) -> Tensor:
        """All rows at once under a plain causal mask."""
        layer = self.head.midlayer
        embeds = self.target.model.get_input_embeddings()(torch.tensor([tokens]))
        positions = torch.arange(first, first + len(tokens))[None]
        query, key, value = layer.project(embeds, states[None], positions)
        return layer.finish(
            states[None], layer.self_attn.attend(query, key, value, None, causal=True)
        )[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("end", LAST_NODES)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_rows_equal_the_slow_reference(end: str, after: bool, seed: int) -> None:
    head = make_head(norm_before_residual=after)
    target = exact_target()
    drive = DrivenRequest(Eagle3(head=head), target, make_text(9, seed), seed)
    slow = Reference(head)
    for _ in range(4):
        tree = drive.draft(levels=4, foreign=3)
        assert len(tree.states) >= 4
        for node, state in tree.states.items():
            wanted = slow.output(drive.text, 0, tree.spell(node)[1:])
            assert state.numpy() == pytest.approx(wanted.numpy(), abs=1e-9)
        drive.accept(tree, LAST_NODES[end](tree, drive.noise))


def test_rows_are_right_through_a_real_backend() -> None:
    head = make_head()
    drive = DrivenRequest(
        Eagle3(head=head), TorchBackend(tiny_models.make("llama")), make_text(9, 4)
    )
    slow = Reference(head)
    for _ in range(3):
        tree = drive.draft(levels=3, foreign=2)
        for node, state in tree.states.items():
            wanted = slow.output(drive.text, 0, tree.spell(node)[1:])
            assert state.numpy() == pytest.approx(wanted.numpy(), rel=1e-3, abs=1e-3)
        drive.accept(tree, int(np.argmax(tree.depths)))


def test_children_are_the_heads_best_tokens() -> None:
    head = make_head()
    target = exact_target()
    drive = DrivenRequest(Eagle3(head=head), target, make_text(9, 5))
    slow = Reference(head)
    tree = drive.draft(levels=3)
    for node in tree.states:
        full_probs = slow.head.logits(slow.output(drive.text, 0, tree.spell(node)[1:])).softmax(-1)
        probs, ids = full_probs.topk(2)
        children = tree.children(node)
        assert tree.tokens[children].tolist() == head.vocabulary[ids].tolist()
        assert tree.probs[children] == pytest.approx(probs.detach().numpy(), abs=1e-6)


def test_equal_chances_go_to_the_lowest_token() -> None:
    head = make_head()
    torch.nn.init.zeros_(head.lm_head.weight)
    head.use_vocabulary(torch.arange(40) + 21)
    drive = DrivenRequest(Eagle3(head=head), exact_target(), make_text(9, 5))
    children = drive.draft(levels=1).tokens[1:]
    assert children.tolist() == sorted(set(children.tolist()))


def test_a_long_prompt_is_read_from_its_end_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.heads.kv_cache.CHUNK", 4)
    head = make_head()
    target = exact_target()
    prompt = make_text(40, 2)
    drive = DrivenRequest(Eagle3(head=head, window=10), target, prompt)
    slow = Reference(head)
    for _ in range(2):
        tree = drive.draft(levels=3)
        for node, state in tree.states.items():
            wanted = slow.output(drive.text, len(prompt) - 1 - 10, tree.spell(node)[1:])
            assert state.numpy() == pytest.approx(wanted.numpy(), abs=1e-9)
        drive.accept(tree, len(tree) - 1)


def test_slots_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.heads.kv_cache.SPARE", 1)
    head = make_head()
    target = exact_target()
    drive = DrivenRequest(Eagle3(head=head), target, make_text(3, 2))
    slow = Reference(head)
    for _ in range(3):
        tree = drive.draft(levels=4)
        last = max(tree.states)
        wanted = slow.output(drive.text, 0, tree.spell(last)[1:])
        assert tree.states[last].numpy() == pytest.approx(wanted.numpy(), abs=1e-9)
        drive.accept(tree, len(tree) - 1)


def test_text_that_came_without_a_draft_is_read_later() -> None:
    head = make_head()
    target = exact_target()
    drive = DrivenRequest(Eagle3(head=head), target, make_text(5, 2))
    slow = Reference(head)
    for _ in range(3):
        drive.accept(Tree(drive.text[-1]), ROOT)
    tree = drive.draft(levels=1)
    assert tree.states[ROOT].numpy() == pytest.approx(
        slow.output(drive.text, 0, []).numpy(), abs=1e-9
    )


# ------------------------------------------------------------------------------------ the same text
POLICIES: dict[str, Any] = {
    "chain": Chain(),
    "beam": Beam(beam=3),
    "best": Best(),
    "best-stride": Best(stride=4),
}
SAMPLINGS = {
    "greedy": Sampling(max_tokens=64),
    "penalised": Sampling(max_tokens=64, repetition_penalty=1.3),
    "banned": Sampling(
        max_tokens=64, banned=make_head().vocabulary.tolist()
    ),  # all that the head knows
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}


@pytest.mark.parametrize(
    ("policy", "sampling", "merged"), pairwise(POLICIES, SAMPLINGS, [False, True])
)
def test_the_text_is_plain_decodings(policy: str, merged: bool, sampling: str) -> None:
    target = tiny_models.backend("llama")
    prompt = [5, 6, 7, 5, 6]
    eagle = Eagle3(head=make_head())
    drafter: Any = Merge(drafters=[Suffix(), eagle]) if merged else eagle
    wide = Fixed(nodes=24, depth=3, width=12)
    plain = rounds_until(
        target, Recipe(eagle, Chain(), Match(), Fixed(nodes=0)), prompt, 24, SAMPLINGS[sampling]
    )
    ours = rounds_until(
        target, Recipe(drafter, POLICIES[policy], Match(), wide), prompt, 24, SAMPLINGS[sampling]
    )
    assert tokens_of(ours)[:24] == tokens_of(plain)[:24]
    if sampling in ("greedy", "penalised") and policy != "chain":
        assert any(outcome.verdict.accepted for outcome in ours)


@pytest.mark.parametrize("prompt", [[5], [5, 6], make_text(120, 1), make_text(127, 1)], ids=len)
def test_text_reaches_from_the_first_token_to_the_end_of_the_context(prompt: list[int]) -> None:
    target = tiny_models.backend("llama")
    # a text that begins at the first token need not reach the end as well
    most = 999 if len(prompt) > 100 else 30
    endless = Sampling(max_tokens=most)
    eagle = Eagle3(head=make_head(), window=50)
    plain = rounds_until(
        target, Recipe(eagle, Chain(), Match(), Fixed(nodes=0)), prompt, most, endless
    )
    ours = rounds_until(target, Recipe(eagle, Best(), Match(), SEVEN), prompt, most, endless)
    assert tokens_of(ours)[:most] == tokens_of(plain)[:most]
    if most == 999:
        assert len(prompt) + len(tokens_of(ours)) == target.info.context


def test_a_prompt_of_one_token_drafts_from_the_second_round_on() -> None:
    recipe = Recipe(Eagle3(head=make_head()), Beam(), Match(), SEVEN)
    first, second = rounds_until(tiny_models.backend("llama"), recipe, [5], 2, Sampling())[:2]
    assert len(first.grown) == 1
    assert len(second.tree) == 8


# ------------------------------------------------------------------------------------- the same law
@each_draw_kind
@pytest.mark.parametrize("draft_vocab", [3, 2], ids=["whole", "partial"])
def test_the_law_is_the_targets(
    draws: Draw, policy: Any, verifier: Any, rounds: int, draft_vocab: int
) -> None:
    target = few_tokens(3)
    drafter = Eagle3(head=make_head(vocab=3, draft_vocab=draft_vocab), draws=draws)
    recipe = Recipe(drafter, policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    assert law_error(recipe, target, sampling, rounds=rounds, horizon=2) <= 1e-12


# -------------------------------------------------------------------------------------------
# misfits
def bind(head: Any, target: Any = None) -> Eagle3:
    drafter = Eagle3(head=head)
    drafter.bind(EngineContext(target or tiny_models.backend("llama"), flat(), no_loader))
    return drafter


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab": 50, "draft_vocab": 40}, "vocabulary of 50 and llama has 61"),
        ({"target_width": 64}, "states of width 64 and llama has 32"),
        ({"shape": LayerShape(16, 4, 2, 8, 48)}, "embeddings of width 16 and llama has 32"),
        ({"features": (0, 1, 3)}, "layers up to 3 and llama has 2"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_head_for_another_target_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SapwoodError, match=words) as caught:
        bind(make_head(**changes))
    assert str(caught.value).count(".") == 0
    assert "sapwood train eagle3" in str(caught.value)


def test_a_head_of_another_kind_is_refused() -> None:
    head: Any = make_head()
    head.kind = "medusa"
    with pytest.raises(SapwoodError, match="kind medusa; it drafts with eagle3 heads"):
        bind(head)


def test_a_target_without_states_is_refused() -> None:
    with pytest.raises(SapwoodError, match="needs hidden"):
        Engine(ToyBackend(), Recipe(Eagle3(head=make_head()), Chain(), Match(), SEVEN))
    with pytest.raises(SapwoodError, match="which the toy backend has not"):
        bind(make_head(), ToyBackend())


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(SapwoodError, match="window=0 must be at least 1"):
        Eagle3(window=0)


def test_the_head_comes_from_a_folder_or_from_what_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sapwood.common.drafter_store import home

    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    head = make_head().half().float()  # as stored
    with pytest.raises(SapwoodError, match="sapwood train eagle3 --model llama"):
        bind("")
    for folder, option in (
        (tmp_path / "mine", str(tmp_path / "mine")),
        (home("eagle3", "llama"), ""),
    ):
        save(head, folder)
        found: Any = bind(option).net
        assert torch.equal(found.fc.weight, head.fc.weight)
        assert found.fc.weight.dtype is torch.float32


def test_a_head_handed_over_stays_as_it_is() -> None:
    head = make_head()
    drafter = bind(head, exact_target())
    assert head.fc.weight.dtype is torch.float32
    assert drafter.net is not head
    assert str(Eagle3(head=head, window=7)).endswith("(head='Eagle3Head', window=7)")


def test_closing_frees_the_rows_and_leaves_other_requests_alone() -> None:
    drive = DrivenRequest(Eagle3(head=make_head()), exact_target(), make_text(9, 1))
    other = drive.drafter.fresh()
    other.reset(RequestContext(make_text(9, 1), drive.drafter.sampler_, drive.session))
    wanted = drive.draft(levels=2)
    drive.drafter.close()
    assert not hasattr(drive.drafter, "cache_")
    drive.drafter = other
    drive.noise = np.random.default_rng(0)
    assert drive.draft(levels=2).tokens.tolist() == wanted.tokens.tolist()


def test_two_requests_interleave() -> None:
    head = make_head()
    target = exact_target()
    drives = [
        DrivenRequest(Eagle3(head=head), target, make_text(6, seed), seed) for seed in range(2)
    ]
    slow = Reference(head)
    for drive, _ in itertools.product(drives, range(2)):
        tree = drive.draft(levels=2)
        wanted = slow.output(drive.text, 0, [])
        assert tree.states[ROOT].numpy() == pytest.approx(wanted.numpy(), abs=1e-9)
        drive.accept(tree, 1)
