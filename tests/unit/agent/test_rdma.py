"""RDMA ports: what the kernel's files mean, which there may be, and what anybody may have put there.

The files of mlx4_0 have the values of node_exporter's test data (collector/fixtures, sys/class/infiniband); those of
EFA have the names of AWS's driver.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from host_stage import Watched, record
from hypothesis import given
from hypothesis import strategies as st

from kvitals.agent.collectors import rdma
from kvitals.agent.collectors.host import _start_of
from kvitals.agent.records import NodeSample, RdmaPort

MLX4 = {
    "state": "4: ACTIVE\n",
    "rate": "40 Gb/sec (4X QDR)\n",
    "counters/port_rcv_data": "2221223609\n",
    "counters/port_xmit_data": "26509113295\n",
    "counters/link_downed": "0\n",
    "counters/link_error_recovery": "0\n",
    "counters/port_xmit_discards": "3\n",
}
EFA = {
    "state": "4: ACTIVE\n",
    "rate": "100 Gb/sec (4X EDR)\n",
    "hw_counters/tx_bytes": "7890\n",
    "hw_counters/rx_bytes": "3456\n",
    "hw_counters/rx_drops": "7\n",
    "hw_counters/retrans_timeout_events": "1\n",
    "hw_counters/retrans_pkts": "10\n",
}


def port(root: Path, device: str, files: Mapping[str, str], number: str = "1") -> None:
    for name, text in files.items():
        file = root / device / "ports" / number / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_words_are_bytes_and_a_rate_is_bytes_a_second(tmp_path: Path) -> None:
    port(tmp_path, "mlx4_0", MLX4)
    port(tmp_path, "rdmap0s31", EFA)
    assert rdma.read_ports(tmp_path, _start_of) == {
        "mlx4_0/1": RdmaPort(
            active=True, rate=5e9, received=8884894436.0, sent=106036453180.0, faults={"link": 0.0, "dropped": 3.0}
        ),
        "rdmap0s31/1": RdmaPort(
            active=True, rate=12.5e9, received=3456.0, sent=7890.0, faults={"dropped": 7.0, "resent": 1.0}
        ),
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"state": "1: DOWN\n", "rate": "2.5 Gb/sec (1X SDR)\n"}, RdmaPort(active=False, rate=312.5e6)),
        ({"state": "4: ACTIVE", "rate": "unknown\n"}, RdmaPort(active=True)),
        ({"rate": "9" * 4000, "counters/port_xmit_data": "N/A (no PMA)\n"}, RdmaPort(active=False)),
        ({"state": "4: ACTIVE", "counters/port_xmit_data": "9" * 21}, RdmaPort(active=True)),
    ],
)
def test_what_a_driver_does_not_report_is_unknown(tmp_path: Path, files: Mapping[str, str], expected: RdmaPort) -> None:
    port(tmp_path, "mlx5_0", files)
    assert rdma.read_ports(tmp_path, _start_of) == {"mlx5_0/1": expected}


def test_a_node_without_rdma_has_no_port(tmp_path: Path) -> None:
    assert rdma.read_ports(tmp_path / "infiniband", _start_of) == {}


def test_devices_and_names_have_bounds(tmp_path: Path) -> None:
    for number in range(rdma.MAX_DEVICES + 8):
        for side in "123":
            port(tmp_path, f"mlx5_{number:02}", {"state": "4: ACTIVE"}, side)
    port(tmp_path, 'a"}\n', {"state": "4: ACTIVE"})
    found = rdma.read_ports(tmp_path, _start_of)
    assert len(found) == rdma.MAX_DEVICES * rdma.MAX_PORTS
    assert all(name.startswith("mlx5_") for name in found)


def test_a_file_that_is_a_pipe_does_not_hang_the_collector(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", {"rate": "40 Gb/sec (4X QDR)"})
    os.mkfifo(tmp_path / "mlx5_0/ports/1/state")
    assert rdma.read_ports(tmp_path, _start_of)["mlx5_0/1"].active is False


@given(st.dictionaries(st.sampled_from(["rate", "state", "counters/port_rcv_data"]), st.binary(max_size=40)))
def test_any_bytes_are_read(files: dict[str, bytes]) -> None:
    read = rdma._port("", lambda path: files.get(path[1:], b""))
    assert read.rate is None or 0 <= read.rate < 1.25e13


def test_a_port_becomes_series() -> None:
    watched = Watched()
    for second in range(0, 65, 5):
        ports = {
            "mlx5_0/1": RdmaPort(active=True, rate=5e9, sent=4.5e9 * second, received=1e9 * second, faults={}),
            "mlx5_1/1": RdmaPort(active=True, rate=5e9, sent=1e6 * second, faults={"resent": 2.0 * second}),
        }
        watched.feed(record(float(second), node=NodeSample(cpus=8, rdma=ports)))
    values = watched.values()
    assert values["kvitals_host_rdma_rate_bytes_per_second{port=mlx5_0/1}"] == 5e9
    assert values["kvitals_host_rdma_bytes_total{direction=sent,port=mlx5_0/1}"] == 4.5e9 * 60
    assert values["kvitals_host_rdma_faults_total{kind=resent,port=mlx5_1/1}"] == 120
    assert values["kvitals_host_rdma_port_active{port=mlx5_1/1}"] == 1
