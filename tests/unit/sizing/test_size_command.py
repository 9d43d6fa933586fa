"""`kvitals size` as a user would type it."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvitals.diagnoser.sizing.estimate import Interval
from kvitals.diagnoser.sizing.memory import precision
from kvitals.diagnoser.sizing.plan import INPUT_BOUNDS, Inputs, SizingError, plan
from kvitals.diagnoser.sizing.working import steps
from kvitals.diagnoser.sizing.working_serve import format_expected
from kvitals.diagnoser.sizing.workload import Lengths, Workload
from kvitals.rules import catalogue
from kvitals.ui.cli.main import main
from tests.unit.sizing.test_model_config import LLAMA_70B

ROOT = Path(__file__).parents[3]
TRACE = str(ROOT / "tests" / "fixtures" / "mooncake" / "conversation-1500.jsonl.gz")
CAPTURE = str(ROOT / "app" / "demo" / "working_set.kvcap")
LLAMA = ("--model", "Llama 3.3 70B", "--gpu", "H100 SXM")
LOAD = ("--peak", "120", "--prompt", "1000,3000,8000", "--answer", "200,400")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["size", *arguments])
    assert isinstance(stop.value.code, int)
    out = capsys.readouterr()
    return stop.value.code, out.out, out.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def line(found: dict[str, Any], step: int, name: str) -> dict[str, Any]:
    lines = found["steps"][step - 1]["lines"]
    return next(one for one in lines if one["name"].startswith(name))  # type: ignore[no-any-return]


def test_the_curve_example_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """120 requests/s at 12 of an instance of TP4 with a margin of 1.3: 52 GPUs."""
    measured = ("--usable-rate", "12", "--c-max", "48", "--tp", "4", "--safety", "1.3", "--weights", "fp8")
    found = document(capsys, *LLAMA, *LOAD, *measured, "--price", "2")
    assert (found["instances"], found["gpus"], found["bound"]) == (13, 52, False)
    assert found["usd_per_hour"] == 104
    assert "stays for 4 s" in line(found, 7, "C_max")["how"]
    assert line(found, 13, "queue limit")["value"] == 22  # (2 s - 0.16 s) x 12/s


def test_without_a_measurement_it_says_that_it_is_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *LLAMA, *LOAD)
    assert code == 0
    assert "At least" in out and "bound" in out
    assert [f"{n:>2}  " in out for n in range(1, 14)] == [True] * 13


def test_a_trace_without_prefix_ids_is_a_workload_without_hits(capsys: pytest.CaptureFixture[str]) -> None:
    samples = Path(__file__).parents[2] / "fixtures" / "traces"
    azure = document(
        capsys, *LLAMA, "--trace", str(samples / "azure_2023.csv"), "--weights", "fp8", "--slo", "ttft=30s"
    )
    assert azure["workload"]["cached"] == 0.0
    assert "no prefix ids: arrivals and lengths only" in json.dumps(azure["workload"])


def test_a_model_is_sized_in_the_format_that_it_is_published_in(capsys: pytest.CaptureFixture[str]) -> None:
    """671 GB of FP8 weights: 8 H200, where 16 bits would take 16."""
    found = document(capsys, "--model", "DeepSeek-V3", "--gpu", "H200", *LOAD)
    assert (found["weights"], found["gpus"] % 8) == ("fp8", 0)
    assert found["layout"]["tensor_parallel"] * found["layout"]["data_parallel"] == 8


@pytest.mark.parametrize("reserve", [("--overhead", "90%"), ("--activations", "500")])
def test_reserves_hold_for_the_estimate_as_well(capsys: pytest.CaptureFixture[str], reserve: tuple[str, ...]) -> None:
    """At least 16 GPUs, expected 4."""
    load = ("--peak", "10", "--prompt", "1000,2000,3000", "--answer", "200,300,400", "--weights", "fp8")
    found = document(capsys, *LLAMA, *load, *reserve)
    assert 2 < found["gpus"] <= found["estimate"]["gpus"]["low"]


def test_an_estimate_is_beside_the_bound_and_follows_the_engines_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *LLAMA, *LOAD)
    gpus = found["estimate"]["gpus"]
    assert found["gpus"] <= gpus["low"] <= gpus["likely"] <= gpus["high"]
    small = (
        "--max-num-batched-tokens",
        "2048",
        "--max-num-seqs",
        "64",
        "--tp",
        str(found["layout"]["tensor_parallel"]),
    )
    more = document(capsys, *LLAMA, *LOAD, *small)["estimate"]["kv_bytes_per_gpu"]
    less = document(capsys, *LLAMA, *LOAD, *small, "--gpu-memory-utilization", "80%")["estimate"]["kv_bytes_per_gpu"]
    assert less["high"] < more["high"]
    assert document(capsys, *LLAMA, *LOAD, "--usable-rate", "12", "--tp", "4")["estimate"] is None


def test_70_b_in_8_bits_fits_one_h100_as_it_does_in_truth(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--peak", "0.1", "--prompt", "500", "--answer", "50", "--batch")
    found = document(capsys, *LLAMA, *load, "--weights", "fp8", "--tp", "1")
    assert found["gpus"] == 1 and found["bound"]


def test_replicas_of_attention_are_a_layout_of_models_with_experts(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--model", "DeepSeek-V3", "--gpu", "H200", *LOAD, "--dp", "8")
    assert found["layout"] == {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 8}
    code, _, err = run(capsys, *LLAMA, *LOAD, "--dp", "8")
    assert code == 2 and "its experts are unknown" in err


def test_a_trace_is_a_workload(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *LLAMA, "--trace", TRACE, "--weights", "fp8", "--slo", "ttft=30s")
    load = found["workload"]
    assert load["mean"] == pytest.approx(2.94, rel=0.01) and load["peak"] > load["mean"]
    assert load["prompt"]["mean"] == pytest.approx(13_988, rel=0.01)
    assert 0.2 < load["cached"] < 0.3


def test_a_recording_is_a_workload_and_options_go_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, CAPTURE, "--model", "Qwen3-8B", "--gpu", "L4", "--hits", "0")
    load = found["workload"]
    assert "working_set.kvcap" in load["source"]
    assert load["prompt"]["mean"] == pytest.approx(976, rel=0.01)
    assert load["cached"] == 0


HUGE = ("--model", "Meta-Llama-3.1-405B", "--peak", "2", "--answer", "300")


@pytest.mark.parametrize(
    ("options", "why", "helps"),
    [
        (("--prompt", "2000", "--tp", "1"), "the weights do not fit", "more GPUs (--tp, --pp)"),
        (
            ("--prompt", "20000000", "--max-model-len", "30M"),
            "H100 NVL 94GB: TP2 x PP16, room for 0 of 1 sequence of",
            "shorter prompts",
        ),
        (("--prompt", "2000", "--tp", "3"), "its 128 heads and 8 KV heads cannot be divided that way", ""),
    ],
)
def test_what_no_gpu_serves_has_a_reason_and_what_to_change(
    options: tuple[str, ...], why: str, helps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *HUGE, *options)
    assert (code, out) == (2, "")
    assert why in err and err.count(why) == 1
    assert helps in err.partition("What would help: ")[2]
    assert "--tp" not in err.partition("What would help: ")[2] or "--tp" in options  # else all layouts were tried


def test_a_gpu_that_does_not_serve_takes_no_figure_from_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *HUGE, "--prompt", "2000", "--slo", "itl=5ms")
    rows = [line.split() for line in out.splitlines() if line.startswith("GB200 (NVL72)")]
    assert [row[2:5] for row in rows] == [["TP32", "1", "32"]]
    assert "not H100 SXM5 80GB: TP8 x PP16, a token takes 30.2 ms even with one request, above the objective" in out


def test_every_gpu_is_tried_where_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", "gpt-oss-120b", "--weights", "fp8", *LOAD)
    assert code == 0
    assert "H200 SXM 141GB" in out and "MI355X" in out


def test_a_model_by_its_config_and_by_its_dimensions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_70B))
    by_config = document(capsys, "--model-config", str(path), "--gpu", "H100 SXM", *LOAD)
    dims = "layers=80,query_heads=64,kv_heads=8,head_dim=128,parameters=70.55G"
    by_dims = document(capsys, "--dims", dims, "--gpu", "H100 SXM", *LOAD)
    known = document(capsys, *LLAMA, *LOAD)
    assert by_config["gpus"] == by_dims["gpus"] == known["gpus"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "which model?"),
        (("--model", "nonesuch"), "not in the catalogue"),
        ((*LLAMA,), "the request rate is missing"),
        ((*LLAMA, "--peak", "3"), "how many tokens? --prompt"),
        ((*LLAMA, "--peak", "zero"), "--peak zero"),
        ((*LLAMA, "--peak", "nan"), "--peak nan"),
        ((*LLAMA, *LOAD, "--tp", "3"), "TP3: its 64 heads"),
        ((*LLAMA, *LOAD, "--tp", "0"), "write a whole number of at least 1"),
        ((*LLAMA, *LOAD, "--hits", "100%"), "below 100 %"),
        ((*LLAMA, *LOAD, "--hits", "-1"), "--hits -1"),
        ((*LLAMA, *LOAD, "--weights", "fp2"), "one of bf16"),
        ((*LLAMA, *LOAD, "--slo", "itl=1ms"), "above the objective"),
        ((*LLAMA, "--peak", "3", "--prompt", "100,50", "--answer", "10"), "each at least as large as the one before"),
        (("--dims", "layers=80", *LOAD), "parameters also"),
        (("--dims", "wings=2", *LOAD), "wings=2"),
        (("--trace", "/nonesuch"), "/nonesuch"),
        (("/nonesuch.kvcap", *LLAMA), "no file or directory"),
        (("--model-config", "/nonesuch"), "cannot be read: No such file"),
    ],
)
def test_what_does_not_go_is_told(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    ("weights", "helps"), [("bf16", "(--weights fp8)"), ("fp8", "(--weights int4)"), ("int4", ""), ("mxfp4", "")]
)
def test_smaller_weights_are_smaller_than_those_given(
    capsys: pytest.CaptureFixture[str], weights: str, helps: str
) -> None:
    """With --weights fp8 what would help was --weights fp8."""
    options = ("--model", "Llama 3.3 70B", "--gpu", "L4", "--tp", "1", "--pp", "1", *LOAD, "--weights", weights)
    _, _, err = run(capsys, *options)
    assert "the weights do not fit" in err
    assert helps in err and ("--weights" in err) == bool(helps)


def test_a_price_is_the_users_before_it_is_the_catalogues(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "kvitals.toml"
    path.write_text("[review]\nprices = {h100 = 2.5}\n")
    configured = document(capsys, *LLAMA, *LOAD, "--config", str(path))
    assert configured["usd_per_hour"] == 2.5 * configured["gpus"]
    given = document(capsys, *LLAMA, *LOAD, "--config", str(path), "--price", "9")
    assert given["usd_per_hour"] == 9 * given["gpus"]
    assert "median of 6 in the catalogue" in line(document(capsys, *LLAMA, *LOAD), 12, "a GPU-hour")["how"]


def mooncake(*requests: tuple[int, int, int]) -> str:
    """Lines of a trace from arrival in ms, tokens of the prompt and of the answer."""
    lines = ({"timestamp": at, "input_length": p, "output_length": o, "hash_ids": []} for at, p, o in requests)
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (mooncake((0, 0, 5), (70_000, 0, 5)), "all prompts have 0 tokens"),
        (mooncake((0, 5, 0), (70_000, 5, 0)), "mean output length must be from 1 to 1e+09 tokens, not 0"),
        (mooncake((0, 5, 5), (30, 5, 5)), "cover only 0.03 s, with its times read as ms"),
        (mooncake((0, 5, 5), (70_000, 5, 5), (86_400_000 * 300, 5, 5)), "its longest pause is 7,200.0 h"),
        (mooncake((0, 5, 5), (70_000, 5, 5), (7_258_118_400_000, 5, 5)), "from 0 to 731 days, not 84,006"),
    ],
)
def test_numbers_of_a_trace_that_give_no_sizing_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    code, _, err = run(capsys, *LLAMA, "--weights", "fp8", "--trace", str(path))
    assert code == 2
    assert says in " ".join(err.split())


@pytest.mark.parametrize("place", INPUT_BOUNDS)
@pytest.mark.parametrize("end", ["least", "most"])
def test_every_number_is_sized_or_refused_up_to_the_ends_of_its_range(place: str, end: str) -> None:
    """Without a division by zero or an overflow."""
    lengths = Lengths(100, 200, 300)
    load = Workload(3, 2, lengths, lengths, 0.1, 2.0, 0.2, "test")
    gpu = catalogue.gpu("H100 SXM")
    base = Inputs(load, catalogue.model("Llama 3.3 70B"), gpu, precision("fp8"), precision("bf16"), 1.2)
    for value in (getattr(INPUT_BOUNDS[place][1], end), 0):
        with contextlib.suppress(SizingError):
            steps(plan(changed(base, place.split("."), value)))


def changed(of: Any, place: list[str], value: float) -> Any:
    """The same with another value at a place of nested fields."""
    inner = value if len(place) == 1 else changed(getattr(of, place[0]), place[1:], value)
    return replace(of, **{place[0]: inner})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--dims", "layers=10,parameters=1e9,query_heads=8,head_dim=64"), "--dims kv_heads=N"),
        (("--dims", "layers=10,parameters=1e9,kv_heads=8"), "--dims hidden=N"),
        (("--model", "Llama 3.3 70B", "--dims", "sliding=90"), "layers do not add up"),
        (("--model", "Llama 3.3 70B", "--dims", "active=100G"), "check active"),
        (("--model", "Llama 3.3 70B", "--pp", "100"), "it has 80 layers"),
        (("--model", "Llama 3.3 70B", "--compute", "0"), "above 0"),
        (("--model", "Llama 3.3 70B", "--bandwidth", "0"), "above 0"),
        (("--model", "Llama 3.3 70B", "--adapters", "8"), "as 8x16"),
        (("--model", "Llama 3.3 70B", "--rate", "30"), "the average rate (30/s) is above the peak (3/s)"),
    ],
)
def test_what_can_not_be_sized_is_told(capsys: pytest.CaptureFixture[str], given: tuple[str, ...], says: str) -> None:
    code, _, err = run(capsys, *given, "--gpu", "H100 SXM", "--peak", "3", "--prompt", "300", "--answer", "30")
    assert code == 2
    assert says in err


def test_what_another_model_carried_does_not_size_this_one(capsys: pytest.CaptureFixture[str]) -> None:
    """4.26 requests/s of a tiny model on a CPU were the usable rate of Llama on an H100: 7 GPUs."""
    source = str(ROOT / "app" / "demo" / "few_slots.kvcap")
    code, out, err = run(capsys, source, "--model", "Llama 3.1 8B", "--gpu", "H100 SXM")
    assert code == 0, err
    text = " ".join(out.split())
    assert "the measured 4.26 requests/s per engine are of its model tiny on its hardware" in text
    assert "on their hardware" not in text and "At least 1 H100" in text


def test_a_trace_of_a_minute_says_that_it_is_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A day whose times were whole seconds was 86 s of milliseconds: 40 GPUs in place of 2."""
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": n, "input_length": 500, "output_length": 50, "hash_ids": [n]} for n in range(0, 86_400, 12)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = document(capsys, *LLAMA, "--weights", "fp8", "--trace", str(path))
    assert line(found, 1, "mean")["value"] <= line(found, 1, "peak")["value"]
    _, out, _ = run(capsys, *LLAMA, "--weights", "fp8", "--trace", str(path))
    assert "the 7,200 requests of the trace cover only 1.4 min, with its times read as ms" in " ".join(out.split())


