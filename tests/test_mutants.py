"""Each known way to break losslessness is broken on purpose, and a named check must notice.

A mutant is a small patch of one rule. `CATCHERS` maps the name of a check to the check itself,
which returns how far the patched engine departs (0 when nothing is wrong); the same checks guard
the real code in test_lossless.py, test_same_text.py and test_waist_toy.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sapwood.backends import toy
from sapwood.backends.toy import ToyBackend, ToyOutput, ToySession
from sapwood.core.protocols import TargetProbs, TreeInput
from sapwood.core.rng import KeyedRng, NoiseKey, NoiseUse, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Verdict
from sapwood.drafters import propose as draw_module
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.policies.best import Best
from sapwood.policies.static import Static
from sapwood.testing import check_backend, law_error
from sapwood.verifiers import match as match_module
from sapwood.verifiers import walk as walk_module
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.naive import Naive
from sapwood.verifiers.rrs import Rrs
from tests.helpers.toy_texts import text_of
from tests.helpers.unchecked_recipes import unchecked

Patch = Callable[[pytest.MonkeyPatch], None]


def probs(draws: Draw, policy: Any, verifier: Any, sampling: Sampling | None = None) -> float:
    """Worst departure from the target's law over a few toy targets."""
    try:
        return max(
            law_error(unchecked(draws, policy, verifier), ToyBackend(salt), sampling)
            for salt in "abc"
        )
    except AssertionError as fault:  # the enumerator refuses noise that is used twice
        return float("used twice" in str(fault))


def cut_short(draws: Draw, verifier: Any) -> float:
    """The same where trees go deeper than the request wants, as those do that a device has begun before."""
    room = RequestDecoder.room
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RequestDecoder, "room", lambda self, most, *, begun=False: room(self, most, begun=True)
        )
        return max(
            probs(draws, TREE, verifier, Sampling(temperature=1.0, max_tokens=most))
            for most in (1, 2)
        )


def same_text(sampling: Sampling) -> float:
    """Share of seeds whose text differs from the definition of plain decoding."""
    pairs = [
        (text_of(Best(), Match(), sampling, seed), plain_text(sampling, seed)) for seed in range(5)
    ]
    return float(np.mean([ours != theirs for ours, theirs in pairs]))


def plain_text(sampling: Sampling, seed: int) -> list[int]:
    """Plain decoding by its definition: no engine, no tree."""
    prompt = [0, 1, 2]
    text = list[int]()
    while len(text) < 24:
        logits = np.log(toy.probs_after("target", 3, (*prompt, *text)))
        probs = Sampler(sampling, prompt).probs(logits, text)
        text.append(
            int(np.argmax(probs))
            if sampling.greedy
            else KeyedRng(seed).pick(probs, NoiseKey(len(prompt) + len(text)))
        )
    return text


def waist() -> float:
    """1 when the toy backend breaks a promise of the waist."""
    try:
        check_backend(ToyBackend(vocab=5, context=64))
    except (AssertionError, ValueError):
        return 1.0
    return 0.0


TREE = Static(shape=[2, 1])
SAMPLED = Sampling(temperature=1.0, max_tokens=32)
PENALISED = Sampling(temperature=1.0, repetition_penalty=1.7, frequency_penalty=0.5, max_tokens=32)
CATCHERS: dict[str, Callable[[], float]] = {
    "exact law of mss on independent draws": lambda: probs(Draw.IID, TREE, Mss()),
    "exact law of rrs on draws without replacement": lambda: probs(Draw.SWOR, TREE, Rrs()),
    "exact law of mixed draws": lambda: probs(Draw.MIXED, TREE, Mixed()),
    "exact law of naive": lambda: probs(Draw.TOPK, TREE, Naive()),
    "exact law of match": lambda: probs(Draw.TOPK, TREE, Match()),
    "exact law of match with penalties": lambda: probs(Draw.TOPK, TREE, Match(), PENALISED),
    "exact law of match where a request ends inside a tree": lambda: cut_short(Draw.TOPK, Match()),
    "exact law of rrs where a request ends inside a tree": lambda: cut_short(Draw.SWOR, Rrs()),
    "exact law of mixed where a request ends inside a tree": lambda: cut_short(Draw.MIXED, Mixed()),
    "same seed, same text": lambda: same_text(SAMPLED),
    "same seed, same text, with penalties": lambda: same_text(PENALISED),
    "contract of the waist": waist,
}


# ------------------------------------------------------------------------------------- the mutants
def residual_is_p(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk_module, "residual", lambda r, q: r)


def residual_of_q(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk_module, "residual", lambda r, q: q)


