"""Plug-in for vLLM: chains of any length, for each request and step, from 0 to the limit.

It is switched on by vLLM's own option, which names the class:

    --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
                           "model": "sapwood.guest.vllm.SapwoodProposer"}'

vLLM tells such a class the texts alone. Names of requests, what was verified and the number of
rows are read by a wrapper around the runner's method that calls it; `register`, the entry point of
`vllm.general_plugins`, puts it there.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.common.extras import needed_by
from sapwood.core.array_types import IntArray
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.guest.core import Guest, HostRow
from sapwood.guest.host_cost import HostCostFile
from sapwood.guest.step_log import step_log
from sapwood.guest.vllm_sampling import repair_sampling

RECIPE_VARIABLE = "SAPWOOD_GUEST_RECIPE"
METHOD = "propose_draft_token_ids"
WRAPPED = "sapwood_wrapped"


@dataclass(frozen=True, slots=True)
class RunnerStep:
    """Facts of a step that vLLM's runner knows and does not tell a proposer."""

    names: list[str]  # of the requests, row by row
    verified: dict[
        str, list[int]
    ]  # drafted tokens that were verified; absent where there were none
    rows: int  # of the whole pass
    finished: set[str]  # requests that ended since the step before


class SapwoodProposer:
    """Drafts for vLLM's method `custom_class`."""

    def __init__(self, vllm_config: Any) -> None:
        register()
        if str(vllm_config.device_config.device_type) == "cpu":
            repair_sampling()
        model = vllm_config.model_config
        most = vllm_config.speculative_config.num_speculative_tokens
        info = BackendInfo(
            "vllm",
            str(model.model),
            model.get_vocab_size(),
            model.max_model_len,
            max_nodes=most + 1,
            device=str(vllm_config.device_config.device_type),
            dtype=str(model.dtype).removeprefix("torch."),
        )
        self.file = HostCostFile.open(info)
        self.guest = Guest(
            info, os.environ.get(RECIPE_VARIABLE, ""), self.file.cost, watch=step_log()
        )
        self.step: RunnerStep | None = None  # of the call of `propose` that comes next

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: lookups have no weights."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: IntArray,
        token_ids_cpu: IntArray,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Drafted tokens of each request; none while its prompt is in prefill."""
        step, self.step = self.step, None
        if step is None:
            raise SapwoodError(
                "vLLM called the proposer past the wrapper of its runner; this plug-in fits the V1 "
                "runner: set VLLM_USE_V2_MODEL_RUNNER=0"
            )
        self.guest.finish(step.finished)
        rows = [
            HostRow(
                name,
                token_ids_cpu[row, : int(num_tokens_no_spec[row])],
                sampled,
                len(step.verified.get(name, ())),
            )
            for row, (name, sampled) in enumerate(zip(step.names, sampled_token_ids, strict=True))
        ]
        trees = self.guest.step(rows, step.rows)
        self.file.keep()
        return [[] if tree is None else tree.tokens[1:].tolist() for tree in trees]


def register() -> None:
    """Wrap the runner's method that calls the proposer; does nothing the second time."""
    with needed_by("the plug-in for vLLM"):
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    inner = vars(GPUModelRunner).get(METHOD)
    if inner is None or "scheduler_output" not in inspect.signature(inner).parameters:
        raise SapwoodError(
            f"this vLLM has no GPUModelRunner.{METHOD}(scheduler_output, ...); the plug-in was "
            "tested with vLLM 0.32"
        )
    if WRAPPED not in vars(inner):
        setattr(GPUModelRunner, METHOD, wrapped(inner))


def wrapped(inner: Any) -> Any:
    """The runner's method, which tells a proposer of ours about the step before it is called."""

    def propose_draft_token_ids(
        runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        drafter = runner.drafter
        if isinstance(drafter, SapwoodProposer):
            drafter.step = RunnerStep(
                list(runner.input_batch.req_ids),
                dict(scheduler_output.scheduled_spec_decode_tokens),
                scheduler_output.total_num_scheduled_tokens,
                set(scheduler_output.finished_req_ids),
            )
        return inner(runner, scheduler_output, *args, **kwargs)

    vars(propose_draft_token_ids)[WRAPPED] = True
    return propose_draft_token_ids
