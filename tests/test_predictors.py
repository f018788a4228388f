"""Small trained parts: what they read, what they decide, and that none but the judge changes the text."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sapwood import methods, trained
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.ldlp import Ldlp
from sapwood.cost import flat
from sapwood.drafters.model import Model
from sapwood.engine import Engine, grow, no_loader
from sapwood.errors import SapwoodError, Unsound
from sapwood.estimators import c2t as estimate
from sapwood.estimators.c2t import entropies, features, passing
from sapwood.nets import Bundle, Net, load
from sapwood.part import Part
from sapwood.policies.best import Best
from sapwood.policies.c2t import C2t, balanced
from sapwood.policies.chain import Chain
from sapwood.policies.groups import Groups
from sapwood.policies.ltd import Ltd
from sapwood.policies.reach import value
from sapwood.policies.specdecpp import SpecDecPp
from sapwood.policies.static import Static
from sapwood.policies.thompson import Thompson
from sapwood.protocols import Policy, Setting, Verifier
from sapwood.recipe import Recipe
from sapwood.records import Budget, Draw, Guarantee, Outcome
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.testing import check_part, law_error
from sapwood.testing.contracts import check_copies, check_spelling
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.greedy import Greedy
from sapwood.verifiers.judge import Judge
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.naive import Naive
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.mindful import LAYER, Mindful, Stateful, path_state, random_net, random_part

EXACT = 1e-12
SMALL = Fixed(nodes=4, depth=2, width=2)
LONG = Fixed(nodes=3, depth=3, width=1)  # the first length at which a head has anything to say
SETTING = Setting(Mindful(), flat(), no_loader)
TABLE = {
    "policy.specdec++": "sapwood.policies.specdecpp:SpecDecPp",
    "policy.thompson": "sapwood.policies.thompson:Thompson",
    "policy.c2t": "sapwood.policies.c2t:C2t",
    "policy.ltd": "sapwood.policies.ltd:Ltd",
    "estimator.c2t": "sapwood.estimators.c2t:C2t",
    "controller.ldlp": "sapwood.controllers.ldlp:Ldlp",
    "verifier.judge": "sapwood.verifiers.judge:Judge",
}


# ------------------------------------------------------------------------------- nets and folders
def twin(net: Net) -> nn.Module:
    """The same network, built from torch's own layers."""
    layers = [nn.Linear(weight.shape[1], weight.shape[0]) for weight in net.weights]
    for layer, weight, bias in zip(layers, net.weights, net.biases, strict=True):
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    act: nn.Module = nn.SiLU() if net.activation == "silu" else nn.ReLU()

    class Twin(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            values = (values - torch.from_numpy(net.mean)) / torch.from_numpy(net.scale)
            for layer in layers[:-1]:
                after = act(layer(values))
                values = values + after if net.residual else after
            last: torch.Tensor = layers[-1](values)
            return last

    return Twin()


@pytest.mark.parametrize(("activation", "residual"), itertools.product(["relu", "silu"], [False, True]))
def test_a_net_computes_what_torch_computes(activation: str, residual: bool) -> None:
    widths = [16, 16, 16, 3] if residual else [16, 48, 8, 3]
    net = random_net(widths, 1, activation=activation, residual=residual)
    noise = np.random.default_rng(0)
    net.mean[:], net.scale[:] = noise.normal(size=16), noise.uniform(0.5, 2, size=16)
    inputs = noise.normal(size=(5, 16)).astype(np.float32)
    expected = twin(net)(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(net(inputs), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(net(inputs[2]), expected[2], rtol=1e-4, atol=1e-4)


def test_a_bundle_reads_back(tmp_path: Path) -> None:
    made = Bundle("ltd", {"depth": random_net([4, 3, 1], 0), "size": random_net([2, 2, 2], 1, residual=True)}, {"a": 1})
    made.save(tmp_path / "deep" / "down")
    found = load(str(tmp_path / "deep" / "down"), "ltd", "any")
    assert found.facts == {"a": 1}
    for name, net in made.nets.items():
        inputs = np.ones(net.width)
        coarse = dataclasses.replace(
            net, weights=[weight.astype(np.float16).astype(np.float32) for weight in net.weights]
        )
        assert np.array_equal(found.nets[name](inputs), coarse(inputs))
        assert all(weight.dtype == np.float32 for weight in found.nets[name].weights)
        assert (found.nets[name].residual, found.nets[name].activation) == (net.residual, net.activation)


def test_folders_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    random_part("c2t", tmp_path / "c2t")
    with pytest.raises(SapwoodError, match="holds a trained c2t, not judge; name another folder"):
        load(str(tmp_path / "c2t"), "judge", "any")
    with pytest.raises(SapwoodError, match=r"holds no model\.safetensors; name the folder of a trained judge"):
        load(str(tmp_path), "judge", "any")
    (tmp_path / "c2t" / "config.json").write_text("{")
    with pytest.raises(SapwoodError, match="holds no trained c2t that can be read; train it again"):
        load(str(tmp_path / "c2t"), "c2t", "any")


def test_the_users_own_training_comes_before_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trained, "SHIPPED", tmp_path / "shipped")
    with pytest.raises(SapwoodError, match="no trained c2t for org/name; make one with `sapwood train c2t --model org"):
        trained.find("c2t", "org/name")
    shipped = tmp_path / "shipped" / "org%2Fname" / "c2t"
    random_part("c2t", shipped)
    assert trained.find("c2t", "org/name") == shipped
    random_part("c2t", trained.home("c2t", "org/name"))
    assert trained.find("c2t", "org/name") == trained.home("c2t", "org/name")
    assert trained.home("c2t", "org/name").is_relative_to(tmp_path / "cache" / "drafters")


def test_folder_names_are_safe_and_differ() -> None:
    names = ["a/b", "a_b", "a%2Fb", "..", ".", "a" * 300, "a" * 301, "A b", "../../etc", "specdec++", "a\\b", "ä"]
    folders = [trained.safe(name) for name in names]
    assert len(set(folders)) == len(names)
    assert trained.safe("smollm2") == "smollm2"
    for folder in folders:
        assert len(folder) < 200
        assert not folder.startswith(".")
        assert set(folder).isdisjoint("/\\ :*?")


def test_a_local_model_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert trained.home("c2t", "mine") == trained.home("c2t", "./mine") == trained.home("c2t", str(tmp_path / "mine"))
    assert trained.home("c2t", "smollm2").parent.name == "smollm2"


# ---------------------------------------------------------------------------------- the exact law
@pytest.fixture(params=range(3))
def part_seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


CHAINS: list[tuple[Draw, Verifier]] = [
    (Draw.TOPK, Match()),
    (Draw.IID, Speculative()),
    (Draw.SWOR, Rrs()),
    (Draw.IID, Mss()),
    (Draw.MIXED, Mixed()),
]


@pytest.mark.parametrize(("draws", "verifier"), CHAINS, ids=str)
def test_specdecpp_keeps_the_law(draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path) -> None:
    weights = random_part("specdec++", tmp_path, part_seed)
    policy = SpecDecPp(threshold=0.6, weights=weights)
    recipe = Recipe(Stateful(model=Toy("draft"), draws=draws), policy, verifier, LONG)
    assert law_error(recipe, Toy("a")) <= EXACT


@pytest.mark.parametrize("cutoff", [0.0, 0.7])
@pytest.mark.parametrize(("draws", "verifier"), CHAINS, ids=str)
def test_thompson_keeps_the_law(draws: Draw, verifier: Verifier, cutoff: float, part_seed: int) -> None:
    policy = Thompson(cutoff=cutoff, seed=part_seed, yes=1.0, no=1.0)
    recipe = Recipe(Model(model=Toy("draft"), draws=draws), policy, verifier, SMALL)
    assert law_error(recipe, Toy("a"), rounds=2) <= EXACT


@pytest.mark.parametrize(("draws", "verifier"), [(Draw.TOPK, Match()), (Draw.TOPK, Naive()), (Draw.SWOR, Naive())])
@pytest.mark.parametrize("kind", ["c2t", "ltd"])
def test_policies_that_cut_nodes_keep_the_law(
    kind: str, draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path
) -> None:
    weights = random_part(kind, tmp_path, part_seed)
    policy: Policy = C2t(weights=weights) if kind == "c2t" else Ltd(weights=weights, beam=2)
    recipe = Recipe(Model(model=Toy("draft"), draws=draws), policy, verifier, SMALL)
    assert law_error(recipe, Toy("a"), rounds=2 if draws is Draw.TOPK else 1, horizon=2) <= EXACT


@pytest.mark.parametrize("policy", [C2t(), Ltd()], ids=str)
def test_policies_that_cut_nodes_are_refused_where_q_is_read(policy: Policy) -> None:
    with pytest.raises(Unsound, match="cuts single nodes"):
        Recipe(Model(model=Toy("draft"), draws=Draw.SWOR), policy, Rrs(), SMALL)


@pytest.mark.parametrize(("draws", "verifier"), [(Draw.SWOR, Rrs()), (Draw.IID, Mss()), (Draw.MIXED, Mixed())])
def test_the_classifier_values_groups_of_draws_lawfully(
    draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path
) -> None:
    estimator = estimate.C2t(weights=random_part("c2t", tmp_path, part_seed))
    recipe = Recipe(Model(model=Toy("draft"), draws=draws), Groups(floor=0.3, estimator=estimator), verifier, SMALL)
    assert law_error(recipe, Toy("a"), horizon=2) <= EXACT


@pytest.mark.parametrize(("draws", "verifier"), CHAINS, ids=str)
def test_ldlp_keeps_the_law(draws: Draw, verifier: Verifier, part_seed: int, tmp_path: Path) -> None:
    controller = Ldlp(most=2, nodes=4, width=2, weights=random_part("ldlp", tmp_path, part_seed))
    recipe = Recipe(Model(model=Toy("draft"), draws=draws), Chain(), verifier, controller)
    assert law_error(recipe, Mindful("a"), rounds=2) <= EXACT


class Peeking(SpecDecPp):
    """Drops the newest draft by its own probability: what rule 2 of soundness forbids."""

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        path = [node for node in range(len(tree)) if tree.probs[tree.path(node)].min() > 0.5]
        return super().prune(tree, budget).keep(path)


def test_the_law_check_sees_a_head_that_drops_what_it_dislikes(tmp_path: Path) -> None:
    policy = Peeking(weights=random_part("specdec++", tmp_path))
    recipe = Recipe(Stateful(model=Toy("draft"), draws=Draw.IID), policy, Speculative(), SMALL)
    assert law_error(recipe, Toy("a")) > 1e-3


# -------------------------------------------------------------------------------------- specdec++
def bound(part: Part, setting: Setting = SETTING) -> Part:
    part.bind(setting)
    return part


def head(bias: float, *weights: float) -> Bundle:
    """A head whose log odds of acceptance are a line over the state."""
    line = np.array([weights], np.float32)
    zeros, ones = np.zeros(len(weights), np.float32), np.ones(len(weights), np.float32)
    return Bundle("specdec++", {"head": Net([line], [np.array([bias], np.float32)], zeros, ones)})


def chain_of(policy: Policy, depth: int = 20) -> Tree:
    """The chain that a policy grows over a drafter that always goes on."""
    drafter = Stateful(model=Toy("draft"))
    recipe = Recipe(drafter, policy, Match(), Fixed(nodes=depth, depth=depth, width=1))
    return next(Engine(Toy(), recipe).rounds([0, 1, 2], Sampling(), Keyed(0))).grown


@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_a_chain_ends_when_a_refusal_is_likely(threshold: float, tmp_path: Path) -> None:
    chance = 0.8
    head(math.log(chance / (1 - chance)), 0, 0, 0).save(tmp_path)
    tree = chain_of(SpecDecPp(threshold=threshold, weights=str(tmp_path)))
    tested = next(count for count in itertools.count(1) if 1 - chance**count > threshold)
    assert tree.height == tested + 1  # the newest token is never tested, and stays


def test_a_head_reads_the_state_of_each_token_it_has_read(tmp_path: Path) -> None:
    head(0.3, 1, -1, 0.5).save(tmp_path)
    policy = bound(SpecDecPp(weights=str(tmp_path)))
    assert isinstance(policy, SpecDecPp)
    tree = chain_of(SpecDecPp(threshold=1.0, weights=str(tmp_path)), depth=4)
    read = [path_state(tree.spell(node)) for node in range(1, 4)]  # not the root, not the last
    odds = [0.3 + state @ np.array([1, -1, 0.5]) for state in read]
    assert policy.refusal(tree) == pytest.approx(1 - math.prod(1 / (1 + math.exp(-one)) for one in odds), rel=1e-5)


def test_bounds_of_the_chain_hold(tmp_path: Path) -> None:
    head(99.0, 0, 0, 0).save(tmp_path / "sure")
    head(-99.0, 0, 0, 0).save(tmp_path / "never")
    assert chain_of(SpecDecPp(most=7, weights=str(tmp_path / "sure"))).height == 7
    assert chain_of(SpecDecPp(weights=str(tmp_path / "sure")), depth=5).height == 5
    assert chain_of(SpecDecPp(weights=str(tmp_path / "never"))).height == 2


def test_a_drafter_without_states_is_refused(tmp_path: Path) -> None:
    policy = SpecDecPp(weights=random_part("specdec++", tmp_path))
    recipe = Recipe(Model(model=Toy("draft")), policy, Match(), Fixed(depth=4))
    with pytest.raises(SapwoodError, match="this drafter keeps none; use a trained one"):
        next(Engine(Toy(), recipe).rounds([0, 1, 2], Sampling(), Keyed(0)))
    head(0, 1, 1).save(tmp_path / "narrow")
    with pytest.raises(SapwoodError, match="was trained on 2 inputs and gets 3"):
        chain_of(SpecDecPp(weights=str(tmp_path / "narrow")))


# --------------------------------------------------------------------------------------- thompson
def played(
    recipe: Recipe, rounds: int, target: Toy | None = None, prompt: tuple[int, ...] = (0, 1, 2)
) -> list[Outcome]:
    steps = Engine(target or Toy(), recipe).rounds(prompt, Sampling(max_tokens=3000), Keyed(0))
    return list(itertools.islice(steps, rounds))


def test_thompson_learns_how_long_chains_stand() -> None:
    good, bad = Model(model=Toy("target")), Model(model=Toy("other"))
    depths = {}
    for name, drafter in (("good", good), ("bad", bad)):
        recipe = Recipe(drafter, Thompson(fade=1.0), Match(), Fixed(nodes=20, depth=20, width=1))
        depths[name] = np.mean([outcome.tree.height for outcome in played(recipe, 60)[20:]])
    assert depths["good"] > 8  # the draft is the target itself
    assert depths["bad"] < 4


def test_thompson_counts_each_depth_once_it_was_tested() -> None:
    policy = bound(Thompson(fade=1.0))
    assert isinstance(policy, Thompson)
    recipe = Recipe(Model(model=Toy("draft")), policy, Match(), Fixed(nodes=9, depth=9, width=1))
    engine = Engine(Toy(), recipe)
    rounds = list(itertools.islice(engine.rounds([0, 1, 2], Sampling(max_tokens=200), Keyed(0)), 30))
    counts = engine.recipe.policy.counts  # type: ignore[attr-defined]
    yes = [sum(outcome.verdict.accepted > depth for outcome in rounds) for depth in range(9)]
    no = [sum(one.verdict.accepted == depth < one.tree.height for one in rounds) for depth in range(9)]
    assert counts[:9].tolist() == [[float(a), float(b)] for a, b in zip(yes, no, strict=True)]


def test_thompson_draws_from_the_beta_law() -> None:
    policy = bound(Thompson(yes=3.0, no=2.0))
    assert isinstance(policy, Thompson)
    policy.counts[2] = [4.0, 1.0]  # pooled with what it began with: 7 to 3, worth five
    law, grid = policy.posterior(2), (np.arange(64) + 0.5) / 64
    yes, no = 4.0 + 3.5, 1.0 + 1.5
    assert law @ grid == pytest.approx(yes / 10, abs=1e-3)
    assert law @ grid**2 - (law @ grid) ** 2 == pytest.approx(yes * no / (10**2 * 11), abs=1e-3)
    assert policy.posterior(9) @ grid == pytest.approx(7 / 10, abs=1e-3)  # never reached: the record of all depths


def test_thompsons_noise_depends_on_seed_and_place_alone() -> None:
    def depths(seed: int, prompt: tuple[int, ...] = (0, 1, 2)) -> list[int]:
        recipe = Recipe(Model(model=Toy()), Thompson(seed=seed), Match(), Fixed(nodes=20, depth=20, width=1))
        return [outcome.tree.height for outcome in played(recipe, 12, prompt=prompt)]

    assert depths(0) == depths(0)
    assert depths(0) != depths(1)
    assert depths(0) != depths(0, (1, 1, 2))


# -------------------------------------------------------------------------------------------- c2t
def forked() -> Tree:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.5, 0.25])
    tree.extend(1, [1, 2], [0.8, 0.2])
    tree.extend(3, [1, 2], [0.9, 0.6])  # two drafters that agree: more than one in all
    return tree