def refused_token_keeps_its_place_in_q(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(walk_module, "without", lambda q, tokens: q)


def independent_draws_lose_the_refused_token(patch: pytest.MonkeyPatch) -> None:
    original = walk_module.refuse_in_turn
    patch.setattr(
        walk_module, "refuse_in_turn", lambda *args, replacement: original(*args, replacement=False)
    )


def accept_without_a_coin(patch: pytest.MonkeyPatch) -> None:
    original = walk_module.refuse_in_turn
    patch.setattr(
        walk_module,
        "refuse_in_turn",
        lambda tree, children, p, position, rng, replacement: original(
            tree, children, p, position, Coinless(rng), replacement=replacement
        ),
    )


class Coinless:
    """Accepts when p >= q and refuses otherwise."""

    def __init__(self, rng: Rng) -> None:
        self.rng = rng

    def flip(self, chance: float, place: NoiseKey) -> bool:
        return chance >= 1

    def pick(self, probs: Any, place: NoiseKey) -> int:
        return self.rng.pick(probs, place)


def siblings_judged_in_reverse(patch: pytest.MonkeyPatch) -> None:
    original = walk_module.refuse_in_turn
    patch.setattr(
        walk_module,
        "refuse_in_turn",
        lambda tree, children, *rest, replacement: original(
            tree, children[::-1], *rest, replacement=replacement
        ),
    )


def bonus_from_q(patch: pytest.MonkeyPatch) -> None:
    original = PathProbs.probs

    def law_or_q(self: PathProbs, node: int) -> Any:
        drafted = toy.probs_after("draft", 3, (0, 1, *self.tree.spell(node)))
        return original(self, node) if self.tree.children(node) else drafted

    patch.setattr(PathProbs, "probs", law_or_q)


def path_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = PathProbs.probs
    patch.setattr(
        PathProbs, "probs", lambda self, node: original(self, max(int(self.tree.parents[node]), 0))
    )


def penalties_forget_the_path(patch: pytest.MonkeyPatch) -> None:
    original = Sampler.adjust
    patch.setattr(Sampler, "adjust", lambda self, logits, path: original(self, logits, []))


def penalties_forget_the_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sampler, "commit", lambda self, tokens: None)


def one_draw_per_leaf(patch: pytest.MonkeyPatch) -> None:
    """Every root-to-leaf row draws for itself, and the longest match wins."""

    def verify(self: Match, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        best = Verdict((ROOT,), -1)
        leaves = [node for node in range(len(tree)) if not tree.children(node)]
        for row, leaf in enumerate(leaves):
            path = [ROOT]
            token = -1
            for node in tree.path(leaf)[1:]:
                token = rng.pick(target.probs(path[-1]), NoiseKey(position + len(path), slot=row))
                if token != tree.tokens[node]:
                    break
                path.append(node)
            else:
                token = rng.pick(target.probs(path[-1]), NoiseKey(position + len(path), slot=row))
            if best.bonus < 0 or len(path) > len(best.path):
                best = Verdict(tuple(path), token)
        return best

    patch.setattr(Match, "verify", verify)


def noise_by_count(patch: pytest.MonkeyPatch) -> None:
    original = KeyedRng.pick
    count = iter(range(10**9))
    patch.setattr(
        KeyedRng, "pick", lambda self, probs, place: original(self, probs, NoiseKey(next(count)))
    )


def draft_shares_the_targets_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NoiseUse, "DRAFT", NoiseUse.TARGET)
    patch.setattr(draw_module, "branch", lambda tree, node: 0)


def accept_by_threshold(patch: pytest.MonkeyPatch) -> None:
    """Accept any child whose target probability clears a bar."""
    original = match_module.follow

    def verify(self: Match, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        for child in tree.children(ROOT):
            if target.probs(ROOT)[tree.tokens[child]] > 0.3:
                return Verdict((ROOT, child), rng.pick(target.probs(child), NoiseKey(position + 2)))
        return original(tree, target, position, rng)

    patch.setattr(Match, "verify", verify)


def law_of_the_whole_vocabulary_for_a_restricted_draw(patch: pytest.MonkeyPatch) -> None:
    """Mixed draws come from q without the chosen tokens, but are judged by all of q."""
    original = Tree.proposal
    patch.setattr(
        Tree,
        "proposal",
        lambda self, node, child: (
            (original(self, node, child) + toy.probs_after("draft", 3, (0,))) / 2
        ),
    )


def commit_drops_the_last_node(patch: pytest.MonkeyPatch) -> None:
    original = ToySession.commit
    patch.setattr(ToySession, "commit", lambda self, path: original(self, path[:-1] or path))


def bonus_behind_tokens_that_are_not_wanted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Verdict, "within", lambda self, tokens, tree: Verdict(self.path[:tokens], self.bonus)
    )


