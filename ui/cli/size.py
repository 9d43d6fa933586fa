"""`kvitals size`: how many GPUs a workload takes, in thirteen steps that show their working."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvitals.app.errors import UsageError
from kvitals.app.pipeline import Setup
from kvitals.app.sizing import ObservedLoad, observe_load, of_trace, without_rates_of_another_model
from kvitals.config import ReviewTable
from kvitals.diagnoser.sizing import config, memory
from kvitals.diagnoser.sizing.doubts import plan_doubts
from kvitals.diagnoser.sizing.estimate import UTILIZATION, EngineSettings, default_settings
from kvitals.diagnoser.sizing.fleet import NETWORK, SAFETY_KNOWN, SAFETY_NEW
from kvitals.diagnoser.sizing.memory import KV, WEIGHTS, AdapterMemory, GpuLayout, PrecisionError, Shares, precision
from kvitals.diagnoser.sizing.plan import NONE_SERVES, Inputs, MeasuredInstance, SizingError, SizingPlan, plan
from kvitals.diagnoser.sizing.quantity import several, usd
from kvitals.diagnoser.sizing.roofline import PeakShares
from kvitals.diagnoser.sizing.step import SizingStep
from kvitals.diagnoser.sizing.working import steps
from kvitals.diagnoser.sizing.working_serve import format_expected
from kvitals.diagnoser.sizing.workload import Lengths, Workload
from kvitals.rules import catalogue
from kvitals.rules.catalogue import CatalogueError, Gpu, Model
from kvitals.ui.cli import prometheus
from kvitals.ui.cli.common import add_judging_options, json_text, parse_duration, setup
from kvitals.ui.cli.course import add_source, course
from kvitals.ui.cli.narrow import print_hanging, print_table
from kvitals.ui.cli.output import PrintedDocument, add_output_options, emit

DESCRIPTION = """\
Sizes a fleet for a workload, a model and a GPU, step by step, each number with its derivation.

the workload   from an agent, a history, a recording or a Prometheus (as `kvitals knee` takes them), from a trace in
               Mooncake's format (--trace), or from options; options override measured values
the model      by its name in the catalogue, a config.json of Hugging Face's (--model-config), or --dims
without --gpu  every GPU of the catalogue is tried

Rates that were not measured are upper bounds, so the result is the smallest possible fleet.

  kvitals size --model "Llama 3.3 70B" --gpu "H100 SXM" --weights fp8 --peak 120 --prompt 1000,3000,8000 --answer 200
  kvitals size http://127.0.0.1:9477 --model "Llama 3.3 70B" --gpu "H100 SXM" --price 2.5
