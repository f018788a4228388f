"""Modules for several tokens in a checkpoint: read as laid out, drafting as defined, the text and law of plain decoding."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sapwood.backends.torch import mtp_module
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import load, read_quietly
from sapwood.backends.torch.mtp_module import MtpJoin
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose import draft_model
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.mtp import Mtp
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.errors import SapwoodError
from sapwood.policies.beam import Beam
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.recipes.available import can_run
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers import mtp_checkpoints, tiny_models
from tests.helpers.engine_rounds import make_text, rounds_until, same_on_24_prompts, tokens_of
from tests.helpers.head_checks import misstated

each_layout = pytest.mark.parametrize("layout", mtp_checkpoints.LAYOUTS)
WIDE = Fixed(nodes=12, depth=3, width=3)


# ---------------------------------------------------------------------------- against a reference
@cache
def module(layout: str) -> mtp_module.MtpBackend:
    """The module of a checkpoint, for its layer alone."""
    return mtp_checkpoints.target(layout).open_mtp()


@torch.inference_mode()
def reference(layout: str, text: list[int], path: list[int]) -> Tensor:
    """Probs after a text, its root last, and a drafted path: every row anew, no cache, no tree."""
    target = mtp_checkpoints.target(layout)
    assert target.checkpoint is not None
    tensors = load_file(target.checkpoint / "model.safetensors")
    names = mtp_checkpoints.LAYOUTS[layout][2]
    prefix = "mtp." if names == "mtp" else f"model.layers.{mtp_checkpoints.LAYERS}."
    keys = {
        "mtp": ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc"),
        "shared_head": ("enorm", "hnorm", "shared_head.norm", "eh_proj"),
    }[names]
    enorm, hnorm, norm, join = (tensors[f"{prefix}{key}.weight"] for key in keys)
    eps = target.model.config.rms_norm_eps

    def scaled(x: Tensor, weight: Tensor) -> Tensor:
        normed: Tensor = x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight
        return normed

    decoder = module(layout).model.base_model
    # states after the target's last norm, and from the second drafted token on the module's own
    states = target.model.base_model(torch.tensor([text[:-1]])).last_hidden_state[0]
    tokens = text[1:]
    for token in [*path, None]:
        embeds = tensors["model.embed_tokens.weight"][torch.tensor(tokens)]
        rows = torch.cat((scaled(embeds, enorm), scaled(states, hnorm)), -1) @ join.t()
        places = torch.arange(len(tokens))[None]
        out = decoder.layers[0](
            rows[None],
            attention_mask=torch.full((len(tokens),) * 2, -1e30).triu(1)[None, None],
            position_ids=places,
            position_embeddings=decoder.rotary_emb(rows[None], places),
        )
        made = scaled(out[0] if out.dim() == 3 else out, norm)
        if token is not None:
            states = torch.cat((states, made[-1:]))
            tokens = [*tokens, token]
    found: Tensor = (tensors["lm_head.weight"] @ made[-1]).softmax(0)
    return found


def departure(layout: str, count: int = 6) -> float:
    """Largest difference of a drafted probability from the reference, over so many tokens."""
    recipe = Recipe(Mtp(), Static(shape=[3, 2, 1]), Match(), Fixed(nodes=40, depth=3, width=3))
    text = make_text(9, 4)
    worst = 0.0
    for outcome in rounds_until(mtp_checkpoints.target(layout), recipe, text, count, Sampling()):
        tree = outcome.grown
        assert len(tree) == 1 + 3 + 6 + 6
        for node in np.flatnonzero(tree.expanded).tolist():
            probs = reference(layout, text, tree.spell(node)[1:])
            children = tree.children(node)
            best = probs.topk(len(children)).values.numpy()
            worst = max(worst, float(np.abs(tree.probs[children] - best).max()))
        text = text + outcome.tokens
    return worst


@each_layout
def test_drafts_are_those_of_the_definition(layout: str) -> None:
    assert departure(layout) < 1e-4


def test_a_swapped_join_and_states_of_another_row_are_noticed() -> None:
    forward = MtpJoin.forward

    def swapped(self: MtpJoin, tokens: Tensor) -> Tensor:
        embeds = torch.nn.functional.embedding(tokens, self.weight)
        states = torch.zeros_like(embeds) if self.states is None else self.states[None]
        found: Tensor = self.fc(torch.cat((self.state_norm(states), self.embed_norm(embeds)), -1))
        return found

    def shifted(self: MtpJoin, tokens: Tensor) -> Tensor:
        self.states = None if self.states is None else self.states.roll(1, 0)
        return forward(self, tokens)

    for mutant in (swapped, shifted):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MtpJoin, "forward", mutant)
            assert departure("qwen", 1) > 1e-2, mutant.__name__


# ------------------------------------------------------------------------------ the same text, law
@pytest.mark.parametrize(
    ("layout", "name"),
    [("deepseek", "mtp"), ("glm", "mtp-tree"), ("qwen-moe", "mtp"), ("qwen", "mtp-tree")],
)
def test_greedy_text_is_plain_decodings_on_24_prompts(layout: str, name: str) -> None:
    target = mtp_checkpoints.target(layout)
    assert can_run(name, target.info)
    same_on_24_prompts(target, resolve(name))


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(max_tokens=40, temperature=0.8, top_p=0.9), Sampling(max_tokens=40, banned=[5, 9])],
    ids=["sampled", "banned"],
)
def test_sampled_text_is_plain_decodings_too(merged: bool, sampling: Sampling) -> None:
    target = mtp_checkpoints.target("qwen")
    drafter: Any = Merge(drafters=[Suffix(), Mtp()]) if merged else Mtp()
    prompt = [5, 6, 7, 5, 6]
    ours = rounds_until(target, Recipe(drafter, Beam(beam=3), Match(), WIDE), prompt, 20, sampling)
    plain = rounds_until(
        target, Recipe(Mtp(), Chain(), Match(), Fixed(nodes=0)), prompt, 20, sampling
    )
    assert tokens_of(ours)[:20] == tokens_of(plain)[:20]


def test_long_prompts_are_read_in_pieces_and_a_window_cuts_them() -> None:
    target = mtp_checkpoints.target("qwen")
    prompt = make_text(150, 2)
    trees = [
        rounds_until(
            target,
            Recipe(Mtp(window=window), Static(shape=[2]), Match(), WIDE),
            prompt,
            1,
            Sampling(),
        )[0].grown
        for window in (4096, 149, 20)
    ]
    probs = reference("qwen", prompt, [])
    assert trees[0].probs[1:] == pytest.approx(probs.topk(2).values.numpy(), abs=1e-4)
    assert trees[0].probs.tolist() == trees[1].probs.tolist() != trees[2].probs.tolist()


@pytest.mark.parametrize(
    ("draws", "policy", "verifier", "rounds"),
    [
        (Draw.IID, Chain(), Speculative(), 1),
        pytest.param(Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1, marks=pytest.mark.slow),
        (Draw.TOPK, Static(shape=[2, 1]), Match(), 1),
    ],
    ids=str,
)
def test_the_law_is_the_targets(
    draws: Draw, policy: Any, verifier: Any, rounds: int, tmp_path: Path
) -> None:
    assert error_of(draws, policy, verifier, rounds, tmp_path) <= 1e-12


def test_a_mutant_that_states_another_law_than_it_draws_from_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "propose", misstated)
    assert error_of(Draw.IID, Chain(), Speculative(), 1, tmp_path) > 1e-3


def error_of(draws: Draw, policy: Any, verifier: Any, rounds: int, tmp_path: Path) -> float:
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    folder = mtp_checkpoints.write("qwen", tmp_path, vocab_size=3, **special)
    model = read_quietly(folder, "three tokens", torch.device("cpu"), torch.float64)
    target = TorchBackend(model, "three tokens")
    target.checkpoint = folder
    target.info = replace(target.info, provides=target.info.provides | {"mtp"})
    recipe = Recipe(Mtp(draws=draws), policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    return law_error(recipe, target, sampling, rounds=rounds, horizon=2)


# --------------------------------------------------------------------------------------- refusals
def test_a_model_without_a_module_is_refused_by_name() -> None:
    with pytest.raises(SapwoodError, match="needs mtp, which the torch backend does not provide"):
        resolve("mtp").bind(EngineContext(tiny_models.backend("llama"), flat(), no_loader))
    assert not can_run("mtp", tiny_models.backend("llama").info)


def changed(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def test_damaged_modules_are_refused_in_one_sentence(tmp_path: Path) -> None:
    key = "mtp.layers.0.self_attn.q_proj.weight"
    for number, (change, reason) in enumerate(
        [
            (lambda tensors: tensors.pop(key), "lacks .*q_proj"),
            (
                lambda tensors: tensors.update({key: tensors[key].to(torch.int8)}),
                "in I8; use a checkpoint in float16",
            ),
        ]
    ):
        folder = mtp_checkpoints.write("qwen", tmp_path / str(number))
        changed(folder, change)
        target = load(str(folder), device="cpu", dtype="float32")[0]
        with pytest.raises(SapwoodError, match=reason) as caught:
            target.open_mtp()
        assert not re.search(r"\n", str(caught.value))
