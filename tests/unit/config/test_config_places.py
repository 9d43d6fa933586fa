"""Where a configuration is read from: files, the environment, targets files."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from kvitals.config import (
    ConfigError,
    load,
    read_targets,
)
from tests.support.config_texts import write


class TestWhere:
    def test_search_order(self, folder: Path) -> None:
        env = {"HOME": str(folder / "home")}
        home = write(folder / "home/.config/kvitals/kvitals.toml", "")
        assert load(env=env).file == home
        xdg = write(folder / "xdg/kvitals/kvitals.toml", "")
        env["XDG_CONFIG_HOME"] = str(folder / "xdg")
        assert load(env=env).file == xdg
        write(folder / "kvitals.toml", "")
        assert load(env=env).file == Path("kvitals.toml")
        env["KVITALS_CONFIG"] = str(write(folder / "env.toml", ""))
        assert load(env=env).file == folder / "env.toml"
        assert load(write(folder / "given.toml", ""), env=env).file == folder / "given.toml"

    def test_a_file_that_is_named_must_be_there(self, folder: Path) -> None:
        for path, env in ((folder / "none.toml", {}), (None, {"KVITALS_CONFIG": "none.toml"})):
            with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
                load(path, env=env)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"[agent\n", "line 1"),
            (b"\xff\xfe", "is not UTF-8"),
            (b"#" * (2 << 20), "larger than"),
            (b"x = " + b"[" * 100_000, "kvitals.toml: "),
            (b"[agent]\nport = 1_0" + b"9" * 5000, r"kvitals\.toml: integer of more than 4,300 digits.*at line 2"),
            (b"[agent]\nhosts = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[history]\nretention = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[params.KVC05]\nx = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[[target]]\nurl = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[[request_log]]\npath = 0x" + b"f" * 5000, "kvitals.toml: "),
            (b"[slo]\nttft = 0x" + b"f" * 5000, "kvitals.toml: "),
        ],
    )
    def test_unreadable(self, folder: Path, content: bytes, says: str) -> None:
        (folder / "kvitals.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=says):
            load(env={})

    def test_paths_are_relative_to_the_file(self, folder: Path) -> None:
        path = write(folder / "etc/k.toml", '[agent]\nrules = ["mine", "/abs"]\ntargets_file = "t.txt"\n')
        agent = load(path, env={}).agent
        assert agent.rules == (folder / "etc/mine", Path("/abs"))
        assert agent.targets_file == (folder / "etc/t.txt",)


class TestEnvironment:
    def test_overrides(self, folder: Path) -> None:
        write(folder / "kvitals.toml", '[agent]\nlisten = "1.1.1.1:1"\n[[target]]\nurl = "http://a"\n')
        config = load(
            env={
                "KVITALS_LISTEN": ":9000",
                "KVITALS_INTERVAL": "1s",
                "KVITALS_WINDOW": "600",
                "KVITALS_NODE": "n1",
                "KVITALS_CLUSTER": "",
                "KVITALS_TARGETS": "http://a/, b:8000  b:8000",
            }
        )
        assert config.agent.listen == ":9000"
        assert (config.agent.interval, config.agent.window) == (1.0, 600.0)
        assert (config.labels.node, config.labels.cluster) == ("n1", "")
        assert [target.url for target in config.targets] == ["http://a", "http://b:8000"]

    @pytest.mark.parametrize(
        ("variable", "value", "says"),
        [
            ("KVITALS_INTERVAL", "often", "KVITALS_INTERVAL: interval: must be a duration"),
            ("KVITALS_LISTEN", "[x]", "KVITALS_LISTEN: listen must be HOST:PORT"),
            ("KVITALS_TARGETS", "http://u:p@h", "KVITALS_TARGETS: the URL of h contains a password"),
        ],
    )
    def test_names_the_variable(self, folder: Path, variable: str, value: str, says: str) -> None:
        with pytest.raises(ConfigError, match=f"^{says}"):
            load(env={variable: value})

    def test_the_node_of_a_daemonset(self, folder: Path) -> None:
        """In a pod the host's name is the pod's, so the node's name is the label `node` as well."""
        write(folder / "kvitals.toml", "[kubernetes]\n")
        config = load(env={"NODE_NAME": "gpu-7"})
        assert config.kubernetes is not None
        assert (config.kubernetes.node, config.labels.node) == ("gpu-7", "gpu-7")
        write(folder / "kvitals.toml", '[kubernetes]\n[labels]\nnode = "seven"\n')
        config = load(env={"NODE_NAME": "gpu-8", "KVITALS_NODE": ""})
        assert config.kubernetes is not None
        assert (config.kubernetes.node, config.labels.node) == ("gpu-8", "seven")
        with pytest.raises(ConfigError, match=r"set the variable NODE_NAME from spec\.nodeName"):
            load(env={})

    def test_does_not_hide_a_broken_file(self, folder: Path) -> None:
        write(folder / "kvitals.toml", "agent = 3")
        with pytest.raises(ConfigError, match="must be a table"):
            load(env={"KVITALS_LISTEN": ":1"})