def a_wanted_token_said_twice(patch: pytest.MonkeyPatch) -> None:
    def within(self: Verdict, tokens: int, tree: Tree) -> Verdict:
        short = len(self.path) <= tokens
        return (
            self if short else Verdict(self.path[:tokens], int(tree.tokens[self.path[tokens - 1]]))
        )

    patch.setattr(Verdict, "within", within)


def rewind_one_too_far(patch: pytest.MonkeyPatch) -> None:
    original = ToySession.rewind
    patch.setattr(ToySession, "rewind", lambda self, length: original(self, max(length - 1, 0)))


def fork_shares_the_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ToySession, "fork", lambda self: ToySession(self.tokens, self.model, self.table))


def context_by_index(patch: pytest.MonkeyPatch) -> None:
    """Each node sees every node before it, as if the tree were a line."""

    def score(self: ToyBackend, work: TreeInput) -> ToyOutput:
        session, tree = work.session, work.tree
        assert isinstance(session, ToySession)
        session.tree = tree
        contexts = [
            (*session.tokens, *tree.tokens[: node + 1].tolist())
            for node in range(work.since, len(tree))
        ]
        return ToyOutput(
            np.log([toy.probs_after(self.salt, self.vocab, context) for context in contexts])
        )

    patch.setattr(ToyBackend, "_score", score)


def rows_ignore_since(patch: pytest.MonkeyPatch) -> None:
    original = ToyBackend._score
    patch.setattr(
        ToyBackend,
        "_score",
        lambda self, work: original(self, TreeInput(work.session, work.tree, 0)),
    )


MUTANTS: list[tuple[Patch, str]] = [
    (residual_is_p, "exact law of rrs on draws without replacement"),
    (residual_is_p, "exact law of mss on independent draws"),
    (residual_of_q, "exact law of mixed draws"),
    (refused_token_keeps_its_place_in_q, "exact law of rrs on draws without replacement"),
    (independent_draws_lose_the_refused_token, "exact law of mss on independent draws"),
    (accept_without_a_coin, "exact law of mss on independent draws"),
    (siblings_judged_in_reverse, "exact law of rrs on draws without replacement"),
    (bonus_from_q, "exact law of match"),
    (path_off_by_one, "exact law of naive"),
    (penalties_forget_the_path, "exact law of match with penalties"),
    (penalties_forget_the_path, "same seed, same text, with penalties"),
    (penalties_forget_the_text, "same seed, same text, with penalties"),
    (one_draw_per_leaf, "exact law of match"),
    (noise_by_count, "same seed, same text"),
    (draft_shares_the_targets_noise, "exact law of rrs on draws without replacement"),
    (accept_by_threshold, "exact law of match"),
    (law_of_the_whole_vocabulary_for_a_restricted_draw, "exact law of mixed draws"),
    (
        bonus_behind_tokens_that_are_not_wanted,
        "exact law of match where a request ends inside a tree",
    ),
    (
        bonus_behind_tokens_that_are_not_wanted,
        "exact law of rrs where a request ends inside a tree",
    ),
    (a_wanted_token_said_twice, "exact law of mixed where a request ends inside a tree"),
    (commit_drops_the_last_node, "contract of the waist"),
    (rewind_one_too_far, "contract of the waist"),
    (fork_shares_the_text, "contract of the waist"),
    (context_by_index, "contract of the waist"),
    (rows_ignore_since, "contract of the waist"),
]


@pytest.mark.parametrize("check", CATCHERS, ids=str)
def test_the_real_code_passes(check: str) -> None:
    assert CATCHERS[check]() <= 1e-12


@pytest.mark.parametrize(
    ("mutant", "check"), MUTANTS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_the_mutant_is_caught(mutant: Patch, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert CATCHERS[check]() > 1e-3, f"{mutant.__name__} slipped past: {check}"


UNSOUND: list[tuple[str, Draw, Any, Any]] = [
    ("draws without replacement judged as independent", Draw.SWOR, TREE, Mss()),
    ("independent draws judged as without replacement", Draw.IID, TREE, Rrs()),
    ("sampled nodes reranked by q under rrs", Draw.SWOR, Best(), Rrs()),
    ("sampled nodes reranked by q under mss", Draw.IID, Best(), Mss()),
]


@pytest.mark.parametrize(
    ("draws", "policy", "verifier"), [row[1:] for row in UNSOUND], ids=[row[0] for row in UNSOUND]
)
def test_what_the_recipe_refuses_is_biased(draws: Draw, policy: Any, verifier: Any) -> None:
    assert probs(draws, policy, verifier) > 1e-3
