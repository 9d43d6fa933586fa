"""Which vendors' accelerators are on this machine's PCI bus, for when no vendor's library says so."""

from __future__ import annotations

from pathlib import Path

from kvitals.series.files import open_regular

NVIDIA, AMD, INTEL = "nvidia", "amd", "intel"

_VENDORS = {0x10DE: NVIDIA, 0x1002: AMD, 0x8086: INTEL}
_VGA, _3D, _DISPLAY, _PROCESSING = 0x0300, 0x0302, 0x0380, 0x1200  # classes of PCI devices
_OWN_MEMORY = 1 << 30  # bytes mapped from which on a VGA controller has memory of its own; an iGPU maps 256 MB
_MAX_DEVICES = 4096
_MAX_BYTES = 4096


def vendors(system: Path = Path("/sys")) -> set[str]:
    """The vendors of accelerators that are there. A GPU inside of an Intel or AMD processor is not one."""
    folders = [*_listed(system / "bus/pci/devices"), *(card / "device" for card in _listed(system / "class/drm"))]
    return {_VENDORS[_number(folder / "vendor")] for folder in folders if _is_accelerator(folder)}


def has_driver(system: Path = Path("/sys")) -> bool:
    """Whether NVIDIA's kernel module is loaded."""
    return (system / "module/nvidia").exists()


def _is_accelerator(folder: Path) -> bool:
    vendor, kind = _VENDORS.get(_number(folder / "vendor")), _number(folder / "class") >> 8
    if vendor is None:
        return False
    if kind == _VGA and vendor != NVIDIA:
        return _largest_region(folder / "resource") >= _OWN_MEMORY
    return kind in (_VGA, _3D, _DISPLAY, _PROCESSING)


def _largest_region(path: Path) -> int:
    """Bytes of the largest region in a device's `resource`, whose lines are start, end and flags."""
    largest = 0
    for line in _text(path).splitlines():
        start, end, *_ = [*(_hex(word) for word in line.split()), 0, 0]
        largest = max(largest, end - start + 1)
    return largest


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:_MAX_DEVICES]
    except OSError:
        return []


def _number(path: Path) -> int:
    return _hex(_text(path).strip())


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(_MAX_BYTES).decode("ascii", "replace")
    except OSError:
        return ""


def _hex(word: str) -> int:
    try:
        return int(word, 16)
    except ValueError:
        return 0