def test_entropy_is_that_of_the_children_and_the_rest() -> None:
    found = entropies(forked())
    assert found[0] == pytest.approx(-0.5 * math.log(0.5) - 2 * 0.25 * math.log(0.25))
    assert found[1] == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2))
    assert found[3] == pytest.approx(-0.6 * math.log(0.6) - 0.4 * math.log(0.4))
    assert found[2] == found[4] == 0.0  # no children: nothing is known, and nothing asks


def test_features_are_joint_probability_entropy_and_depth() -> None:
    tree = forked()
    rows, entropy = features(tree), entropies(tree)
    joint = np.array([0.5, 0.25, 0.4, 0.1, 0.36, 0.24])
    assert rows[1:, 0].tolist() == pytest.approx(np.log(joint / (1 - joint)).tolist())
    assert rows[0, 0] == 8  # sure, within bounds
    assert rows[1:, 1].tolist() == pytest.approx([entropy[p] for p in (0, 0, 1, 1, 3, 3)])
    assert (rows[:, 2] * 10).tolist() == pytest.approx([0, 1, 1, 2, 2, 3, 3])


def test_the_estimators_reach_is_the_classifiers_score(tmp_path: Path) -> None:
    estimator = bound(estimate.C2t(weights=random_part("c2t", tmp_path)))
    assert isinstance(estimator, estimate.C2t)
    tree = forked()
    score = passing(tree, estimator.net)
    assert value(tree, estimator) == pytest.approx(score)
    assert (score[1:] <= score[tree.parents[1:]]).all()
    whole = estimator.chance(forked(), 1)
    assert whole[3:] == pytest.approx(estimator.chance(forked(), 4))


