"""The only formatters of times, sizes and ratios."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def format_ns(duration_ns: int | float | None) -> str:
    """Write a duration with three significant digits in the unit that suits it; ``-`` if absent."""
    if duration_ns is None:
        return "-"
    if duration_ns == 0:
        return "0 s"
    size = abs(duration_ns)
    if size >= 100 * NS_PER_MS:
        return f"{_three(duration_ns / NS_PER_S)} s"
    if size >= 100 * NS_PER_US:
        return f"{_three(duration_ns / NS_PER_MS)} ms"
    if size >= NS_PER_US / 10:
        return f"{_three(duration_ns / NS_PER_US)} µs"
    return f"{int(duration_ns)} ns"


def format_bytes(size_bytes: int | float | None) -> str:
    """Write a size in binary units; ``-`` if absent."""
    if size_bytes is None:
        return "-"
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{_three(size)} {unit}" if unit != "B" else f"{int(size)} B"
        size /= 1024
    return f"{_three(size)} TiB"


def format_ratio(ratio: float | None) -> str:
    """Write a share (0 to 1) as per cent with one decimal below ten; ``-`` if absent."""
    if ratio is None:
        return "-"
    percent = 100 * ratio
    return f"{percent:.1f} %" if abs(percent) < 10 else f"{percent:.0f} %"


def _three(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"
