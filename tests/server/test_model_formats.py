"""Tool calls and reasoning of model families, as their models write them."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sapwood.server.openai.model_formats import call_format, formats, syntax_of
from sapwood.server.openai.output_parser import KnownFunctions, ParsedOutput
from sapwood.server.openai.response_format import ResponseFormat
from sapwood.server.openai.tool_calls import parse_output

ROME = {"city": "Rome", "days": 2}
ROME_JSON = '{"city": "Rome", "days": 2}'
FUNCTIONS = KnownFunctions(("weather", "stop"), frozenset({("weather", "city")}))


@dataclass(frozen=True)
class Recorded:
    """An output of a family, and the parts that it has."""

    name: str
    template: str  # texts that tell the family by its chat template
    raw: str
    calls: tuple[tuple[str, Any], ...] = ()
    text: str = ""
    reasoning: str = ""
    prompt: str = ""  # end of the rendered prompt


CASES = [
    Recorded(
        "hermes",
        'function <tool_call>{"name": NAME}</tool_call>',
        f'I look.\n<tool_call>\n{{"name": "weather", "arguments": {ROME_JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
        (("weather", ROME), ("stop", {})),
        "I look.",
    ),
    Recorded(
        "qwen3 that thinks",
        "<tool_call> {{ enable_thinking }} </think>",
        "<think>\nRome, then.\n</think>\n\n"
        f'<tool_call>\n{{"name": "weather", "arguments": {ROME_JSON}}}\n</tool_call>',
        (("weather", ROME),),
        reasoning="Rome, then.",
    ),
    Recorded(
        "qwen3 that does not think",
        "<tool_call> {{ enable_thinking }} </think>",
        "It rains in Rome.",
        text="It rains in Rome.",
        prompt="<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    Recorded(
        "qwen3 whose prompt opens the thinking",
        "<tool_call> </think>",
        "Rome, then.\n</think>\n\nIt rains.",
        text="It rains.",
        reasoning="Rome, then.",
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    Recorded(
        "qwen3-coder",
        "<tool_call><function=NAME><parameter=KEY>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        (("weather", ROME),),
    ),
    Recorded(
        "llama-3",
        "<|start_header_id|> ipython",
        f'{{"name": "weather", "parameters": {ROME_JSON}}}',
        (("weather", ROME),),
    ),
    Recorded(
        "llama-3 with its tag",
        "<|start_header_id|> ipython",
        f'<|python_tag|>{{"name": "weather", "parameters": {ROME_JSON}}}',
        (("weather", ROME),),
    ),
    Recorded(
        "llama-4",
        "<|header_start|>",
        '[weather(city="Rome", days=2), stop()]',
        (("weather", ROME), ("stop", {})),
    ),
    Recorded(
        "mistral",
        "[TOOL_CALLS]",
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {ROME_JSON}}}]',
        (("weather", ROME),),
    ),
    Recorded(
        "mistral-args with thinking",
        "[TOOL_CALLS] [ARGS] [THINK][/THINK]",
        f"[THINK]Two of them.[/THINK][TOOL_CALLS]weather[ARGS]{ROME_JSON}[TOOL_CALLS]stop[ARGS]{{}}",
        (("weather", ROME), ("stop", {})),
        reasoning="Two of them.",
    ),
    Recorded(
        "deepseek-v3",
        "<｜tool▁calls▁begin｜> ```json </think>",  # noqa: RUF001
        "Rome.\n</think>\n\nI ask.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"  # noqa: RUF001
        f"weather\n```json\n{ROME_JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
        (("weather", ROME),),
        "I ask.",
        "Rome.",
        "<｜Assistant｜><think>\n",  # noqa: RUF001
    ),
    Recorded(
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜>",  # noqa: RUF001
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{ROME_JSON}<｜tool▁call▁end｜>"  # noqa: RUF001
        "<｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
        (("weather", ROME), ("stop", {})),
    ),
    Recorded(
        "harmony with a call",
        "<|channel|>analysis <|constrain|>",
        "<|channel|>analysis<|message|>Rome.<|end|><|start|>assistant<|channel|>commentary"
        f" to=functions.weather <|constrain|>json<|message|>{ROME_JSON}",
        (("weather", ROME),),
        reasoning="Rome.",
    ),
    Recorded(
        "harmony with the function before the channel",
        "<|channel|>analysis <|constrain|>",
        "<|channel|>analysis<|message|>Rome.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I look.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>"
        f"{ROME_JSON}",
        (("weather", ROME),),
        "I look.",
        "Rome.",
    ),
    Recorded(
        "harmony with an answer",
        "<|channel|>analysis <|constrain|>",
        "<|channel|>analysis<|message|>Rome.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It rains.",
        text="It rains.",
        reasoning="Rome.",
    ),
    Recorded(
        "kimi-k2",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{ROME_JSON}<|tool_call_end|><|tool_calls_section_end|>",
        (("weather", ROME),),
    ),
    Recorded(
        "glm-4",
        "<tool_call> <arg_key> </think>",
        "<think>Rome.</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        (("weather", ROME),),
        reasoning="Rome.",
    ),
    Recorded(
        "olmo-3",
        "<function_calls>",
        '<function_calls>weather(city="Rome", days=2)\nstop()</function_calls>',
        (("weather", ROME), ("stop", {})),
    ),
    Recorded(
        "command",
        "<|START_ACTION|> <|START_THINKING|>",
        "<|START_THINKING|>Rome.<|END_THINKING|><|START_ACTION|>[\n"
        f'{{"tool_call_id": "0", "tool_name": "weather", "parameters": {ROME_JSON}}}\n]<|END_ACTION|>',
        (("weather", ROME),),
        reasoning="Rome.",
    ),
    Recorded(
        "granite",
        "<|start_of_role|> <|tool_call|>",
        f'<|tool_call|>[{{"name": "weather", "arguments": {ROME_JSON}}}]',
        (("weather", ROME),),
    ),
    Recorded(
        "phi-4",
        "<|tool|><|/tool|>",
        f'<|tool_call|>[{{"name": "weather", "arguments": {ROME_JSON}}}]<|/tool_call|>',
        (("weather", ROME),),
    ),
    Recorded(
        "internlm",
        "<|plugin|>",
        'I look.<|action_start|><|plugin|>{"name": "weather", "parameters": '
        f"{ROME_JSON}}}<|action_end|>",
        (("weather", ROME),),
        "I look.",
    ),
    Recorded(
        "seed that thinks",
        "<seed:think></seed:think>",
        "<seed:think>Rome.</seed:think>It rains.",
        text="It rains.",
        reasoning="Rome.",
    ),
    Recorded(
        "nemotron",
        "<TOOLCALL>",
        f'<TOOLCALL>[{{"name": "weather", "arguments": {ROME_JSON}}}]</TOOLCALL>',
        (("weather", ROME),),
    ),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def parsed(case: Recorded, length: int | None = None, *, tools: bool = True) -> ParsedOutput:
    """The parts of a case's output, or of its beginning."""
    form = ResponseFormat(functions=FUNCTIONS if tools else KnownFunctions())
    raw = case.raw[:length]
    return parse_output(raw, syntax_of(case.template, case.prompt), form, done=length is None)


