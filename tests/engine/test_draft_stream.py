"""The draft on a second stream of a device: the order of what both streams share, and the text."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.overlap import DraftStream, OverlapGauge
from sapwood.core.protocols import Capabilities, TargetOutput, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.loop import Engine
from sapwood.policies.chain import Chain
from sapwood.policies.pearl import Pearl
from sapwood.policies.specbranch import SpecBranch
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match

PROMPT = [0, 1, 2]


class StreamLog:
    """A draft stream that only notes what is asked of it."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def release(self) -> None:
        self.events.append("release")

    @contextmanager
    def running(self) -> Iterator[None]:
        assert threading.current_thread() is not threading.main_thread()
        self.events.append("begin")
        try:
            yield
        finally:
            self.events.append("end")

    def join(self) -> None:
        self.events.append("join")


class DeviceToy(ToyBackend):
    """A toy target as on a device with streams: notes its passes."""

    def __init__(self, salt: str, events: list[str]) -> None:
        super().__init__(salt, context=256)
        self.events = events

    @property
    def capabilities(self) -> Capabilities:
        def opened() -> DraftStream:
            return StreamLog(self.events)

        return replace(super().capabilities, draft_stream=opened)

    def score(self, work: Sequence[TreeInput], chunks: Sequence[Any] = ()) -> list[TargetOutput]:
        self.events.append("pass")
        return super().score(work, chunks)


class DraftToy(ToyBackend):
    """A toy draft model that notes the thread of its passes."""

    def __init__(self, events: list[str]) -> None:
        super().__init__("draft")
        self.events = events

    def score(self, work: Sequence[TreeInput], chunks: Sequence[Any] = ()) -> list[TargetOutput]:
        main = threading.current_thread() is threading.main_thread()
        self.events.append("first stream" if main else "second stream")
        return super().score(work, chunks)


def text_of(engine: Engine, sampling: Sampling) -> list[int]:
    rounds = engine.rounds(PROMPT, sampling, KeyedRng(3))
    return [token for outcome in rounds for token in outcome.tokens][: sampling.max_tokens]


@pytest.mark.parametrize("policy", [Pearl(), Pearl(first=2), SpecBranch(first=1)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_draft_runs_between_launch_and_join(
    policy: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)
    events = list[str]()
    draft = DraftModel(model=DraftToy(events))
    recipe = Recipe(draft, policy, Match(), Fixed(3, 3, 4))
    sampling = Sampling(temperature=temperature, max_tokens=60)
    text = text_of(Engine(DeviceToy("a", events), recipe), sampling)
    plain = Recipe(Ngram(), Chain(), Match(), Fixed(nodes=0))
    assert text == text_of(Engine(ToyBackend("a", context=256), plain), sampling)
    order = [event for event in events if "stream" not in event]
    begun = [place for place, event in enumerate(order) if event == "begin"]
    assert len(begun) > 10
    for (
        place
    ) in begun:  # the pass is launched before the draft, and nothing beside it but the draft
        assert order[place - 2 : place + 3] == ["release", "pass", "begin", "end", "join"]
    inside = False
    for event in events:
        inside = event == "begin" or (inside and event != "end")
        assert event != ("first stream" if inside else "second stream")


def test_a_draft_that_fails_is_joined_before_its_error_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)
    events = list[str]()

    class Gone(DraftToy):
        def score(self, work: Any, chunks: Any = ()) -> Any:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("gone")
            return super().score(work, chunks)

    recipe = Recipe(DraftModel(model=Gone(events)), Pearl(), Match(), Fixed(3, 3, 1))
    with pytest.raises(RuntimeError, match="gone"):
        text_of(Engine(DeviceToy("a", events), recipe), Sampling(max_tokens=60))
    assert events[-2:] == ["end", "join"]
