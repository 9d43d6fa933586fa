"""`kvitals patch` on recorded incidents and on files as people write them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvitals.app.demo import HEAVY_TENANT
from kvitals.app.patch.file_forms import engine_commands
from kvitals.app.patch.lever_change import FlagEdit, PatchError, flag_changes
from kvitals.app.patch.proposal import PatchRequest, propose, unified_diff
from kvitals.app.patch.source_text import apply_edits
from kvitals.app.patch.value_check import check_value
from kvitals.rules.finding import LeverAdvice, LeverSetting
from kvitals.ui.cli.main import main
from tests.support.recordings import judge, setup

SHIPPED = HEAVY_TENANT.parent
SLOTS = [FlagEdit("--max-num-seqs", "set", "16")]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(("patch", *words))
    answer = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, answer.out, answer.err


def changed(path: str, content: str, changes: list[FlagEdit] = SLOTS) -> str:
    (command,) = engine_commands(path, content)
    after = apply_edits(content, command.edits(changes))
    (again,) = engine_commands(path, after)
    assert again.has(changes)
    return after


def test_the_diff_applies_and_the_description_has_proof_and_the_way_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "start.sh"
    script.write_text("exec vllm serve org/model --max_num_seqs=2 --port 8000  # two slots")
    code, diff, description = run(capsys, str(SHIPPED / "few_slots.kvcap"), "--file", "start.sh")
    assert code == 0
    subprocess.run(["git", "apply", "-"], input=diff.encode(), check=True)
    assert script.read_text() == "exec vllm serve org/model --max_num_seqs=16 --port 8000  # two slots"
    for part in (
        "SCH01",
        "**Proof.**",
        "**Expected effect.**",
        "**Risk.**",
        "**Roll back.**",
        "`start.sh` then has `--max-num-seqs 2`.",
    ):
        assert part in description
    assert run(capsys, str(SHIPPED / "few_slots.kvcap"), "--file", "start.sh")[1] == ""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1", "needs a value above 2, which is --max-num-seqs today, not 1; kvitals proposes 16"),
        ("2", "--max-num-seqs is 2 today"),
        ("-5", "--max-num-seqs takes a whole number from 1 to 1,048,576, not -5"),
        ("4.5", "--max-num-seqs takes a whole number from 1 to 1,048,576, not 4.5"),
        ("99999999999999999999", "--max-num-seqs takes a whole number from 1 to 1,048,576, not 99999999999999999999"),
        ("abc", "--max-num-seqs takes a number, not abc"),
    ],
)
def test_a_value_that_does_not_fit_the_lever_is_refused(
    capsys: pytest.CaptureFixture[str], value: str, message: str
) -> None:
    code, out, err = run(capsys, str(SHIPPED / "few_slots.kvcap"), "--set", value)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


@pytest.mark.parametrize(
    ("version", "value", "accepted"),
    [("0.8.0", "nvfp4", False), ("0.33.0", "nvfp4", True), ("", "nvfp4", True), ("0.33.0", "fp9", False)],
)
def test_a_value_is_checked_against_the_choices_of_the_version(version: str, value: str, accepted: bool) -> None:
    setting = LeverSetting("--kv-cache-dtype", "", "fp8", True, "")
    lever = LeverAdvice("kv-quantization", "Use an FP8 KV cache", "", "", "", "", "free", setting, "", [])
    change = FlagEdit("--kv-cache-dtype", "set", value)
    if accepted:
        check_value(change, lever, "vllm", version)
    else:
        with pytest.raises(PatchError, match=f"--kv-cache-dtype does not accept {value}; choose one of: auto"):
            check_value(change, lever, "vllm", version)


@pytest.mark.parametrize(("value", "accepted"), [("0.95", True), ("1.5", False), ("0.85", False)])
def test_a_share_stays_within_one(value: str, accepted: bool) -> None:
    setting = LeverSetting("--gpu-memory-utilization", "0.9", "0.95", True, "")
    lever = LeverAdvice("raise-kv-budget", "Give the KV cache more memory", "", "", "", "", "free", setting, "", [])
    change = FlagEdit("--gpu-memory-utilization", "set", value)
    if accepted:
        check_value(change, lever, "vllm", "0.33.0")
    else:
        with pytest.raises(PatchError, match="above"):
            check_value(change, lever, "vllm", "0.33.0")


def test_the_effect_is_shown_only_for_the_value_that_it_is_calculated_for(capsys: pytest.CaptureFixture[str]) -> None:
    recording = str(SHIPPED / "few_slots.kvcap")
    assert "0 requests at best" in run(capsys, recording, "--set", "16")[1]
    other = run(capsys, recording, "--set", "8")[1]
    assert "`--max-num-seqs 8`" in other
    assert "not predicted" in other
    assert "at best" not in other


def test_a_file_that_differs_from_the_running_engine_is_reported_and_restored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file, recording = tmp_path / "compose.yaml", str(SHIPPED / "heavy_tenant.kvcap")
    words = ("--lever", "raise-kv-budget", "--file", "compose.yaml")
    service = "services:\n  engine:\n    command: vllm serve org/model{}\n"
    file.write_text(service.format(""))
    _, diff, err = run(capsys, recording, *words)
    assert "+    command: vllm serve org/model --num-gpu-blocks-override" in diff
    assert "warning: compose.yaml does not set --num-gpu-blocks-override, but the running engine reports 1" in err
    assert "**Warning.** compose.yaml does not set" in err
    assert "`compose.yaml` then has no `--num-gpu-blocks-override`." in err
    file.write_text(service.format(" --num-gpu-blocks-override 77"))
    _, _, err = run(capsys, recording, *words)
    assert "warning: compose.yaml has --num-gpu-blocks-override 77, but the running engine reports 1" in err
    assert "`compose.yaml` then has `--num-gpu-blocks-override 77`." in err


def test_going_back_names_the_flag_of_each_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "start.sh").write_text("vllm serve org/model --num-gpu-blocks-override 129\n")
    _, _, err = run(capsys, str(SHIPPED / "heavy_tenant.kvcap"), "--lever", "kv-quantization", "--file", "start.sh")
    assert "`start.sh` then has no `--kv-cache-dtype` and `--num-gpu-blocks-override 129`." in err


def test_the_risk_is_of_the_setting_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, str(SHIPPED / "heavy_tenant.kvcap"), "--lever", "raise-kv-budget")[1]
    assert "`--num-gpu-blocks-override" in out
    assert "if so many blocks do not fit" in out
    assert "0.95" not in out


def test_without_a_file_the_description_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(SHIPPED / "few_slots.kvcap"), "SCH01")
    assert code == 0
    assert out.startswith("# Allow more concurrent requests: `--max-num-seqs 16`")


def test_the_first_lever_that_a_file_can_hold_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("vllm serve org/model \\\n  --num-gpu-blocks-override 129 \\\n  --port 8000\n")
    _, diff, _ = run(capsys, str(SHIPPED / "heavy_tenant.kvcap"), "--file", str(script))
    assert "+  --num-gpu-blocks-override 278 \\" in diff
    assert "--kv-cache-dtype" not in diff  # no data shows a GPU with FP8
    fp8 = "--lever", "kv-quantization", "--file", str(script)
    _, diff, _ = run(capsys, str(SHIPPED / "heavy_tenant.kvcap"), *fp8)
    assert "+  --num-gpu-blocks-override 258 \\" in diff
    assert "+  --port 8000 \\\n+  --kv-cache-dtype fp8" in diff


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("KVC22",), "KVC22 did not fire; findings of this document: SCH01"),
        (("SCH01", "--lever", "nothing"), "no lever nothing in SCH01"),
        (("--file", "missing.sh"), "missing.sh cannot be read"),
    ],
)
def test_what_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, str(SHIPPED / "few_slots.kvcap"), *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_lever_outside_of_the_engine_is_reported_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, str(SHIPPED / "unique_prompts.kvcap"), "PFX10")
    assert code == 2
    assert "stable-prompt-head: not an engine setting" in err


def test_a_described_value_is_given_with_set() -> None:
    setting = LeverSetting("--max-cpu-loras", "", "adapters that are active within an hour", True, "")
    with pytest.raises(PatchError, match="give it with --set VALUE"):
        flag_changes(setting)
    assert flag_changes(setting, "8") == [FlagEdit("--max-cpu-loras", "set", "8")]


def test_keys_of_a_json_value_are_merged() -> None:
    setting = LeverSetting("--speculative-config", "", "num_speculative_tokens: 2", True, "")
    after = changed(
        "start.sh",
        """vllm serve m --speculative-config '{"method": "ngram", "num_speculative_tokens": 8}' --port 1\n""",
        flag_changes(setting),
    )
    assert """--speculative-config '{"method":"ngram","num_speculative_tokens":2}' --port 1""" in after


def test_keys_that_are_no_whole_value_are_not_set_alone() -> None:
    setting = LeverSetting("--kv-transfer-config", "", '"kv_load_failure_policy": "recompute" in its JSON', True, "")
    (command,) = engine_commands("start.sh", "vllm serve m\n")
    with pytest.raises(PatchError, match="it needs kv_connector"):
        command.edits(flag_changes(setting))


def test_the_flags_that_mean_nothing_without_a_removed_one_go_with_it() -> None:
    setting = LeverSetting("--speculative-algorithm", "", "remove it", True, "")
    content = "python3 -m sglang.launch_server --speculative-algorithm EAGLE --speculative-num-steps 3 --port 1\n"
    assert changed("start.sh", content, flag_changes(setting)) == "python3 -m sglang.launch_server --port 1\n"


def test_a_switch_replaces_its_opposite() -> None:
    setting = LeverSetting("--enable-prefix-caching", "off", "on", True, "")
    content = "vllm serve m --no-enable-prefix-caching --port 1\n"
    assert changed("start.sh", content, flag_changes(setting)) == "vllm serve m --port 1 --enable-prefix-caching\n"


VARIABLE = """\
spec:
  containers:
  - name: engine
    image: example/engine
    command: ["bash", "-lc"]
    args: ["exec vllm serve org/model $VLLM_ARGS"]
    env:
    - name: VLLM_ARGS
      value: "--max-num-seqs 4 --dtype auto"
