"""Early-exit, parallel and recurrent heads: slow references, the same text, the exact law, folders."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import build
from sapwood.backends.toy import ToyBackend
from sapwood.common.drafter_store import home
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads import early_exit, parallel, recurrent
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.errors import SapwoodError
from sapwood.heads.early_exit import EarlyExitConfig, EarlyExitHead
from sapwood.heads.files import save
from sapwood.heads.layers import LayerShape
from sapwood.heads.parallel import ParallelConfig, ParallelHead
from sapwood.heads.recurrent import RecurrentConfig, RecurrentHead
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
from tests.helpers.engine_rounds import make_text, rounds_until, tokens_of
from tests.helpers.head_checks import few_tokens

# masks are made for the narrower number formats; in double precision their lowest number becomes
# minus infinity
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")
SHAPE = LayerShape(width=32, heads=4, kv_heads=2, head_width=8, inner=24)
DEPTH = 3  # laws of the parallel head
KINDS = ["early-exit", "early-exit-rows", "parallel", "recurrent"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def make_head(kind: str, vocab: int = 61, draft_vocab: int = 40, **changes: Any) -> Any:
    """A head with random weights for the tiny models; its vocabulary leaves some tokens out."""
    torch.manual_seed(1)
    sizes = {"vocab": vocab, "draft_vocab": draft_vocab}
    config: Any
    if kind.startswith("early-exit"):
        config = {"shape": SHAPE, "layer": 1, "attention": kind == "early-exit", **sizes, **changes}
        head: Any = EarlyExitHead(EarlyExitConfig(**config))
    elif kind == "parallel":
        config = {
            "shape": SHAPE,
            "target_width": 32,
            "features": (0, 1, 2),
            "depth": DEPTH,
            **sizes,
            **changes,
        }
        head = ParallelHead(ParallelConfig(**config))
    else:
        head = RecurrentHead(RecurrentConfig(**{"width": 32, "layer": 2, **sizes, **changes}))
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    head.use_vocabulary(torch.randperm(vocab)[:draft_vocab].sort().values)
    return head


def make(kind: str, head: Any = None, draws: Draw = Draw.TOPK) -> Any:
    """The drafter of a kind of head."""
    found: Any = {"parallel": parallel.Parallel, "recurrent": recurrent.Recurrent}.get(
        kind, early_exit.EarlyExit
    )
    return found(head=make_head(kind) if head is None else head, draws=draws)


@cache
def exact_target() -> TorchBackend:
    """A target in double precision, in which two ways to the same number agree closely."""
    return TorchBackend(tiny_models.make("llama", torch.float64), "tiny")


def states_of(text: Sequence[int]) -> tuple[Tensor, ...]:
    """What the bare model thinks of each token, layer by layer."""
    found: tuple[Tensor, ...] = (
        exact_target().model(torch.tensor([text]), output_hidden_states=True).hidden_states
    )
    return found


def embed(tokens: Sequence[int]) -> Tensor:
    found: Tensor = exact_target().model.get_input_embeddings()(torch.tensor([tokens]))
    return found


def exit_state(head: Any, text: Sequence[int], path: Sequence[int]) -> Tensor:
    """What the output rows read after the text and a path, through layers run from scratch."""
    tokens = [*text, *path]
    states = head(states_of(tokens)[1], position_ids=torch.arange(len(tokens))[None], causal=True)
    found: Tensor = head.norm(states)[0, -1]
    return found


def parallel_state(head: Any, text: Sequence[int], path: Sequence[int]) -> Tensor:
    """The row for this depth, of all rows under one plain causal mask."""
    features = torch.cat(states_of(text[:-1])[:3], -1)
    states = torch.cat((head.begin(features), head.masks[:1]), 1)
    embeds = torch.cat((embed(text[1:]), head.masks[1:]), 1)
    layer = head.midlayer
    rows = states.shape[1]
    query, key, value = layer.project(embeds, states, torch.arange(rows)[None])
    outputs = layer.finish(states, layer.self_attn.attend(query, key, value, None, causal=True))
    found: Tensor = outputs[0, len(text) - 2 + len(path)]
    return found


def recurrent_state(head: Any, text: Sequence[int], path: Sequence[int]) -> Tensor:
    """The state after the root and a path."""
    state: Tensor = head.begin(states_of(text[:-1])[-1][0, -1])
    for token in embed([text[-1], *path])[0]:
        state = head.step(state, token)
    return state


SLOW: dict[str, Callable[..., Tensor]] = {
    "early-exit": exit_state,
    "early-exit-rows": exit_state,
    "parallel": parallel_state,
    "recurrent": recurrent_state,
}


def slow_law(kind: str, head: Any, text: Sequence[int], path: Sequence[int]) -> Tensor:
    """The head's law over its vocabulary after the text and a path."""
    state = SLOW[kind](head, text, path)
    if kind == "recurrent":
        state = head.outputs(state, head.begin(states_of(text[:-1])[-1][0, -1]))
    logits = head.output_logits(state if kind.startswith("early-exit") else head.norm(state))
    return logits.softmax(-1)  # type: ignore[no-any-return]