def test_a_trace_of_a_week_of_seconds_is_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read as milliseconds it is ten minutes, which is long enough for a trace."""
    path = tmp_path / "trace.jsonl"
    path.write_text(mooncake(*((at, 500, 50) for at in range(0, 604_800, 150))))
    _, out, _ = run(capsys, *LLAMA, "--weights", "fp8", "--trace", str(path))
    assert "cover only 10.1 min, with its times read as ms, and 7 days if they are seconds" in " ".join(out.split())


FP8 = (*LLAMA, *LOAD, "--weights", "fp8")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--slo", "ttft=1500"), "write its unit, such as ttft=1500ms or ttft=1500s"),
        (("--slo", "ttft_p99=1500"), "write its unit, such as ttft_p99=1500ms or ttft_p99=1500s"),
        (("--slo", "itl=80"), "write its unit, such as itl=80ms or itl=80s"),
        (("--usable-rate", "2000", "--tp", "4"), "2,000 requests/s of one instance of TP4 are impossible"),
        (("--prefill-rate", "1M"), "its arithmetic ends at 14,318 prompt tokens/s. Check --prefill-rate"),
        (("--decode-rate", "1M"), "its arithmetic ends at 14,237 tokens/s. Check --decode-rate"),
        (("--safety", "0.1"), "safety factor must be from 1 to 100 times the peak, not 0.1"),
        (("--peak", "1G"), "peak requests must be from 1e-09 to 1e+06 per second"),
        (("--prompt", "200000"), "more than its context of 131,072: engines refuse them"),
        (("--prompt", "2000", "--max-model-len", "1k"), "more than its context of 1,000"),
        (("--kv", "nvfp4"), "H100 SXM5 80GB has no FP4 units, which nvfp4 KV needs; use --kv fp8"),
        (("--gpu", "MI355X", "--weights", "nvfp4"), "MI355X does not support nvfp4; use mxfp4 or fp8"),
        (("--hold", "8", "--max-num-seqs", "4"), "4 requests at a time (--max-num-seqs), of 8 to hold"),
        (("--max-num-seqs", "4096", "--max-num-batched-tokens", "512"), "so vLLM does not start"),
        (("--front-end", "40"), "write --front-end with its unit, such as 40ms"),
        (("--batch", "--slo", "ttft=2s"), "nobody waits for a batch, so it has no objectives"),
    ],
)
def test_an_input_that_cannot_be_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *FP8, *given)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--tp", "16"), "TP16 needs 16 GPUs in one link domain, and NVLink4 joins 8 of H100 SXM5 80GB"),
        (("--weights", "nvfp4"), "H100 SXM5 80GB has no 4-bit units"),
        (("--gpu", "A100 SXM4 80GB"), "A100 SXM4 80GB has no 8-bit units"),
        (
            ("--prompt", "1000,140000", "--tp", "8", "--slo", "ttft=30s"),
            "more than the 131,072 tokens of Llama-3.3-70B-Instruct's context",
        ),
        (
            ("--usable-rate", "20", "--tp", "2", "--prompt", "1000,100000", "--slo", "ttft=30s"),
            "the usable 20 requests/s are above the bound of 1.4 requests/s of step 7",
        ),
        (("--usable-rate", "12", "--tp", "4", "--c-max", "4"), "is a stay of 333 ms, but a request takes 1.05 s alone"),
        (("--usable-rate", "4", "--tp", "4", "--c-max", "99", "--max-num-seqs", "64"), "C_max is 99, but"),
        (("--usable-rate", "4", "--gpu-memory-utilization", "0.5"), "they have no effect here"),
        (("--front-end", "1.95s", "--tp", "4"), "no request may wait. Check --front-end"),
    ],
)
def test_an_input_that_is_doubtful_is_said_in_the_answer(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...], says: str
) -> None:
    assert says in " ".join(document(capsys, *FP8, *given)["doubts"])
    assert says in " ".join(run(capsys, *FP8, *given)[1].split())
    assert document(capsys, *FP8)["doubts"] == []


def test_the_engines_limit_of_requests_bounds_the_instance(capsys: pytest.CaptureFixture[str]) -> None:
    """--max-num-seqs 4 changed the expected memory alone: at least 16 GPUs, with 90 sequences at a time."""
    few = document(capsys, *FP8, "--max-num-seqs", "4")
    assert line(few, 7, "sequences at a time")["value"] == 4
    assert few["gpus"] > 10 * document(capsys, *FP8)["gpus"]
    assert few["estimate"]["gpus"]["low"] >= few["gpus"]


def test_what_gpus_send_has_the_prefill_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    sent = line(document(capsys, *FP8, "--tp", "16"), 6, "between GPUs")
    assert sent["value"] == pytest.approx(1.0)
    assert "of a step of 38.1 ms with the prefill in it" in sent["how"]


def test_a_config_states_the_context(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA_70B, "max_position_embeddings": 800}))
    code, _, err = run(capsys, "--model-config", str(path), "--gpu", "H100 SXM", *LOAD)
    assert code == 2
    assert "more than its context of 800" in err


def test_lengths_from_buckets_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    """All prompts have 288 tokens; their p95 was 485, without a word."""
    source = str(ROOT / "app" / "demo" / "few_slots.kvcap")
    found = document(capsys, source, "--model", "Llama 3.1 8B", "--gpu", "H100 SXM")
    prompt = line(found, 1, "prompt, p95")
    assert prompt["value"] > 480
    assert "interpolated in histogram buckets: p95 is from 200 to 500" in prompt["how"]
    assert line(document(capsys, *FP8), 1, "prompt, p95")["how"] == ""


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (Interval(4, 6, 9), "6 GPUs (4 to 9)"),
        (Interval(1, 1, 12345), "1 GPU (1 to 12,345)"),
        (Interval(4, 6, math.inf), "6 GPUs, 4 GPUs at the best shares of the peaks; no layout serves at the lowest"),
        (Interval(18, math.inf, math.inf), "no layout serves at the likely shares of the peaks, 18 GPUs at the best"),
        (Interval(math.inf, math.inf, math.inf), "no layout serves at the shares of the peaks that engines reach"),
    ],
)
def test_what_is_expected_is_a_sentence_in_each_case(gpus: Interval, text: str) -> None:
    assert format_expected(gpus) == text


def test_counts_have_their_separators_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *FP8, "--peak", "100k")
    assert "At least 12,584 H100 SXM5 80GB: 6,292 instances of TP2" in out
    _, out, _ = run(capsys, *LLAMA, "--weights", "fp8", "--peak", "0.1", "--prompt", "500", "--answer", "50")
    assert "x 1 GPU\n" in out


def test_a_short_source_has_no_peak_of_a_day(capsys: pytest.CaptureFixture[str]) -> None:
    """As a short trace; and what another model carried does not hide it."""
    source = str(ROOT / "app" / "demo" / "few_slots.kvcap")
    sized = (source, "--model", "Llama 3.1 8B", "--gpu", "H100 SXM")
    doubts = " ".join(document(capsys, *sized)["doubts"])
    assert "its request rates cover only 1.9 min, in 23 steps" in doubts and "of its model tiny" in doubts
    assert "cover only" not in " ".join(document(capsys, *sized, "--peak", "20")["doubts"])