"""
DIMENSIONS = {
    field.name: field.type
    for field in fields(Model)
    if field.name not in ("name", "attention", "source", "note", "full", "sliding", "native")
} | {"sliding": "int"}
BESIDE_COLUMNS = 100
"""With fewer columns, how a number was calculated stands below it."""

MAX_NUMBER = 1e15
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "size",
        description=DESCRIPTION,
    )
    add_source(parser, none="the options alone")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a trace in Mooncake's JSONL format, also as .gz")
    _add_workload(parser.add_argument_group("the workload"))
    _add_machine(parser.add_argument_group("the model and the hardware"))
    _add_known(parser.add_argument_group("known facts of one instance"))
    add_output_options(parser, "every number")
    add_judging_options(parser)
    prometheus.add_options(parser, "--from and --to")
    parser.set_defaults(do=do)


def _add_workload(group: Any) -> None:
    group.add_argument("--peak", metavar="RATE", help="requests per second in the busiest minutes (p95 or p99)")
    group.add_argument("--rate", metavar="RATE", help="average requests per second, for the cost of a token")
    group.add_argument("--prompt", metavar="MEAN[,P95[,P99]]", help="tokens of a prompt")
    group.add_argument("--answer", metavar="MEAN[,P95[,P99]]", help="tokens of an answer")
    group.add_argument("--hits", metavar="SHARE", help="share of prompt tokens that hit the prefix cache (0)")
    group.add_argument("--batch", action="store_true", help="nobody waits: no objectives")


def _add_machine(group: Any) -> None:
    group.add_argument("--model", metavar="NAME", help="model of the catalogue; an unknown name prints the list")
    group.add_argument("--model-config", type=Path, metavar="FILE", help="the model's config.json")
    group.add_argument(
        "--dims",
        action="append",
        default=[],
        metavar="NAME=N",
        help=f"a dimension, or several with commas: {', '.join(DIMENSIONS)}",
    )
    group.add_argument("--gpu", metavar="NAME", help="GPU of the catalogue")
    group.add_argument(
        "--weights", metavar="FORMAT", help=f"format of the weights: {', '.join(WEIGHTS)} (as the model is published)"
    )
    group.add_argument("--kv", default="bf16", help=f"format of the KV cache: {', '.join(KV)} (bf16)")
    group.add_argument("--tp", metavar="N", help="tensor-parallel degree (default: all are tried)")
    group.add_argument("--pp", metavar="N", help="pipeline stages (1)")
    group.add_argument("--dp", metavar="N", help="replicas of attention, with expert parallelism (1)")
    group.add_argument(
        "--max-model-len", metavar="N", help="longest sequence that the engine takes (default: the model's context)"
    )
    group.add_argument("--hold", metavar="N", help="requests at a time that one instance must hold (1)")
    group.add_argument("--adapters", metavar="NxRANK", help="LoRA adapters on the GPUs at a time, such as 8x16")
    group.add_argument(
        "--price",
        metavar="USD",
        help="price of a GPU hour (default: [review], else the catalogue's median)",
    )


def _add_known(group: Any) -> None:
    group.add_argument("--usable-rate", metavar="RATE", help="measured requests per second at C_max")
    group.add_argument("--c-max", metavar="N", help="concurrency at which latency exceeds the objective")
    group.add_argument("--prefill-rate", metavar="RATE", help="prompt tokens per second of a GPU that only prefills")
    group.add_argument("--decode-rate", metavar="RATE", help="tokens per second of a GPU that only decodes")
    group.add_argument(
        "--compute", metavar="SHARE", help="share of the peak arithmetic that engines reach (1, the bound)"
    )
    group.add_argument(
        "--bandwidth", metavar="SHARE", help="share of the memory bandwidth that engines reach (1, the bound)"
    )
    group.add_argument(
        "--overhead", metavar="SHARE", help="share of GPU memory that the engine does not use (0, the bound)"
    )
    group.add_argument(
        "--activations",
        metavar="GB",
        help="memory for activations on all GPUs, as the engine reports it (0, the bound)",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        metavar="N",
        help="the engine's limit of tokens per step, for the estimate (default: vLLM's default for the GPU)",
    )
    group.add_argument(
        "--max-num-seqs",
        metavar="N",
        help="the engine's limit of running requests (default: vLLM's default for the GPU)",
    )
    group.add_argument(
        "--gpu-memory-utilization", metavar="SHARE", help=f"share of GPU memory, for the estimate ({UTILIZATION:g})"
    )
    group.add_argument("--front-end", default="0", metavar="TIME", help="part of TTFT before the engine (0)")
    group.add_argument("--network", metavar="GB/S", help=f"between prefill and decode ({NETWORK / 1e9:g})")
    group.add_argument(
        "--safety",
        metavar="TIMES",
        help=f"factor on the peak ({SAFETY_KNOWN} for known traffic, {SAFETY_NEW} for new traffic)",
    )


def do(args: argparse.Namespace) -> int:
    chosen = setup(args)
    found = _seen(args, chosen)
    model = _model(args, found)
    found = without_rates_of_another_model(found, model.name)
    base = _inputs(args, found, model, chosen)
    priced = _ForGpu(args, base.price, chosen.config.review)
    others: _Comparison | None = None
    try:
        if args.gpu is not None:
            made = plan(priced.on(base, catalogue.gpu(args.gpu)))
        else:
            made, others = _compared(base, priced)
    except SizingError as error:
        helps = f"\nWhat would help: {', '.join(error.remedies)}" if error.remedies else ""
        raise UsageError(f"{error}{helps}") from error
    except CatalogueError as error:
        raise UsageError(str(error)) from error

    def show_all(console: Console) -> None:
        if others is not None:
            _show_others(others, console)
        show(made, found, console)

    emit(PrintedDocument(_verdict(made), show_all, lambda: json_text(_document(made, found))), args.output)
    return 0


def show(made: SizingPlan, found: ObservedLoad, console: Console) -> None:
    """A plan for the terminal."""
    into = made.inputs
    console.print(
        f"{into.model.name} on {into.gpu.name}, {into.weights.name} weights, {into.kv.name} KV",
        style="bold",
    )
    print_hanging(f"model: {into.model.source}", console, 7, "dim")
    if into.model.note:
        print_hanging(f"note: {into.model.note}", console, 6, "dim")
    for doubt in (*found.doubts, *plan_doubts(made)):
        print_hanging(f"{doubt}", console, 2, "yellow")
    for step in steps(made):
        console.print()
        _show_step(step, console)
    console.print()
    console.print(Text(_verdict(made), style="bold green"))


def _show_step(step: SizingStep, console: Console) -> None:
    console.print(Text(f"{step.number:>2}  {step.title}", style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=24)
    table.add_column(justify="right", min_width=12)
    if console.width >= BESIDE_COLUMNS:
        table.add_column()
        for line in step.lines:
            table.add_row(line.name, Text(line.told, style="cyan"), Text(line.how, style="dim"))
        console.print(Padding(table, (0, 0, 0, 4)))
    else:
        for line in step.lines:
            name = f"    {line.name}: "
            print_hanging(Text(name).append(line.told, style="cyan"), console, 6)
            if line.how:
                print_hanging(Text(f"      {line.how}", style="dim"), console, 6)
    console.print(Padding(Text(step.answer), (0, 0, 0, 4)))


def _verdict(made: SizingPlan) -> str:
    least = "At least " if made.bound else ""
    instances = several(made.fleet.instances, "instance")
    gpus = f"{made.fleet.gpus:,} {made.inputs.gpu.name}: {instances} of {made.chosen.layout}"
    money = "" if made.usd_per_hour is None else f", {usd(made.usd_per_hour)} an hour"
    if made.estimate is None:
        return f"{least}{gpus}{money}."
    likely = format_expected(made.estimate.gpus)
    return f"{least}{gpus}{money}. Expected: {likely}. Measure one instance before buying."


@dataclass(frozen=True)
class _ForGpu:
    """What depends on the GPU: its price for an hour, as the option or else the configuration says (None: as the
    catalogue has it), and the engine's settings on it."""

    args: argparse.Namespace
    given: float | None
    configured: ReviewTable

    def on(self, base: Inputs, gpu: Gpu) -> Inputs:
        """The inputs on a GPU, with its price."""
        named = (usd for name, usd in self.configured.prices.items() if name.lower() in gpu.name.lower())
        price = self.given if self.given is not None else next(named, self.configured.usd_per_gpu_hour)
        return replace(base, gpu=gpu, price=price, engine=_engine(self.args, gpu))


