"""The table of accelerator.py: seconds, rates, shares of what the card can do, and the peers."""

from collections.abc import Mapping
from typing import Any


def shares(case: dict[str, Any], results: dict[str, Any]) -> dict[str, float]:
    """Of the rates that the maker states, and of those measured, the share that a case reached."""
    seconds, peak = case["ours"]["median"], results["peak"]
    machine = results["parts"].get("machine", {}).get("cases", {})
    found = {}
    for what, unit, scale, measured in (
        ("flops", "tflops", 1e12, machine.get("matmul", {})),
        ("bytes", "gbs", 1e9, machine.get("copy", {})),
    ):
        if what in case and peak:
            found[f"{what} of peak"] = case[what] / seconds / (peak[unit] * scale)
        if what in case and measured and case is not measured:
            found[f"{what} of measured"] = case[what] / seconds / (measured[what] / measured["ours"]["median"])
    return found


def table(results: dict[str, Any], peers: Mapping[str, str | None]) -> str:
    """All cases as Markdown.

    Args:
      results: of all parts, as results.json has them.
      peers: part -> the part that it does in PyTorch alone, or None.
    """
    machine, peak = results["machine"], results["peak"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    stated = f"{peak['tflops']:g} TFLOP/s in bfloat16, {peak['gbs']:g} GB/s" if peak else "not known"
    lines = [
        f"{machine['device']} ({machine['nvidia_smi'] or 'no nvidia-smi'}); {versions}; Python {machine['python']}",
        "",
        f"Host: {machine['host']}. Peak as stated by the maker: {stated}. Seconds are medians (least - greatest).",
        "",
        "| case | shape | seconds | rate | of peak | of what was measured | PyTorch, seconds | PyTorch / ours | compiling, s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, part in results["parts"].items():
        for case_name, case in part["cases"].items():
            if "torch" not in case or "ours" in case:  # What a part in PyTorch alone measured stands beside ours.
                lines.append(row(case_name, with_peer(name, case, results, peers), results))
        if part["status"] != "done":
            why = next((attempt["error"] for attempt in reversed(part["attempts"]) if attempt["error"]), "")
            lines.append(f"| {name}: {part['status']} | {why.replace('|', '/')} |" + " |" * 7)
    return "\n".join(lines) + "\n"


def with_peer(
    part: str, case: dict[str, Any], results: dict[str, Any], peers: Mapping[str, str | None]
) -> dict[str, Any]:
    """A case with what a part of its own measured of PyTorch; the ratio's ends are those of the times."""
    for name, other in results["parts"].items():
        peer = other["cases"].get(case["case"], {})
        if peers[name] == part and "torch" in peer and "ours" in case and peer["size"] == case["size"]:
            ours, torch = case["ours"], peer["torch"]
            ends = (("median", "median"), ("min", "max"), ("max", "min"))
            return {**case, "torch": torch, "ratio": {one: torch[one] / ours[other] for one, other in ends}}
    return case


def row(name: str, case: dict[str, Any], results: dict[str, Any]) -> str:
    if "ours" not in case:  # The time ran out.
        took = f"{case['compile']:.0f}" if "compile" in case else f"> {case['compiling']:.0f}"
        return f"| {name} | | not timed |" + " |" * 5 + f" {took} |"
    reached = shares(case, results)
    rate = ""
    if "rate" in case:
        unit, count = case["rate"]
        rate = f"{count / case['ours']['median']:,.0f} {unit}"
    of_peak, of_measured = (
        " / ".join(f"{reached[f'{what} of {of}']:.0%} {word}" for what, word in (("flops", "FLOP"), ("bytes", "bytes")) if f"{what} of {of}" in reached)
        for of in ("peak", "measured")
    )  # fmt: skip
    shape = case.get("shape", "") + (f"; size {case['size']:g}" if case["size"] < 1 else "")
    peer = spread(case["torch"], "{:.4g}") if "torch" in case else case.get("torch_error", "-").replace("|", "/")
    ratio = spread(case["ratio"], "{:.2f}") if "ratio" in case else "-"
    compile_seconds = f"{case['compile']:.0f}" if "compile" in case else "-"
    cells = [name, shape, spread(case["ours"], "{:.4g}"), rate, of_peak, of_measured, peer, ratio, compile_seconds]
    return f"| {' | '.join(cells)} |"


def spread(values: dict[str, float], form: str) -> str:
    return f"{form.format(values['median'])} ({form.format(values['min'])} - {form.format(values['max'])})"