def test_the_policy_keeps_what_passes_and_the_best_of_each_level(tmp_path: Path) -> None:
    bias = np.array([-4 * math.log(0.38 / 0.62)], np.float32)
    joint = Net([np.array([[4.0, 0, 0]], np.float32)], [bias], np.zeros(3), np.ones(3))
    Bundle("c2t", {"classifier": joint}, {"base": 0.5}).save(tmp_path)
    tree = bound(C2t(weights=str(tmp_path))).prune(forked(), Budget(9, 9, 9))  # type: ignore[attr-defined]
    assert tree.kept.tolist() == [0, 1, 3]  # joint above 0.38
    Bundle("c2t", {"classifier": joint}, {"base": 0.01}).save(tmp_path)  # one in a hundred is half of all, balanced
    every = bound(C2t(weights=str(tmp_path))).prune(forked(), Budget(9, 9, 9))  # type: ignore[attr-defined]
    assert len(every) == 6  # all but the one of joint probability 0.1
    narrow = bound(C2t(weights=str(tmp_path), level=1)).prune(forked(), Budget(9, 9, 9))  # type: ignore[attr-defined]
    assert narrow.kept.tolist() == [0, 1, 3, 5]
    few = bound(C2t(weights=str(tmp_path))).prune(forked(), Budget(2, 9, 9))  # type: ignore[attr-defined]
    assert few.kept.tolist() == [0, 1, 3]