@dataclass(frozen=True)
class _Comparison:
    """Every GPU of the catalogue: those that serve, and those that do not with their reasons."""

    serving: Table
    failed: Mapping[str, SizingError]


def _show_others(others: _Comparison, console: Console) -> None:
    print_table(others.serving, console)
    for gpus, why in _reasons(others.failed):
        print_hanging(f"not {gpus}: {why}", console, 4, "dim")
    console.print()


def _compared(base: Inputs, priced: _ForGpu) -> tuple[SizingPlan, _Comparison]:
    """Every GPU of the catalogue; the one whose fleet costs least, of those without a price the fewest GPUs."""
    good: list[SizingPlan] = []
    failed: dict[str, SizingError] = {}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("GPU", "layout", "instances", "GPUs", "an hour"):
        table.add_column(title, justify="left" if title in ("GPU", "layout") else "right", no_wrap=True)
    for gpu in catalogue.gpus():
        try:
            one = plan(priced.on(base, gpu))
        except SizingError as error:
            failed[gpu.name] = error
            continue
        good.append(one)
        money = "" if one.usd_per_hour is None else usd(one.usd_per_hour)
        table.add_row(gpu.name, str(one.chosen.layout), f"{one.fleet.instances:,}", f"{one.fleet.gpus:,}", money)
    if not good:
        raise _nothing(base, failed)
    best = min(good, key=lambda one: (one.usd_per_hour is None, one.usd_per_hour or 0.0, one.fleet.gpus))
    return best, _Comparison(table, failed)