class TestTargetsFile:
    def test_lines(self, folder: Path) -> None:
        path = write(folder / "t", "# ours\nhttp://a:8000\n\n  b:8001/metrics  # the second\n")
        assert [t.url for t in read_targets(path)] == ["http://a:8000", "http://b:8001/metrics"]

    def test_file_sd(self, folder: Path) -> None:
        path = write(
            folder / "t.json",
            """[{"targets": ["a:8000", "b:8000"], "labels": {"pool": "chat", "job": "vllm"}},
                {"targets": ["d"], "labels": {"role": "gpu-node"}},
                {"targets": ["e"], "labels": {"role": "router"}},
                {"targets": ["c"], "labels": {"__scheme__": "https", "__metrics_path__": "/m"}},
                {"targets": []}]""",
        )
        targets = read_targets(path)
        assert [t.url for t in targets] == ["http://a:8000", "http://b:8000", "http://d", "http://e", "https://c/m"]
        assert [t.labels for t in targets] == [{"pool": "chat"}, {"pool": "chat"}, {}, {"role": "router"}, {}]

    @pytest.mark.parametrize(
        "text",
        [
            "http://a b",
            "[",
            "[1]",
            '[{"targets": "a"}]',
            '[{"targets": ["a"], "labels": [1]}]',
            '[{"targets": [{}]}]',
            "[" * 100_000,
        ],
    )
    def test_broken(self, folder: Path, text: str) -> None:
        path = write(folder / "t", text)
        with pytest.raises(ConfigError, match="^" + re.escape(str(path))):
            read_targets(path)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("http://a\n\nhttp://b c\n", "line 3: 'http://b c' is not the URL"),
            ("http://http://a:8000", "line 1: 'http://http://a:8000' is not the URL"),
            ('{"targets": ["a"]}', "must be a list, "),
            ("[\n" + "9" * 5000 + "]", r"integer of more than 4,300 digits: write a smaller number \(at line 2\)"),
            ('[{"targets": ["http://a:8000"]}]', "'http://a:8000' must be HOST:PORT; set its scheme with the label"),
        ],
    )
    def test_what_is_broken_is_said_with_its_place(self, folder: Path, text: str, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            read_targets(write(folder / "t", text))

    def test_missing(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="No such file"):
            read_targets(folder / "t")


@pytest.mark.parametrize("part", ["a", '"a b"', "'a' ", " a\t"])
@pytest.mark.parametrize("form", ["{}=1", "[{}]", "x={{{}=1}}"])
def test_a_key_of_many_parts_is_an_error_before_it_is_parsed(tmp_path: Path, part: str, form: str) -> None:
    file = tmp_path / "kvitals.toml"
    file.write_text("# a comment\n" + form.format(".".join([part] * 100_000)))
    began = time.process_time()
    with pytest.raises(ConfigError, match="line 2: a key may have at most 64 parts"):
        load(file, {})
    assert time.process_time() - began < 5.0


def test_dots_in_values_are_not_parts_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "kvitals.toml"
    urls = ", ".join(f'"http://10.0.{i // 250}.{i % 250}:8000"' for i in range(1000))
    file.write_text(f"x = [{urls}]")
    with pytest.raises(ConfigError, match="x"):
        load(file, {})