def test_balancing_moves_the_base_rate_to_one_half() -> None:
    assert balanced(np.array([0.01, 0.5, 1.0, 0.0]), 0.01).tolist() == pytest.approx([0.5, 0.99, 1.0, 0.0])


# -------------------------------------------------------------------------------------------- ltd
def constant(widths: tuple[int, int], *outputs: float) -> Net:
    zeros = np.zeros((widths[1], widths[0]), np.float32)
    return Net([zeros], [np.array(outputs, np.float32)], zeros[0], zeros[0] + 1)


@pytest.mark.parametrize(("onward", "depth"), [(-1.0, 1), (1.0, 4)])
@pytest.mark.parametrize(("votes", "size"), [((1.0, 0.0, 0.0), 1), ((0.0, 0.0, 1.0), 4)])
def test_the_two_policies_set_depth_and_size(
    onward: float, depth: int, votes: tuple[float, ...], size: int, tmp_path: Path
) -> None:
    nets = {"depth": constant((12, 1), onward), "size": constant((5, 3), *votes)}
    Bundle("ltd", nets, {"sizes": [1, 2, 4], "deepest": 4}).save(tmp_path)
    recipe = Recipe(Model(model=Toy("draft")), Ltd(weights=str(tmp_path)), Match(), Fixed(nodes=9, depth=9, width=3))
    outcome = played(recipe, 1)[0]
    assert outcome.grown.height == depth
    assert len(outcome.tree) - 1 == min(size, len(outcome.grown) - 1)
    assert sorted(outcome.tree.reach[1:]) == pytest.approx(sorted(outcome.grown.reach[1:])[-size:])