def _reasons(failed: Mapping[str, SizingError]) -> Iterator[tuple[str, str]]:
    """The GPUs of each reason why one does not serve, and the reason."""
    by_reason: dict[str, list[str]] = {}
    for gpu, error in failed.items():
        by_reason.setdefault(str(error).partition(": ")[2].removeprefix(NONE_SERVES), []).append(gpu)
    for why, gpus in by_reason.items():
        yield ", ".join(gpus), why


def _nothing(base: Inputs, failed: Mapping[str, SizingError]) -> SizingError:
    """Why no GPU of the catalogue serves, and all that would help one of them."""
    reasons = list(_reasons(failed))
    told = [f"{gpus}: {why}" for gpus, why in reasons] if len(reasons) > 1 else [reasons[0][1]]
    remedies = dict.fromkeys(remedy for error in failed.values() for remedy in error.remedies)
    return SizingError(
        "\n  ".join([f"{base.model.name}: no GPU of the catalogue can serve this workload", *told]), tuple(remedies)
    )


def _seen(args: argparse.Namespace, chosen: Setup) -> ObservedLoad:
    """What a trace or engines tell of the workload; nothing where there are only options."""
    if args.trace is not None:
        return of_trace(args.trace)
    if args.source or args.history or args.prometheus:
        with course(args, chosen) as of:
            return observe_load(of, chosen)
    return ObservedLoad()


def _inputs(args: argparse.Namespace, found: ObservedLoad, model: Model, chosen: Setup) -> Inputs:
    slo = chosen.config.slo
    peak, mean = _given(args.peak, "--peak", found.peak), _given(args.rate, "--rate", found.mean)
    if peak is None and mean is None:
        raise UsageError(
            "the request rate is missing: give --peak RATE, or an agent, a recording or a --trace that contains it"
        )
    if (args.peak or args.rate) and peak is not None and mean is not None and mean > peak:
        raise UsageError(f"the average rate ({mean:g}/s) is above the peak ({peak:g}/s): check --rate and --peak")
    load = Workload(
        peak=peak if peak is not None else mean or 0.0,
        mean=mean,
        prompt=_lengths(args.prompt, "--prompt", found.prompt, found),
        output=_lengths(args.answer, "--answer", found.output, found),
        cached=_share(args.hits, "--hits", found.cached or 0.0),
        ttft=math.inf if args.batch else slo.ttft_p99_seconds,
        itl=math.inf if args.batch else slo.itl_p99_seconds,
        source=found.source if args.peak is None and found.source else "as given",
    )
    if found.short and args.peak is None:
        found.doubts.append(found.short)
    if args.batch and args.slo:
        raise UsageError("--batch with --slo: nobody waits for a batch, so it has no objectives; omit one of them")
    if args.usable_rate is not None and (args.max_num_batched_tokens or args.gpu_memory_utilization):
        found.doubts.append(
            "--max-num-batched-tokens and --gpu-memory-utilization only change the estimate, which --usable-rate "
            "replaces: they have no effect here"
        )
    shares = Shares(
        overhead=_share(args.overhead, "--overhead", 0.0),
        activations=None if args.activations is None else 1e9 * _number(args.activations, "--activations"),
    )
    try:
        weights, cache = precision(args.weights or model.native or "bf16"), memory.kv_precision(model, args.kv)
    except PrecisionError as error:
        raise UsageError(str(error)) from error
    return Inputs(
        workload=load,
        model=model,
        gpu=catalogue.gpus()[0],
        weights=weights,
        kv=cache,
        safety=_given(args.safety, "--safety", SAFETY_KNOWN if found.days else SAFETY_NEW) or SAFETY_NEW,
        shares=shares,
        adapters=_adapters(args.adapters, model),
        reached=PeakShares(_share(args.compute, "--compute", 1.0), _share(args.bandwidth, "--bandwidth", 1.0)),
        measured=_measured(args, found),
        price=_given(args.price, "--price", None),
        front_end=0.0 if args.front_end == "0" else parse_duration(args.front_end, "--front-end"),
        network=NETWORK if args.network is None else 1e9 * _number(args.network, "--network"),
        layout=_layout(args, found),
        least=_whole(args.hold or "1", "--hold"),
        slots=None if args.max_num_seqs is None else _whole(args.max_num_seqs, "--max-num-seqs"),
        context=model.context if args.max_model_len is None else _whole(args.max_model_len, "--max-model-len"),
    )


