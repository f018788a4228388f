"""Drafters with an early exit, a parallel head or a recurrent head, and trained draft models: rows, text and law."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.load import load
from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.cost import flat
from sapwood.drafters import early_exit, parallel, recurrent
from sapwood.drafters.merge import Merge
from sapwood.drafters.model import Model
from sapwood.drafters.suffix import Suffix
from sapwood.engine import Engine, no_loader
from sapwood.errors import SapwoodError
from sapwood.heads.early_exit import EarlyExit, EarlyExitConfig
from sapwood.heads.files import save
from sapwood.heads.layers import Shape
from sapwood.heads.parallel import Parallel, ParallelConfig
from sapwood.heads.recurrent import Recurrent, RecurrentConfig
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.protocols import Request, Setting, Work
from sapwood.recipe import Recipe
from sapwood.records import Draw, Outcome, Verdict
from sapwood.rng import Keyed
from sapwood.sampling import Sampler, Sampling
from sapwood.testing import law_error
from sapwood.train.draft_model import DraftModelCourse
from sapwood.train.target import Teacher
from sapwood.trained import home
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests import tiny

# masks are made for the narrower number formats; in double precision their lowest number becomes minus infinity
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")

SHAPE = Shape(width=32, heads=4, kv_heads=2, head_width=8, inner=24)
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
        head: Any = EarlyExit(EarlyExitConfig(**config))
    elif kind == "parallel":
        config = {"shape": SHAPE, "target_width": 32, "features": (0, 1, 2), "depth": DEPTH, **sizes, **changes}
        head = Parallel(ParallelConfig(**config))
    else:
        head = Recurrent(RecurrentConfig(**{"width": 32, "layer": 2, **sizes, **changes}))
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    head.use_vocabulary(torch.randperm(vocab)[:draft_vocab].sort().values)
    return head


def make(kind: str, head: Any = None, draws: Draw = Draw.TOPK) -> Any:
    """The drafter of a kind of head."""
    found: Any = {"parallel": parallel.Parallel, "recurrent": recurrent.Recurrent}.get(kind, early_exit.EarlyExit)
    return found(head=make_head(kind) if head is None else head, draws=draws)


@cache
def exact_target() -> TorchBackend:
    """A target in double precision, in which two ways to the same number agree closely."""
    return TorchBackend(tiny.make("llama", torch.float64), "tiny")


def make_text(count: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 61, count)]


# ---------------------------------------------------------------------- slow references, from the whole text
def states_of(text: Sequence[int]) -> tuple[Tensor, ...]:
    """What the bare model thinks of each token, layer by layer."""
    found: tuple[Tensor, ...] = exact_target().model(torch.tensor([text]), output_hidden_states=True).hidden_states
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
    layer, rows = head.midlayer, states.shape[1]
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
    logits = head.speak(state if kind.startswith("early-exit") else head.norm(state))
    return logits.softmax(-1)  # type: ignore[no-any-return]


class Drive:
    """One request, driven by hand: any tree, any verdict."""

    def __init__(self, drafter: Any, target: Any, prompt: list[int], seed: int = 0) -> None:
        self.target, self.text, self.noise = target, prompt, np.random.default_rng(seed)
        drafter.bind(Setting(target, flat(), no_loader))
        self.session = target.open(prompt[:-1])
        self.drafter = drafter.fresh()
        self.drafter.reset(Request(prompt, Sampler(Sampling(), prompt), self.session))

    def draft(self, levels: int, strangers: int = 0) -> Tree:
        """A tree from random frontiers, with nodes of somebody else's anywhere in it."""
        tree = Tree(self.text[-1])
        self.expand(tree, [ROOT])
        for _ in range(levels - 1):
            for token in self.noise.integers(0, 61, strangers).tolist():
                tree.add(int(self.noise.integers(len(tree))), token, 0.1)
            able = [node for node in range(len(tree)) if not tree.expanded[node]]
            self.expand(tree, self.noise.permutation(able)[:4].tolist())
        return tree

    def expand(self, tree: Tree, nodes: list[int]) -> None:
        before = len(tree)
        self.drafter.expand(tree, [(node, 2) for node in nodes], Keyed(0))
        assert set(tree.parents[before:].tolist()) <= set(nodes) & set(tree.states)
        for node in nodes:
            tree.close(node)

    def judge(self, tree: Tree, last: int) -> None:
        """Accept the path to this node, whatever the target says."""
        [scores] = self.target.score([Work(self.session, tree)])
        verdict = Verdict(tuple(tree.path(last)), int(self.noise.integers(61)))
        outcome = Outcome(tree, tree, verdict, scores, self.session.length)
        self.session.commit(verdict.path)
        self.drafter.observe(outcome)
        self.text = [*self.text, *outcome.tokens]