"""


def test_the_value_of_a_variable_is_changed_where_it_stands() -> None:
    assert '"--max-num-seqs 16 --dtype auto"' in changed("pod.yaml", VARIABLE)
    unset = changed("pod.yaml", VARIABLE.replace("--max-num-seqs 4 ", ""))
    assert 'args: ["exec vllm serve org/model $VLLM_ARGS --max-num-seqs 16"]' in unset


def test_a_variable_that_is_not_in_the_file_is_noted() -> None:
    (command,) = engine_commands("pod.yaml", VARIABLE.partition("    env:")[0])
    assert any("kvitals does not know `$VLLM_ARGS`" in note for note in command.notes)


def test_a_variable_of_a_shell_script_is_changed_where_it_is_assigned() -> None:
    content = 'ARGS="--max-num-seqs 4"\nexec vllm serve org/model $ARGS\n'
    assert changed("start.sh", content) == 'ARGS="--max-num-seqs 16"\nexec vllm serve org/model $ARGS\n'


def test_docker_run_is_a_command_of_its_image() -> None:
    content = "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.32.0 --model m --max-num-seqs 2\n"
    assert changed("run.sh", content).endswith("--model m --max-num-seqs 16\n")


def test_an_image_with_an_entry_point_takes_the_model_as_its_first_argument() -> None:
    content = "services:\n  chat:\n    image: vllm/vllm-openai:v0.32.0\n    command: [org/model, --port, '8000']\n"
    assert "command: [org/model, --port, '8000', --max-num-seqs, '16']" in changed("compose.yaml", content)


def test_a_command_that_is_no_engine_is_left_alone() -> None:
    content = (
        "spec:\n  containers:\n  - name: a\n    image: vllm/vllm-openai\n    command: [sleep, inf]\n    args: [x]\n"
    )
    assert engine_commands("pod.yaml", content) == []


def test_of_two_engines_one_is_chosen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    service = "  {}:\n    command: vllm serve org/model --max-num-seqs 2\n"
    file.write_text("services:\n" + service.format("one") + service.format("two"))
    code, _, err = run(capsys, str(SHIPPED / "few_slots.kvcap"), "--file", str(file))
    assert code == 2
    assert "starts several engines: one, two. Choose one with --container NAME" in err
    _, diff, _ = run(capsys, str(SHIPPED / "few_slots.kvcap"), "--file", str(file), "--container", "two")
    assert diff.count("+    command: vllm serve org/model --max-num-seqs 16") == 1


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("deploy.yaml", "{{- if .Values.x }}\nargs: []\n{{- end }}\n", "is a template"),
        ("deploy.yaml", "a: [b\n", "is not valid YAML"),
        ("start.sh", "vllm serve 'm\n", "the command line has a quote ' that is not closed"),
        ("big.yaml", "#" * (1 << 20) + "\n", "is larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(path: str, content: str, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        engine_commands(path, content)


def test_aliases_of_a_hostile_file_are_followed_once() -> None:
    lines = ["a0: &a0 {command: [vllm, serve, m, --max-num-seqs, '2']}"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    assert len(engine_commands("deploy.yaml", "\n".join(lines) + "\n")) == 1


def test_percent_signs_of_a_unit_are_doubled() -> None:
    changes = [FlagEdit("--served-model-name", "set", "a%b")]
    after = changed("engine.service", "[Service]\nExecStart=/usr/bin/vllm serve m\n", changes)
    assert "ExecStart=/usr/bin/vllm serve m --served-model-name a%%b\n" in after


FOREIGN = (
    ({"flag": "--trust-remote-code with --max-num-seqs"}, "names a flag that this lever does not have here"),
    ({"flag": "--max-num-seqs 5 --trust-remote-code with --seed"}, "names a flag that this lever does not have here"),
    ({"flag": "--model", "to": "evil/model"}, "names a flag that this lever does not have here"),
    ({"to": "-5"}, "takes a whole number from 1"),
    ({"to": "1e9999"}, "is not a finite number"),
    ({"to": "4\x1b[31m"}, "non-printable characters"),
    ({"to": "\u202e61"}, "non-printable characters"),
    ({"to": "${PATH}"}, "has `$`"),
    ({"to": "$(HOME)"}, "has `$`"),
)


def test_a_document_of_somebody_else_brings_no_setting_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its texts stood in the diff as they came."""
    unit = tmp_path / "engine.service"
    unit.write_text("[Service]\nExecStart=/usr/bin/vllm serve org/model --max-num-seqs 2\n")
    document = msgspec.to_builtins(judge(SHIPPED / "few_slots.kvcap", setup()).document)
    (lever,) = [one for one in document["causes"][0]["levers"] if one["lever"] == "raise-max-num-seqs"]
    source = tmp_path / "theirs.json"
    for change, why in FOREIGN:
        own = dict(lever["setting"])
        lever["setting"].update(change)
        document["causes"][0]["levers"] = [lever]
        source.write_bytes(msgspec.json.encode(document))
        code, diff, said = run(capsys, str(source), "SCH01", "--file", str(unit))
        assert (code, diff) == (2, ""), change
        assert why in " ".join(said.split()), (change, said)
        lever["setting"] = own
    source.write_bytes(msgspec.json.encode(document))
    assert (
        "+ExecStart=/usr/bin/vllm serve org/model --max-num-seqs 16" in run(capsys, str(source), "--file", str(unit))[1]
    )