def _engine(args: argparse.Namespace, gpu: Gpu) -> EngineSettings:
    """The engine's settings on a GPU: as given, else as vLLM chooses them."""
    chosen = default_settings(gpu)
    given = args.max_num_batched_tokens, args.max_num_seqs
    tokens = chosen.tokens if given[0] is None else _whole(given[0], "--max-num-batched-tokens")
    slots = min(chosen.slots, tokens) if given[1] is None else _whole(given[1], "--max-num-seqs")
    if slots > tokens:
        raise UsageError(
            f"--max-num-seqs {slots:,} with {tokens:,} tokens in a step: each running request needs one token, so "
            f"vLLM does not start; give --max-num-batched-tokens {slots} or more"
        )
    utilization = _share(args.gpu_memory_utilization, "--gpu-memory-utilization", chosen.utilization)
    return EngineSettings(utilization, tokens, slots)


def _measured(args: argparse.Namespace, found: ObservedLoad) -> MeasuredInstance:
    return MeasuredInstance(
        usable=_given(args.usable_rate, "--usable-rate", found.usable),
        c_max=_given(args.c_max, "--c-max", found.c_max),
        littles_gap=found.littles_gap if args.usable_rate is None else None,
        prefill=_given(args.prefill_rate, "--prefill-rate", None),
        decode=_given(args.decode_rate, "--decode-rate", None),
        source="as given" if args.usable_rate is not None else found.source,
    )


def _layout(args: argparse.Namespace, found: ObservedLoad) -> GpuLayout | None:
    if args.tp is None and args.pp is None and args.dp is None:
        return GpuLayout(found.tensor) if found.tensor and found.usable is not None else None
    return GpuLayout(_whole(args.tp or "1", "--tp"), _whole(args.pp or "1", "--pp"), _whole(args.dp or "1", "--dp"))


def _model(args: argparse.Namespace, found: ObservedLoad) -> Model:
    """The model that is meant. Raises UsageError."""
    try:
        if args.model_config is not None:
            base = config.read(args.model_config, args.weights or "")
        elif name := args.model or ("" if args.dims else found.model):
            base = catalogue.model(name)
        elif args.dims:
            base = _unknown_model(args.dims)
        else:
            raise UsageError("which model? --model NAME, --model-config FILE or --dims layers=80,...")
    except CatalogueError as error:
        if not args.model:
            raise UsageError(
                f"{found.source}: its model {found.model} is not in the catalogue; give --model NAME, "
                f"--model-config FILE or --dims"
            ) from error
        raise UsageError(f"{error}. Or give --model-config FILE, or --dims") from error
    except config.ConfigFileError as error:
        raise UsageError(f"{error}. Or give --model NAME, or --dims") from error
    dims = _dimensions(args.dims)
    if not dims:
        return base
    made = replace(base, **dims, source=f"{base.source}, with --dims" if base.source else "--dims")
    if "layers" in dims or "sliding" in dims:
        made = replace(made, full=made.layers - made.sliding)
    return replace(made, active=made.active or made.parameters, hidden=made.hidden or made.query_heads * made.head_dim)


def _unknown_model(options: Sequence[str]) -> Model:
    if missing := [name for name in ("layers", "parameters") if name not in _dimensions(options)]:
        raise UsageError(f"--dims: {' and '.join(missing)} also")
    texts = dict.fromkeys(("name", "attention", "native", "source", "note"), "")
    numbers = {field.name: 0 for field in fields(Model) if field.name not in texts}
    return Model(**{**texts, **numbers, "name": "a model with these dimensions"})  # type: ignore[arg-type]


