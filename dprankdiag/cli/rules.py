"""`dprankdiag rules`: the Prometheus rules, with thresholds and selectors of your choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from dprankdiag.cli.outputs import check_outputs, write_text
from dprankdiag.cli.terminal import write_result
from dprankdiag.errors import UsageError

_LABEL_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?")


@click.command(name="rules", short_help="Print rules and alerts for Prometheus.")
@click.option(
    "--format", "format_name", type=click.Choice(["prometheus", "kubernetes"]), default="prometheus",
    help="A plain rule file, or a PrometheusRule object.",
)  # fmt: skip
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="Change a setting; may be given again.")
@click.option("--list", "list_settings", is_flag=True, help="List the settings with default and meaning.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of the PrometheusRule object.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE (.yml, .yaml).")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(
    format_name: str, given: Sequence[str], list_settings: bool, labels: Sequence[str], output: Path | None, debug: bool
) -> None:
    """Print recording rules and alerts for data-parallel ranks, to be loaded by Prometheus.

    They read what SGLang and vLLM export themselves; docs/rules.md says what each needs.
    """
    from dprankdiag.catalog.prometheus_rules import load_rules
    from dprankdiag.views import prometheus_rules as views

    catalog = load_rules()
    if list_settings:
        write_result(views.render_settings(catalog))
        return
    if output is not None:
        check_outputs([output], [], (".yml", ".yaml"))
    settings = catalog.choose(_split_pairs(given, "--set"))
    chosen = _split_pairs(labels, "--label")
    if format_name == "kubernetes":
        text = views.render_kubernetes(catalog, settings, chosen)
    else:
        _refuse_labels(chosen)
        text = views.render_prometheus(catalog, settings)
    if output is None:
        write_result(text)
    else:
        write_text(output, text)


def _split_pairs(given: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not _LABEL_KEY.fullmatch(key):
            raise UsageError(f"expected KEY=VALUE, got '{one}'", where=option)
        pairs[key] = value
    return pairs


def _refuse_labels(labels: dict[str, str]) -> None:
    if labels:
        raise UsageError("labels need --format kubernetes", where="--label")