@each_case
def test_an_output_has_its_parts(case: Recorded) -> None:
    output = parsed(case)
    calls = [(call.name, json.loads(call.arguments)) for call in output.calls]
    assert calls == list(case.calls)
    assert (output.text, output.reasoning) == (case.text, case.reasoning)


@each_case
def test_nothing_is_taken_back_while_an_output_grows(case: Recorded) -> None:
    whole = parsed(case)
    shown = parsed(case, 0)
    seen = 0
    for length in range(1, len(case.raw) + 1):
        output = parsed(case, length)
        assert output.text.startswith(shown.text)
        assert output.reasoning.startswith(shown.reasoning)
        assert output.calls[: len(shown.calls)] == shown.calls
        seen += output != shown
        shown = output
    assert whole.text.startswith(shown.text.strip())
    assert whole.reasoning == shown.reasoning
    assert whole.calls[: len(shown.calls)] == shown.calls
    assert seen > 2 or not (case.text or case.reasoning)


@pytest.mark.parametrize("case", [case for case in CASES if case.reasoning and not case.calls])
def test_a_cut_output_shows_no_markup_of_reasoning(case: Recorded) -> None:
    for length in range(len(case.raw)):
        output = parsed(case, length, tools=False)
        assert "think>" not in output.text.lower()
        assert "<|channel|>" not in output.text


@pytest.mark.parametrize(
    "body",
    ["weather(city='Rome'", "weather('Rome')", "x = 1", "weather(city=open('f'))", "[" * 9999],
)
def test_python_that_is_no_call_stays_text(body: str) -> None:
    case = Recorded("llama-4", "<|header_start|>", f"<|python_start|>{body}<|python_end|>")
    output = parsed(case)
    assert output.calls == []
    assert output.text == case.raw


def test_unknown_functions_are_not_called() -> None:
    for case in CASES:
        raw = case.raw.replace("weather", "launch").replace("stop", "launch")
        other = Recorded(case.name, case.template, raw, prompt=case.prompt)
        assert parsed(other).calls == [], case.name


def test_families_are_told_by_their_templates() -> None:
    calls, reasoning = formats()
    assert len({entry.name for entry in calls}) == len(calls) >= 12
    for entry in calls:
        assert call_format(" ".join(entry.template)).name == entry.name
    assert call_format(None).name == call_format("{{ messages }}").name == "hermes"
    assert syntax_of("{{ messages }}", "").reasoning is None
    found = [syntax_of(" ".join(entry.template), "").reasoning for entry in reasoning]
    assert [entry.name for entry in found if entry] == [entry.name for entry in reasoning]
    covered = {call_format(case.template).name for case in CASES}
    assert covered == {entry.name for entry in calls}
    thought = {
        form.name
        for case in CASES
        if case.reasoning and (form := syntax_of(case.template, "").reasoning)
    }
    assert thought == {entry.name for entry in reasoning}