def _dimensions(options: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in ",".join(options).split(",") if options else ():
        name, _, value = option.strip().partition("=")
        if name not in DIMENSIONS:
            raise UsageError(f"--dims {option}: write NAME=N with one of {', '.join(DIMENSIONS)}")
        amount = _number(value, f"--dims {name}", least=0.0)
        found[name] = int(amount) if DIMENSIONS[name] == "int" else amount
    return found


def _adapters(text: str | None, model: Model) -> AdapterMemory:
    if text is None:
        return AdapterMemory()
    most, _, rank = text.partition("x")
    if not rank:
        raise UsageError(f"--adapters {text}: write their number, x, and their rank, such as 8x16")
    if not model.head_dim or not model.query_heads:
        raise UsageError("--adapters: the attention dimensions of this model are unknown")
    return AdapterMemory(_whole(most, "--adapters"), memory.adapter_bytes(model, _whole(rank, "--adapters NxRANK")))


def _lengths(text: str | None, option: str, otherwise: Lengths | None, found: ObservedLoad) -> Lengths:
    if text is None:
        if otherwise is None:
            raise UsageError(f"how many tokens? {option} MEAN,P95,P99")
        return otherwise
    given = [_number(one, option) for one in text.split(",")]
    if len(given) > 3 or sorted(given) != given:
        raise UsageError(
            f"{option} {text}: write MEAN, MEAN,P95 or MEAN,P95,P99, each at least as large as the one before"
        )
    if len(given) < 2:
        found.doubts.append(f"{option} has no p95, so memory is sized for the mean: give {option} MEAN,P95,P99")
    return Lengths(given[0], given[min(1, len(given) - 1)], given[-1])


def _given(text: str | None, option: str, otherwise: float | None) -> float | None:
    return otherwise if text is None else _number(text, option)


def _share(text: str | None, option: str, otherwise: float) -> float:
    value = otherwise if text is None else _number(text.removesuffix("%"), option, least=0.0)
    value = value / 100 if text is not None and text.endswith("%") else value
    if not 0 <= value <= 1:
        raise UsageError(f"{option} {text}: write a share from 0 to 1, or 36%")
    return value


def _whole(text: str, option: str) -> int:
    value = _number(text, option, least=0.0)
    if value != int(value) or value < 1:
        raise UsageError(f"{option} {text}: write a whole number of at least 1")
    return int(value)


def _number(text: str, option: str, least: float = 1e-9) -> float:
    """`70.6e9`, `70G`, `128k`. Raises UsageError."""
    try:
        value = float(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= MAX_NUMBER:
        raise UsageError(f"{option} {text}: write a number above 0, such as 12.5, 128k or 70G")
    return value


def _estimate(made: SizingPlan) -> dict[str, Any] | None:
    """The estimate beside a bound; a case that no layout serves is null."""
    if (found := made.estimate) is None:
        return None
    several = {"gpus": found.gpus, "kv_bytes_per_gpu": found.room, "requests_per_second": found.rate}
    return {"text": format_expected(found.gpus)} | {
        name: {case: value if math.isfinite(value) else None for case, value in asdict(of).items()}
        for name, of in several.items()
    }


def _document(made: SizingPlan, found: ObservedLoad) -> dict[str, Any]:
    into, one = made.inputs, made.chosen
    return {
        "model": asdict(into.model),
        "gpu": asdict(into.gpu),
        "weights": into.weights.name,
        "kv": into.kv.name,
        "workload": asdict(into.workload),
        "layout": {
            "tensor_parallel": one.layout.tensor,
            "pipeline_parallel": one.layout.pipeline,
            "data_parallel": one.layout.data,
        },
        "usable_requests_per_second": made.usable,
        "bound": made.bound,
        "instances": made.fleet.instances,
        "gpus": made.fleet.gpus,
        "estimate": _estimate(made),
        "usd_per_hour": made.usd_per_hour,
        "doubts": [*found.doubts, *plan_doubts(made)],
        "steps": [
            {
                "number": step.number,
                "title": step.title,
                "answer": step.answer,
                "lines": [
                    {
                        "name": line.name,
                        "value": line.value,
                        "unit": line.unit,
                        "text": line.told,
                        "how": line.how,
                    }
                    for line in step.lines
                ],
            }
            for step in steps(made)
        ],
    }