ENDS: dict[str, Callable[[Tree, Any], int]] = {
    "none": lambda tree, noise: ROOT,
    "long": lambda tree, noise: int(np.argmax(tree.depths)),
    "any": lambda tree, noise: int(noise.integers(len(tree))),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("end", ENDS)
@each_kind
@torch.inference_mode()
def test_states_and_children_equal_the_slow_reference(kind: str, end: str, seed: int) -> None:
    head = make_head(kind)
    drive = Drive(make(kind, head), exact_target(), make_text(9, seed), seed)
    head = head.to(torch.float64)
    head.attach(exact_target().model.get_input_embeddings().weight, exact_target().model.get_output_embeddings().weight)
    for strangers in (0, 3, 0, 3):
        tree = drive.draft(levels=4, strangers=strangers)
        assert len(tree.states) >= 4
        for node, state in tree.states.items():
            path = tree.spell(node)[1:]
            assert state.numpy() == pytest.approx(SLOW[kind](head, drive.text, path).numpy(), abs=1e-8)
            probs, ids = slow_law(kind, head, drive.text, path).topk(2)
            if not strangers:
                children = tree.children(node)
                assert tree.tokens[children].tolist() == head.vocabulary[ids].tolist()
                assert tree.probs[children] == pytest.approx(probs.numpy(), abs=1e-6)
        drive.judge(tree, ENDS[end](tree, drive.noise))


@torch.inference_mode()
def test_a_parallel_head_says_nothing_below_its_last_law() -> None:
    drive = Drive(make("parallel"), exact_target(), make_text(9, 3))
    tree = drive.draft(levels=8)
    assert tree.height == DEPTH
    one = make_head("parallel", depth=1)
    assert Drive(make("parallel", one), exact_target(), make_text(9, 3)).draft(levels=4).height == 1


def test_text_that_came_without_a_draft_is_read_later() -> None:
    for kind in KINDS:
        late, early = (Drive(make(kind), exact_target(), make_text(5, 2)) for _ in range(2))
        for drive, drafts in ((late, False), (early, True)):
            for _ in range(3):
                tree = drive.draft(levels=1) if drafts else Tree(drive.text[-1])
                drive.judge(tree, ROOT)
        assert late.text == early.text
        one, other = late.draft(levels=2), early.draft(levels=2)
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.probs == pytest.approx(other.probs, abs=1e-8)


# ------------------------------------------------------------------------------------ the same text
def rounds_of(target: Any, recipe: Recipe, prompt: list[int], count: int, sampling: Sampling) -> list[Outcome]:
    """Rounds until so many tokens are out, or the context is full."""
    found: list[Outcome] = []
    for outcome in Engine(target, recipe).rounds(prompt, sampling, Keyed(3)):
        found.append(outcome)
        if sum(len(one.tokens) for one in found) >= count:
            break
    return found


def tokens_of(rounds: list[Outcome]) -> list[int]:
    return [token for outcome in rounds for token in outcome.tokens]


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
    "banned": Sampling(max_tokens=64, banned=make_head("recurrent").vocabulary.tolist()),  # all that the head knows
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
@each_kind
def test_the_text_is_plain_decodings(kind: str, shape: str, sampling: str) -> None:
    target, prompt, (policy, merged) = tiny.backend("llama"), [5, 6, 7, 5, 6], SHAPES[shape]
    drafter = Merge(drafters=[Suffix(), make(kind)]) if merged else make(kind)
    wide = Fixed(nodes=24, depth=3, width=12)
    plain = rounds_of(target, PLAIN, prompt, 40, SAMPLINGS[sampling])
    ours = rounds_of(target, Recipe(drafter, policy, Match(), wide), prompt, 40, SAMPLINGS[sampling])
    assert tokens_of(ours)[:40] == tokens_of(plain)[:40]
    if sampling == "greedy" and shape != "chain":
        assert any(outcome.verdict.accepted for outcome in ours)


@pytest.mark.parametrize("prompt", [[5], [5, 6], make_text(120, 1), make_text(127, 1)], ids=len)
@each_kind
def test_text_reaches_from_the_first_token_to_the_end_of_the_context(kind: str, prompt: list[int]) -> None:
    target, endless = tiny.backend("llama"), Sampling(max_tokens=999)
    plain = rounds_of(target, PLAIN, prompt, 999, endless)
    ours = rounds_of(target, Recipe(make(kind), Best(), Match(), Fixed(7, 4, 3)), prompt, 999, endless)
    assert tokens_of(ours) == tokens_of(plain)
    assert len(prompt) + len(tokens_of(ours)) == target.info.context


@pytest.mark.parametrize("name", [name for name in tiny.NAMES if not name.startswith("gpt")])
@pytest.mark.parametrize("kind", ["early-exit", "early-exit-rows"])
def test_exits_of_every_architecture(kind: str, name: str) -> None:
    target, prompt = tiny.backend(name), make_text(9, 1)
    recipe = Recipe(make(kind), Beam(beam=3), Match(), Fixed(nodes=12, depth=3, width=6))
    greedy = Sampling(max_tokens=20)
    layers = len(target.model.base_model.layers)
    assert tokens_of(rounds_of(target, recipe, prompt, 12, greedy))[:12] == tokens_of(
        rounds_of(target, PLAIN, prompt, 12, greedy)
    )
    assert len(target.model.base_model.layers) == layers == target.model.config.num_hidden_layers


def test_an_exit_shares_the_targets_weights() -> None:
    target: Any = tiny.backend("llama")
    drafter = make("early-exit")
    drafter.bind(Setting(target, flat(), no_loader))
    short: Any = drafter.short.backend
    assert short.model.model.layers[0] is target.model.model.layers[0]
    assert short.model.model.layers[1] is drafter.net
    assert len(short.model.model.layers) == 2
    assert short.model.get_input_embeddings() is target.model.get_input_embeddings()
    assert target.model.lm_head.weight.shape == (61, 32)


# ------------------------------------------------------------------------------------- the same law
LAWS: list[tuple[Draw, Any, Any, int]] = [
    (Draw.IID, Chain(), Speculative(), 2),
    (Draw.IID, Static(shape=[2, 1]), Mss(), 1),
    (Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1),
    (Draw.MIXED, Static(shape=[2, 1]), Mixed(), 1),
    (Draw.TOPK, Best(), Match(), 2),
]


@pytest.mark.parametrize(("draws", "policy", "verifier", "rounds"), LAWS, ids=str)
@pytest.mark.parametrize(
    ("kind", "draft_vocab"), [("early-exit", 2), ("parallel", 3), ("parallel", 2), ("recurrent", 3), ("recurrent", 2)]
)
def test_the_law_is_the_targets(
    kind: str, draws: Draw, policy: Any, verifier: Any, rounds: int, draft_vocab: int
) -> None:
    drafter = make(kind, make_head(kind, vocab=3, draft_vocab=draft_vocab), draws)
    recipe = Recipe(drafter, policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    assert law_error(recipe, three_tokens(), sampling, rounds=rounds, horizon=2) <= 1e-5  # in single precision


@cache
def three_tokens() -> TorchBackend:
    return TorchBackend(tiny.make("llama", vocab_size=3), "three tokens")


# ---------------------------------------------------------------------------------- folders and misfits
def bind(kind: str, head: Any, target: Any = None) -> Any:
    drafter = make(kind, head)
    drafter.bind(Setting(target or tiny.backend("llama"), flat(), no_loader))
    return drafter


@each_kind
def test_a_saved_head_proposes_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    head, word = make_head(kind).half().float(), make(kind).trained  # as stored
    with pytest.raises(SapwoodError, match=f"sapwood train {word} --model tiny"):
        bind(kind, "", exact_target())
    wanted = Drive(make(kind, head), exact_target(), make_text(9, 3)).draft(levels=3)
    for folder, option in ((tmp_path / "mine", str(tmp_path / "mine")), (home(word, "tiny"), "")):
        save(head, folder)
        found = Drive(make(kind, option), exact_target(), make_text(9, 3)).draft(levels=3)
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert found.probs == pytest.approx(wanted.probs, abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("early-exit", {"vocab": 50}, "50 tokens and width 32, and this one has 61 and 32"),
        ("early-exit", {"shape": Shape(16, 4, 2, 8, 24)}, "width 16, and this one has 61 and 32"),
        ("early-exit", {"layer": 2}, "after 2 layers needs a model of more layers"),
        ("parallel", {"vocab": 50}, "vocabulary of 50 and llama has 61"),
        ("parallel", {"features": (0, 1, 3)}, "layers up to 3 and llama has 2"),
        ("recurrent", {"vocab": 50}, "50 tokens and width 32, and this one has 61 and 32"),
        ("recurrent", {"layer": 3}, "after 3 layers and llama has 2"),
    ],
)
def test_a_head_for_another_target_is_refused(kind: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SapwoodError, match=words) as caught:
        bind(kind, make_head(kind, **changes))
    assert "." not in str(caught.value)


@each_kind
def test_a_head_of_another_kind_or_a_target_without_weights_is_refused(kind: str) -> None:
    other = "recurrent" if kind == "parallel" else "parallel"
    with pytest.raises(SapwoodError, match=f"got a head of the kind {other}"):
        bind(kind, make_head(other))
    with pytest.raises(SapwoodError, match="which the toy backend has not"):
        bind(kind, make_head(kind), Toy())


def test_a_head_handed_over_keeps_its_spelling_and_its_weights() -> None:
    head = make_head("recurrent")
    drafter = bind("recurrent", head, exact_target())
    assert head.fuse.weight.dtype is torch.float32
    assert drafter.net.fuse.weight.dtype is torch.float64
    assert str(recurrent.Recurrent(head=head, draws=Draw.IID)).endswith("(head='Recurrent', draws=iid)")


# ------------------------------------------------------------------------------------ draft models
@pytest.fixture
def drafts(tmp_path: Path) -> list[str]:
    """Folders of two small models for the tiny target."""
    guide, folders = Teacher(tiny.backend("llama")), [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        DraftModelCourse(width=16, heads=2, inner=24).build(guide, np.ones(61, np.int64)).save(folder)
    return list(map(str, folders))


def load_model(name: str) -> TorchBackend:
    return load(name, device="cpu", dtype="float32")[0]


def test_saved_draft_models_draft(drafts: list[str]) -> None:
    target, prompt, greedy = tiny.backend("llama"), [5, 6, 7, 5, 6], Sampling(max_tokens=64)
    merged = Merge(drafters=[Model(model=folder) for folder in drafts])
    plain = tokens_of(rounds_of(target, PLAIN, prompt, 30, greedy))
    for drafter in (Model(model=drafts[0]), merged):
        recipe = Recipe(drafter, Beam(beam=3), Match(), Fixed(nodes=24, depth=3, width=12))
        engine, ours = Engine(target, recipe, load=load_model), []
        for outcome in engine.rounds(prompt, greedy, Keyed(3)):
            assert len(outcome.tree) > 12
            ours += outcome.tokens
            if len(ours) >= 30:
                break
        assert ours[:30] == plain[:30]


def test_an_empty_model_is_the_one_trained_for_the_target(
    drafts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    setting = Setting(tiny.backend("llama"), flat(), load_model)
    with pytest.raises(SapwoodError, match=r"needs a model; write draft-model\(model='NAME'\), or make one with `sapw"):
        Model().bind(setting)
    place = home("draft-model", "llama")
    place.parent.mkdir(parents=True)
    Path(drafts[0]).rename(place)
    drafter = Model()
    drafter.bind(setting)
    assert drafter.backend.info.model == str(place)
