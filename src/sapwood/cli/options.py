"""Options shared by several commands, and the model that they open."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sapwood.llm import LLM

Name = Annotated[
    str,
    typer.Option("--model", help="smollm2 (built in), a Hub id, a local folder or a .gguf file."),
]
RecipeText = Annotated[
    str,
    typer.Option("--recipe", help="A recipe's name, or drafter + policy + verifier + controller."),
]
DrafterText = Annotated[str | None, typer.Option("--drafter", help="Replace the recipe's drafter.")]
PolicyText = Annotated[str | None, typer.Option("--policy", help="Replace the recipe's policy.")]
EstimatorText = Annotated[
    str | None, typer.Option("--estimator", help="Replace the policy's estimator.")
]
VerifierText = Annotated[
    str | None, typer.Option("--verifier", help="Replace the recipe's verifier.")
]
ControllerText = Annotated[
    str | None, typer.Option("--controller", help="Replace the recipe's controller.")
]

MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", help="Longest answer. [default: 256]")
]
# for commands with a default of their own
Longest = Annotated[int, typer.Option("--max-tokens", help="Longest answer.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", help="0 takes the best token. [default: 0]")
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p", help="Draw from the likeliest tokens that have this probability together."
    ),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", help="Draw from this many of the likeliest tokens. [default: all]"),
]
MinP = Annotated[
    float | None,
    typer.Option(
        "--min-p", help="Draw from tokens at least this likely, relative to the best one."
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty", help="Make tokens that occurred less likely; 1 turns it off."
    ),
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(
        "--frequency-penalty", help="Taken from a token's logit for every time it occurred."
    ),
]
PresencePenalty = Annotated[
    float | None,
    typer.Option("--presence-penalty", help="Taken from the logit of a token that occurred."),
]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End before this text; repeat it for several.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of the sampling. [default: 0]")]

BackendName = Annotated[
    str | None,
    typer.Option(
        "--backend", help="torch, or llamacpp for a .gguf file as it is. [default: torch]"
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:N. [default: a GPU if there is one]"),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="int4, int8, float32, float16, bfloat16 or fp8. [default: by device]"
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads.")]
TensorParallel = Annotated[
    int,
    typer.Option("--tensor-parallel", help="Processes that share the layers of the model."),
]
Lora = Annotated[
    str | None, typer.Option("--lora", help="Folder of a LoRA adapter in PEFT's format.")
]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the prompt itself, without the chat template.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, on one line.")]


SAMPLING = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "stop",
    "seed",
)


def sampling_of(given: dict[str, Any]) -> dict[str, Any]:
    """The sampling options among a command's arguments; None, or an empty list, is the default."""
    return {
        name: given[name] or None if name == "stop" else given[name]
        for name in SAMPLING
        if name in given
    }


def choice_of(given: dict[str, Any]) -> "ModelChoice":
    """The model and recipe among a command's arguments."""
    return ModelChoice(
        **{field.name: given[field.name] for field in fields(ModelChoice) if field.name in given}
    )


@dataclass(frozen=True)
class ModelChoice:
    """Model and recipe of a command."""

    model: str = "smollm2"
    recipe: str = "auto"
    drafter: str | None = None
    policy: str | None = None
    estimator: str | None = None
    verifier: str | None = None
    controller: str | None = None
    backend: str | None = None
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    tensor_parallel: int = 1
    lora: str | None = None

    def open(self, progress: Callable[[str], None]) -> "LLM":
        """Load the model."""
        from sapwood.llm import LLM

        return LLM(**vars(self), progress=progress)

    @property
    def title(self) -> str:
        """The recipe as given by the user, with replaced parts."""
        parts = ("drafter", "policy", "estimator", "verifier", "controller")
        changed = [
            f"{part} {value}" for part in parts if (value := getattr(self, part)) is not None
        ]
        return ", ".join([self.recipe, *changed])
