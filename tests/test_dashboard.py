"""Grafana's dashboard and the server's document show every metric that there is, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

from helpers import PROMPT
from slipstream.errors import InputError
from slipstream.serve.metrics import Metrics
from test_metrics import Page, run, served

DOCS = Path(__file__).parents[1] / "docs"
DASHBOARD = DOCS / "grafana-dashboard.json"
UNUSED: frozenset[str] = frozenset()  # families that the dashboard deliberately leaves out


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def filled() -> Page:
    """A page on which every family has a sample."""
    metrics = Metrics()

    async def main() -> None:
        engine = served(metrics, "random")
        await engine.generate(PROMPT, max_tokens=50)
        await engine.close()

    run(main())
    metrics.failed(InputError("x"))
    return Page(metrics)


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    page = filled()
    samples = {name for name, *_ in page.samples}
    used = {name for text in expressions() for name in re.findall(r"\bslipstream_\w+", text)}
    assert used <= samples, used - samples
    shown = {f.name for f in page.families if used & {s.name for s in f.samples}}
    assert {f.name for f in page.families} - shown == UNUSED


def test_the_dashboard_groups_by_labels_that_there_are() -> None:
    page = filled()
    labels = {key for _, *rest in page.samples for key, _ in rest} | {"instance"}  # which Prometheus adds
    grouped = {label for text in expressions() for label in re.findall(r"by \((\w+)\)", text)}
    assert {"position", "drafter", "finish_reason", "kind", "le"} <= grouped <= labels
    named = re.findall(r"\{\{(\w+)\}\}", DASHBOARD.read_text())
    assert named and set(named) <= labels


def test_the_dashboard_belongs_to_no_installation() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["id"] is None and "uid" not in dashboard and dashboard["schemaVersion"] >= 39
    sources = [panel["datasource"] for panel in dashboard["panels"] if panel["type"] != "row"]
    sources += [target["datasource"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert sources and all(s == {"type": "prometheus", "uid": "${datasource}"} for s in sources)
    assert {v["name"] for v in dashboard["templating"]["list"]} == {"datasource", "instance"}
    boxes = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(x, y) for b in boxes for x in range(b["x"], b["x"] + b["w"]) for y in range(b["y"], b["y"] + b["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23, "panels overlap or stick out"
    assert all(text.count("(") == text.count(")") and text.count("{") == text.count("}") for text in expressions())


def test_the_document_lists_every_metric_and_no_other() -> None:
    text = (DOCS / "server.md").read_text().partition("\n## Metrics")[2].partition("\n**A dashboard")[0]
    told = {name for line in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)", line)}
    assert told == {
        f.name.removeprefix("slipstream_") + "_total" * (f.type == "counter") for f in Page(Metrics()).families
    }