@pytest.fixture
def shares(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the target can stop behind the layers that the exit shares."""
    if not request.param:
        monkeypatch.setattr(early_exit, "can_split", lambda able, layer: False)
    return bool(request.param)


each_sharing = pytest.mark.parametrize(
    "shares", [True, False], indirect=True, ids=["shared", "own"]
)


SHARING = [*((kind, True) for kind in KINDS), ("early-exit", False), ("early-exit-rows", False)]


@pytest.mark.usefixtures("shares")
@pytest.mark.parametrize(
    ("kind", "shares", "end", "seed"),
    [(*one, *rest) for one, *rest in pairwise(SHARING, LAST_NODES, range(2))],
    indirect=["shares"],
)
@torch.inference_mode()
def test_states_and_children_equal_the_slow_reference(kind: str, end: str, seed: int) -> None:
    head = make_head(kind)
    drive = DrivenRequest(make(kind, head), exact_target(), make_text(9, seed), seed)
    head = head.to(torch.float64)
    head.attach(
        exact_target().model.get_input_embeddings().weight,
        exact_target().model.get_output_embeddings().weight,
    )
    for foreign in (0, 3, 0, 3):
        tree = drive.draft(levels=4, foreign=foreign)
        assert len(tree.states) >= 4
        for node, state in tree.states.items():
            path = tree.spell(node)[1:]
            assert state.numpy() == pytest.approx(
                SLOW[kind](head, drive.text, path).numpy(), abs=1e-8
            )
            probs, ids = slow_law(kind, head, drive.text, path).topk(2)
            if not foreign:
                children = tree.children(node)
                assert tree.tokens[children].tolist() == head.vocabulary[ids].tolist()
                assert tree.probs[children] == pytest.approx(probs.numpy(), abs=1e-6)
        drive.accept(tree, LAST_NODES[end](tree, drive.noise))


@torch.inference_mode()
def test_a_parallel_head_says_nothing_below_its_last_law() -> None:
    drive = DrivenRequest(make("parallel"), exact_target(), make_text(9, 3))
    tree = drive.draft(levels=8)
    assert tree.height == DEPTH
    one = make_head("parallel", depth=1)
    assert (
        DrivenRequest(make("parallel", one), exact_target(), make_text(9, 3)).draft(levels=4).height
        == 1
    )


def test_text_that_came_without_a_draft_is_read_later() -> None:
    for kind in KINDS:
        late, early = (DrivenRequest(make(kind), exact_target(), make_text(5, 2)) for _ in range(2))
        for drive, drafts in ((late, False), (early, True)):
            for _ in range(3):
                tree = drive.draft(levels=1) if drafts else Tree(drive.text[-1])
                drive.accept(tree, ROOT)
        assert late.text == early.text
        one = late.draft(levels=2)
        other = early.draft(levels=2)
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.probs == pytest.approx(other.probs, abs=1e-8)


PLAIN = Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0))
SHAPES: dict[str, tuple[Any, bool]] = {
    "chain": (Chain(), False),
    "beam": (Beam(beam=3), False),
    "merge": (Beam(beam=3), True),
    "merge-best": (Best(), True),
}
SAMPLINGS = {
    "greedy": Sampling(max_tokens=64),
    "penalised": Sampling(max_tokens=64, repetition_penalty=1.3),
    "banned": Sampling(
        max_tokens=64, banned=make_head("recurrent").vocabulary.tolist()
    ),  # all that the head knows
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}


@pytest.mark.parametrize(("kind", "shape", "sampling"), pairwise(KINDS, SHAPES, SAMPLINGS))
def test_the_text_is_plain_decodings(kind: str, shape: str, sampling: str) -> None:
    target, prompt, (policy, merged) = tiny_models.backend("llama"), [5, 6, 7, 5, 6], SHAPES[shape]
    drafter = Merge(drafters=[Suffix(), make(kind)]) if merged else make(kind)
    wide = Fixed(nodes=24, depth=3, width=12)
    plain = rounds_until(target, PLAIN, prompt, 24, SAMPLINGS[sampling])
    ours = rounds_until(
        target, Recipe(drafter, policy, Match(), wide), prompt, 24, SAMPLINGS[sampling]
    )
    assert tokens_of(ours)[:24] == tokens_of(plain)[:24]
    if sampling == "greedy" and shape != "chain":
        assert any(outcome.verdict.accepted for outcome in ours)


@pytest.mark.parametrize("prompt", [[5], [5, 6], make_text(120, 1), make_text(127, 1)], ids=len)
@each_kind
def test_text_reaches_from_the_first_token_to_the_end_of_the_context(
    kind: str, prompt: list[int]
) -> None:
    target = tiny_models.backend("llama")
    # a text that begins at the first token need not reach the end as well
    most = 999 if len(prompt) > 100 else 30
    endless = Sampling(max_tokens=most)
    plain = rounds_until(target, PLAIN, prompt, most, endless)
    ours = rounds_until(
        target, Recipe(make(kind), Best(), Match(), Fixed(7, 4, 3)), prompt, most, endless
    )
    assert tokens_of(ours)[:most] == tokens_of(plain)[:most]
    if most == 999:
        assert len(prompt) + len(tokens_of(ours)) == target.info.context


@pytest.mark.parametrize("name", [name for name in tiny_models.NAMES if not name.startswith("gpt")])
@pytest.mark.parametrize("kind", ["early-exit", "early-exit-rows"])
def test_exits_of_every_architecture(kind: str, name: str) -> None:
    target = tiny_models.backend(name)
    prompt = make_text(9, 1)
    recipe = Recipe(make(kind), Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=6))
    greedy = Sampling(max_tokens=20)
    layers = len(target.model.base_model.layers)
    assert tokens_of(rounds_until(target, recipe, prompt, 12, greedy))[:12] == tokens_of(
        rounds_until(target, PLAIN, prompt, 12, greedy)
    )
    assert len(target.model.base_model.layers) == layers == target.model.config.num_hidden_layers


def rows_through_the_first_layer(target: Any, drafter: Any, rounds: int) -> list[tuple[int, int]]:
    """Rows of each round that the target's first layer runs, and rows that were verified."""
    drive = DrivenRequest(drafter, target, make_text(9, 4))
    seen: list[int] = []
    layer = target.model.base_model.layers[0]
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    found = []
    try:
        for _ in range(rounds):
            seen.clear()
            tree = drive.draft(levels=4)
            drive.accept(tree, int(tree.depths.argmax()))
            found.append((sum(seen), len(tree)))
    finally:
        hook.remove()
    return found


@each_sharing
def test_a_node_goes_through_the_shared_layers_once(shares: bool) -> None:
    """Kangaroo's first layers: what they computed for the draft, the target does not repeat."""
    found = rows_through_the_first_layer(exact_target(), make("early-exit"), 3)
    if shares:
        assert all(run == verified for run, verified in found)
    else:
        assert all(run > verified for run, verified in found)


def test_a_target_in_int8_shares_its_first_layers() -> None:
    target: Any = build(
        tiny_models.make("llama", num_hidden_layers=3), "llama", "int8", lambda _: None
    )
    recipe = Recipe(make("early-exit"), Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=6))
    greedy = Sampling(max_tokens=20)
    ours = rounds_until(target, recipe, make_text(9, 1), 12, greedy)
    plain = rounds_until(target, PLAIN, make_text(9, 1), 12, greedy)
    assert tokens_of(ours)[:12] == tokens_of(plain)[:12]
    assert any(outcome.verdict.accepted for outcome in ours)
    assert bind("early-exit", make_head("early-exit"), target).shares