def test_the_depth_policy_stops_where_the_draft_grows_faint(tmp_path: Path) -> None:
    best = np.zeros((1, 12), np.float32)
    best[0, 0] = 1.0  # the likeliest node of the level
    line = Net([best], [np.array([-math.log(0.2)], np.float32)], np.zeros(12), np.ones(12))
    Bundle("ltd", {"depth": line, "size": constant((3, 1), 1.0)}, {"sizes": [99], "deepest": 9}).save(tmp_path)
    recipe = Recipe(Model(model=Toy("draft")), Ltd(weights=str(tmp_path)), Match(), Fixed(nodes=99, depth=9, width=3))
    for outcome in played(recipe, 10):
        tree = outcome.grown
        tops = [tree.reach[tree.level(depth)].max() for depth in range(1, tree.height + 1)]
        assert all(top > 0.2 for top in tops[:-1])
        assert tops[-1] <= 0.2 or tree.height == 9


# ------------------------------------------------------------------------------------------- ldlp
def test_ldlp_reads_the_last_state_and_the_token_that_followed(tmp_path: Path) -> None:
    net = random_net([6, 8, 1], 3)
    Bundle("ldlp", {"length": net}, {"layer": LAYER}).save(tmp_path)
    target, controller = Mindful(), Ldlp(most=9, width=1, weights=str(tmp_path))
    recipe = Recipe(Model(model=Toy("target")), Chain(), Match(), controller)
    text, depths = [0, 1, 2], []
    for outcome in played(recipe, 12, target):
        state = target.scores([tuple(text[:-1])]).rows[0]
        said = net(np.concatenate((state, np.eye(3)[text[-1]])))[0]
        depths.append(min(max(round(float(said)), 0), 9))
        assert outcome.tree.height == depths[-1]
        text += outcome.tokens
    assert len(set(depths)) > 2
    assert LAYER in target.watched


