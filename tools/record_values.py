"""How figures of the documents are read from records of measurements."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

OVER = "against_first"
RATE = "tokens_per_second"
COMPILED = "hf static, compiled"  # the fastest configuration of transformers on a GPU

Record = dict[str, Any]
Value = float | int | str


def latest(record: Record) -> list[Record]:
    """The runs of benchmarks/cpu.py of the newest commit."""
    return [run for run in record["runs"] if state(run) == state(record["runs"][-1])]


def state(record: Record) -> str:
    """The measured commit, or if that is missing, the commit that added the record."""
    commit: str = record.get("commit") or record["recorded_in"]
    return commit


def in_runs(start: str, key: str, below: str = "") -> Callable[[Record], list[float]]:
    """A number of an engine in each of the latest runs, the median run first.

    An engine is named by how its name begins; of several the fastest counts. `below` names an
    engine whose number in the same run divides it. The median run is the one with the median gain
    of `auto`, so that figures quoted beside each other belong together.
    """

    def read(record: Record) -> list[float]:
        runs = sorted(latest(record), key=lambda run: best(run, "sapwood:auto", OVER) or 0.0)
        middle = len(runs) // 2
        values = []
        for run in [runs[middle], *runs[:middle], *runs[middle + 1 :]]:
            mine = best(run, start, key)
            other = best(run, below, key) if below else 1.0
            values += [mine / other] if mine and other else []
        return values

    return read


def best(run: Record, start: str, key: str) -> float | None:
    """A number of the fastest engine of a run whose name begins so."""
    return max((row[key] for row in run["rows"] if row["run"].startswith(start)), default=None)


def median_run(start: str, key: str, below: str = "") -> Callable[[Record], float]:
    """The number in the median run, or in another if that run lacks the engine."""
    return lambda record: in_runs(start, key, below)(record)[0]


def lowest(start: str, key: str, below: str = "") -> Callable[[Record], float]:
    """The lowest of the latest runs."""
    return lambda record: min(in_runs(start, key, below)(record))


def highest(start: str, key: str, below: str = "") -> Callable[[Record], float]:
    """The highest of the latest runs."""
    return lambda record: max(in_runs(start, key, below)(record))


def decoded(recipe: str, key: str, category: str = "all") -> Callable[[Record], Value]:
    """A number of greedy decoding on the GPU."""
    return lambda record: bench_row(record["decoding"]["greedy"], recipe, category)[key]


def bench_row(rows: Sequence[Record], recipe: str, category: str) -> Record:
    """The row of a recipe and a category."""
    return next(row for row in rows if (row["recipe"], row["category"]) == (recipe, category))


def pass_ms(nodes: int) -> Callable[[Record], float]:
    """Milliseconds of a pass over this many nodes, on the device."""
    return lambda record: (
        next(row["replay_us"] for row in record["pass"]["rows"] if row["nodes"] == nodes) / 1000
    )


def served(run: str, level: int) -> Callable[[Record], float]:
    """Tokens per second with this many requests at a time, against plain decoding."""
    return lambda record: next(
        row["against_first"] for row in record["rows"] if (row["run"], row["level"]) == (run, level)
    )


def shared_rate(level: int, over: int = 0) -> Callable[[Record], float]:
    """Tokens per second of plain decoding of so many requests on a GPU, or over those of others."""

    def value(record: Record) -> float:
        rates = {row["level"]: row[RATE] for row in record["rows"] if row["recipe"] == "plain"}
        return float(rates[level] / rates[over] if over else rates[level])

    return value


def shared_speedup(level: int, recipe: str = "auto") -> Callable[[Record], float]:
    """Tokens per second of a recipe over plain decoding's, for so many requests on a GPU.

    `recipe` is how its spelling begins.
    """

    def value(record: Record) -> float:
        rates = {row["recipe"]: row[RATE] for row in record["rows"] if row["level"] == level}
        [found] = (rate for name, rate in rates.items() if name.startswith(recipe))
        return float(found / rates["plain"])

    return value


def guests(record: Record) -> list[Record]:
    """All runs of sapwood inside another engine."""
    ways = [suite["sapwood"] for suite in record["ways"].values()]
    return [*ways, record["preemption"], record["cancellation"]]


def decoded_in_host(suite: str, way: str, key: str) -> Callable[[Record], Value]:
    """A number of one way of decoding inside another engine."""
    return lambda record: record["ways"][suite][way][key]


# ------------------------------------------------------------------------------------ the figures
def mean_speedup(kind: str, record: Any) -> float:
    """Mean speedup of `auto` on one kind of text over the repetitions of a record."""
    return float(statistics.mean(run[kind] for run in record["speedups"]["auto"]))