def test_requests_in_one_pass_share_their_first_layers() -> None:
    target = exact_target()
    drafter = make("early-exit")
    drives = [DrivenRequest(drafter, target, make_text(9, seed), seed) for seed in range(2)]
    trees = [drive.draft(levels=3) for drive in drives]
    work = [TreeInput(drive.session, tree) for drive, tree in zip(drives, trees, strict=True)]
    for scores, drive, tree in zip(target.score(work), drives, trees, strict=True):
        [wanted] = target.score([TreeInput(target.open(drive.text[:-1]), tree)])
        for node in range(len(tree)):
            assert scores.logits(node) == pytest.approx(wanted.logits(node), abs=1e-8)


def test_an_exit_shares_the_targets_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_exit, "can_split", lambda able, layer: False)
    target: Any = tiny_models.backend("llama")
    drafter = make("early-exit")
    drafter.bind(EngineContext(target, flat(), no_loader))
    short: Any = drafter.short.backend
    assert short.model.model.layers[0] is target.model.model.layers[0]
    assert short.model.model.layers[1] is drafter.net
    assert len(short.model.model.layers) == 2
    assert short.model.get_input_embeddings() is target.model.get_input_embeddings()
    assert target.model.lm_head.weight.shape == (61, 32)


@each_draw_kind
@pytest.mark.parametrize("kind", ["early-exit", "parallel", "recurrent"])
def test_the_law_is_the_targets(
    kind: str, draws: Draw, policy: Any, verifier: Any, rounds: int
) -> None:
    # a head that knows all three tokens, or two of them, by turns
    draft_vocab = 2 if kind == "early-exit" or draws in (Draw.IID, Draw.SWOR) else 3
    drafter = make(kind, make_head(kind, vocab=3, draft_vocab=draft_vocab), draws)
    recipe = Recipe(drafter, policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    assert law_error(recipe, few_tokens(3), sampling, rounds=rounds, horizon=2) <= 1e-12


def bind(kind: str, head: Any, target: Any = None) -> Any:
    drafter = make(kind, head)
    drafter.bind(EngineContext(target or tiny_models.backend("llama"), flat(), no_loader))
    return drafter


@each_kind
def test_a_saved_head_proposes_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    # as stored
    head = make_head(kind).half().float()
    word = make(kind).trained
    with pytest.raises(SapwoodError, match=f"sapwood train {word} --model tiny"):
        bind(kind, "", exact_target())
    wanted = DrivenRequest(make(kind, head), exact_target(), make_text(9, 3)).draft(levels=3)
    for folder, option in ((tmp_path / "mine", str(tmp_path / "mine")), (home(word, "tiny"), "")):
        save(head, folder)
        found = DrivenRequest(make(kind, option), exact_target(), make_text(9, 3)).draft(levels=3)
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert found.probs == pytest.approx(wanted.probs, abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("early-exit", {"vocab": 50}, "50 tokens and width 32, and this one has 61 and 32"),
        (
            "early-exit",
            {"shape": LayerShape(16, 4, 2, 8, 24)},
            "width 16, and this one has 61 and 32",
        ),
        ("early-exit", {"layer": 2}, "after 2 layers needs a model of more layers"),
        ("parallel", {"vocab": 50}, "vocabulary of 50 and llama has 61"),
        ("parallel", {"features": (0, 1, 3)}, "layers up to 3 and llama has 2"),
        ("recurrent", {"vocab": 50}, "50 tokens and width 32, and this one has 61 and 32"),
        ("recurrent", {"layer": 3}, "after 3 layers and llama has 2"),
    ],
)
def test_a_head_for_another_target_is_refused(
    kind: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SapwoodError, match=words) as caught:
        bind(kind, make_head(kind, **changes))
    assert "." not in str(caught.value)


@each_kind
def test_a_head_of_another_kind_or_a_target_without_weights_is_refused(kind: str) -> None:
    other = "recurrent" if kind == "parallel" else "parallel"
    with pytest.raises(SapwoodError, match=f"got a head of the kind {other}"):
        bind(kind, make_head(other))
    with pytest.raises(SapwoodError, match="which the toy backend has not"):
        bind(kind, make_head(kind), ToyBackend())


def test_a_head_handed_over_keeps_its_spelling_and_its_weights() -> None:
    head = make_head("recurrent")
    drafter = bind("recurrent", head, exact_target())
    assert head.fuse.weight.dtype is torch.float32
    assert drafter.net.fuse.weight.dtype is torch.float64
    assert str(recurrent.Recurrent(head=head, draws=Draw.IID)).endswith(
        "(head='RecurrentHead', draws=iid)"
    )