def test_ldlp_begins_at_its_start_where_nothing_was_read(tmp_path: Path) -> None:
    controller = Ldlp(start=3, width=1, weights=random_part("ldlp", tmp_path))
    recipe = Recipe(Model(model=Toy("target")), Chain(), Match(), controller)
    assert played(recipe, 1, Mindful(), prompt=(1,))[0].tree.height == 3


def test_parts_that_read_states_need_a_target_that_shows_them(tmp_path: Path) -> None:
    drafter, controller = Model(model=Toy("draft")), Ldlp(weights=random_part("ldlp", tmp_path / "ldlp"))
    with pytest.raises(SapwoodError, match=r"needs hidden, which the toy backend does not .* use another controller"):
        Engine(Toy(), Recipe(drafter, Chain(), Match(), controller))
    judge = Judge(weights=random_part("judge", tmp_path / "judge"))
    with pytest.raises(SapwoodError, match=r"needs hidden, which the toy backend does not .* use another verifier"):
        Engine(Toy(), Recipe(drafter, Chain(), judge, Fixed()))


# ------------------------------------------------------------------------------------------ judge
def text_of(verifier: Verifier, sampling: Sampling, target: Toy | None = None) -> list[int]:
    recipe = Recipe(Model(model=Toy("draft")), Static(shape=[2, 1, 1]), verifier, Fixed())
    steps = Engine(target or Mindful(), recipe).rounds([0, 1, 2], sampling, Keyed(sampling.seed))
    return [token for outcome in itertools.islice(steps, 12) for token in outcome.tokens][:20]