@pytest.mark.parametrize(
    "separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\r\n"]
)
def test_a_diff_of_lines_with_other_line_separators_applies(separator: str, tmp_path: Path) -> None:
    """git ends lines at LF alone; a diff that ends them elsewhere is corrupt."""
    before = f"# one{separator}two\n# a{separator}\nvllm serve m --max-num-seqs 2\n# {separator}end"
    after = before.replace("seqs 2", "seqs 16")
    file = tmp_path / "start.sh"
    file.write_bytes(before.encode())
    subprocess.run(
        ["git", "apply", "-"], input=unified_diff("start.sh", before, after).encode(), cwd=tmp_path, check=True
    )
    assert file.read_bytes() == after.encode()


TWO = "vllm serve m --max-num-seqs 2{} vllm serve n --max-num-seqs 3"
CONTAINER = "spec:\n  containers:\n  - name: v\n    command: [bash, -c]\n    args:\n    - |\n      {}\n"
TWO_ENGINES = {
    "script": ("start.sh", TWO.format(";") + "\n", ("command 1", "command 2")),
    "background": ("start.sh", TWO.format(" &") + "\n", ("command 1", "command 2")),
    "bash -c in a script": ("start.sh", f"bash -c '{TWO.format(' &&')}'\n", ("command 1", "command 2")),
    "bash -c of a container": ("pod.yaml", CONTAINER.format(TWO.format(";")), ("v/1", "v/2")),
    "lines of a container": ("pod.yaml", CONTAINER.format(TWO.format(" &\n     ")), ("v/1", "v/2")),
    "containers of one name": (
        "pods.yaml",
        "---\n".join(
            f"kind: Pod\ncontainers:\n- name: v\n  command: [vllm, serve, {m}, --max-num-seqs, '2']\n" for m in "mn"
        ),
        ("v/1", "v/2"),
    ),
    "unit": ("v.service", f"[Service]\nExecStart=bash -c '{TWO.format(';')}'\n", ("ExecStart/1", "ExecStart/2")),
}