@pytest.fixture
def kind_judge(tmp_path: Path) -> str:
    """A folder with a judge that finds everything harmless."""
    certain = Net([np.zeros((1, 3), np.float32)], [np.array([99.0], np.float32)], np.zeros(3), np.ones(3))
    Bundle("judge", {"judge": certain}, {"layer": LAYER}).save(tmp_path)
    return str(tmp_path)


def test_a_judge_that_excuses_nothing_is_the_greedy_walk(kind_judge: str) -> None:
    greedy = Sampling(max_tokens=64)
    strict = Judge(threshold=1.0, weights=kind_judge)
    assert text_of(strict, greedy) == text_of(Greedy(), greedy)
    sampled = Sampling(temperature=1.0, max_tokens=64, seed=4)
    assert text_of(strict, sampled) == text_of(Match(), sampled)
    assert text_of(Judge(threshold=0.9, weights=kind_judge), greedy) != text_of(Greedy(), greedy)


def test_a_strict_judge_keeps_the_law(kind_judge: str) -> None:
    strict = Judge(threshold=1.0, weights=kind_judge)
    recipe = Recipe(Model(model=Toy("draft")), Static(shape=[2, 1]), strict, SMALL)
    assert law_error(recipe, Mindful("a"), rounds=2) <= EXACT
    lenient = Recipe(Model(model=Toy("draft")), Static(shape=[2, 1]), Judge(weights=kind_judge), SMALL)
    assert law_error(lenient, Mindful("a")) > 1e-3  # it says LOSSY, and it is


def test_the_judge_excuses_the_most_harmless_child(tmp_path: Path) -> None:
    line = Net([np.eye(3, dtype=np.float32)[:1]], [np.array([1.0], np.float32)], np.zeros(3), np.ones(3))
    Bundle("judge", {"judge": line}, {"layer": LAYER}).save(tmp_path)
    recipe = Recipe(Model(model=Toy("draft")), Static(shape=[2, 1]), Judge(weights=str(tmp_path)), Fixed())
    excused = 0
    for outcome in played(recipe, 40, Mindful()):
        tree, path, best = outcome.tree, list(outcome.verdict.path), outcome.scores.argmax()
        for parent, child in itertools.pairwise(path):
            if tree.child(parent, int(best[parent])) is None:
                others = tree.children(parent)
                odds = {node: 1 + outcome.scores.logits(node)[0] for node in others}
                assert child == max(others, key=lambda node: odds[node])
                assert odds[child] > 0
                excused += 1
            else:
                assert tree.tokens[child] == best[parent]
    assert excused > 5


def test_the_judge_says_what_it_is() -> None:
    assert Judge().guarantee is Guarantee.LOSSY
    with pytest.raises(Unsound, match="cannot judge iid drafts, it judges topk"):
        Recipe(Model(model=Toy("draft"), draws=Draw.IID), Chain(), Judge(), Fixed())


# -------------------------------------------------------------------------------------- contracts
def test_every_part_keeps_the_contract_of_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "TABLE", methods.TABLE | TABLE)
    folders = {kind: random_part(kind, tmp_path / kind) for kind in ("c2t", "ltd")}
    check_part("policy", methods.lookup("policy", "thompson")())
    for family, kind in (("policy", "c2t"), ("policy", "ltd"), ("estimator", "c2t")):
        check_part(family, methods.lookup(family, kind)(weights=folders[kind]))  # type: ignore[call-arg]
    for family, kind in (("policy", "specdec++"), ("controller", "ldlp"), ("verifier", "judge")):
        part = methods.lookup(family, kind)(weights="some/folder")  # type: ignore[call-arg]
        check_spelling(family, part)
        check_copies(part)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpecDecPp(threshold=2.0), "threshold=2.0 must be from 0 to 1"),
        (lambda: SpecDecPp(most=0), "most=0 must be at least 1"),
        (lambda: Thompson(no=0.0), "no=0.0 must be from"),
        (lambda: C2t(least=-1.0), "least=-1.0 must be from 0 to 1"),
        (lambda: Ltd(beam=0), "beam=0 must be at least 1"),
        (lambda: Ldlp(most=0), "most=0 must be at least 1"),
        (lambda: Judge(threshold=1.5), "threshold=1.5 must be from 0 to 1"),
    ],
)
def test_senseless_options_are_refused(make: type[Part], message: str) -> None:
    with pytest.raises(SapwoodError, match=message):
        make()


def test_a_part_that_was_never_trained_says_how_to_train_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    recipe = Recipe(Stateful(model=Toy("draft")), SpecDecPp(), Match(), Fixed())
    with pytest.raises(SapwoodError, match=r"no trained specdec\+\+ for toy-target; make one with `sapwood train spec"):
        Engine(Toy(), recipe)


def test_growth_without_a_frontier_ends(tmp_path: Path) -> None:
    policy = bound(Ltd(weights=random_part("ltd", tmp_path)))
    policy.context_ = 3  # type: ignore[attr-defined]
    drafter = Model(model=Toy("draft"))
    recipe = Recipe(drafter, Best(), Match(), Fixed())
    engine = Engine(Toy(), recipe)
    assert len(grow(0, engine.recipe.drafter, policy, Budget(0, 0, 0), Keyed(0))) == 1  # type: ignore[arg-type]