@pytest.mark.parametrize("case", TWO_ENGINES)
def test_of_two_engines_in_one_script_the_named_one_is_changed(
    case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the script of a container the first was changed without a word, and two of one name could not be chosen."""
    name, content, commands = TWO_ENGINES[case]
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    words = (str(SHIPPED / "few_slots.kvcap"), "--file", name)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert f"starts several engines: {', '.join(commands)}. Choose one with --container NAME" in err
    for number, command in enumerate(commands):
        code, diff, _ = run(capsys, *words, "--container", command)
        assert code == 0
        subprocess.run(["git", "apply", "-"], input=diff.encode(), check=True)
        values = [one.state("--max-num-seqs") for one in engine_commands(name, Path(name).read_text())]
        before = [one.state("--max-num-seqs") for one in engine_commands(name, content)]
        assert values == ["16" if place == number else old for place, old in enumerate(before)]
        Path(name).write_text(content)


def test_a_file_whose_name_a_diff_cannot_hold_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a\nb.sh").write_text("vllm serve m --max-num-seqs 2\n")
    code, out, err = run(capsys, str(SHIPPED / "few_slots.kvcap"), "--file", "a\nb.sh")
    assert (code, out) == (2, "")
    assert "a diff cannot name this file" in err


@pytest.mark.parametrize(
    ("flag", "to", "value", "message"),
    [
        ("--enforce-eager", "on", "5", "is a switch without a value"),
        ("--max-model-len", "4096", "1e300", "does not accept a number as large as 1e300"),
        ("--max-model-len", "4096", "99999999999999999999", "does not accept a number as large as"),
    ],
)
def test_a_switch_takes_no_value_and_a_number_has_a_bound(flag: str, to: str, value: str, message: str) -> None:
    lever = LeverAdvice("a", "A", "", "", "", "", "free", LeverSetting(flag, "", to, True, ""), "", [])
    with pytest.raises(PatchError, match=message):
        check_value(FlagEdit(flag, "set", value), lever, "vllm", "0.33.0")


def test_what_is_only_noted_is_no_change_to_make(capsys: pytest.CaptureFixture[str]) -> None:
    """A recording with "No trouble found" gave a pull request with a restart, and no word of that."""
    healthy = str(SHIPPED / "working_set.kvcap")
    code, out, said = run(capsys, healthy)
    assert code == 2 and not out
    assert "nothing to change: No trouble found" in said and "KVC06" in said
    code, out, _ = run(capsys, healthy, "KVC06")
    assert code == 0 and "**Warning.** KVC06 is only noted, and no problem now. No trouble found" in out


def test_a_first_cause_without_a_lever_for_files_is_not_skipped_in_silence() -> None:
    """`patch` wrote the lever of SCH01 where the verdict was "Load imbalance", and did not say so."""
    document = judge(SHIPPED / "few_slots.kvcap", setup()).document
    [slots, *others] = document.causes
    pool = replace(slots, id="pool", code="SCH13", levers=[])
    several = replace(document, causes=[pool, slots, *others])
    warnings = propose(several, PatchRequest(), {}).warnings
    assert warnings == ["this is for SCH01: no lever of SCH13, the first cause, changes a file"]
    assert propose(several, PatchRequest("SCH01"), {}).warnings == []
    assert propose(document, PatchRequest(), {}).warnings == []
