"""Checks the files in examples/operations: each option and each metric in them exists.

If the machine has a program that reads such a file itself (`promtool`, `systemd-analyze`), this program checks the
file, too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kvstore.cli.common import ExitCode
from kvstore.cli.daemon.configuration import ConfiguredCommand, variable_of
from kvstore.cli.daemon.serve import serve_command
from tests.process.pods.pods import environment_of, manifest

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "operations"
METRIC = re.compile(r"\bhighwatermark_[a-z_]+")
METRICS_PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
DOCUMENTED = set(METRIC.findall(METRICS_PAGE))
OF_HISTOGRAM = re.compile("_(bucket|sum|count)$")


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def yaml_of(name: str) -> Any:
    return yaml.safe_load(text_of(name))


def check_configuration(*arguments: str, environment: dict[str, str] | None = None) -> None:
    result = CliRunner().invoke(serve_command, ["--check-config", *arguments], env=environment or {})
    assert result.exit_code == 0, result.output


def unknown_metrics(text: str) -> set[str]:
    return {OF_HISTOGRAM.sub("", name) for name in METRIC.findall(text)} - DOCUMENTED


def test_the_configuration_file_is_valid() -> None:
    check_configuration("--config", str(FOLDER / "member.toml"))


def test_the_containers_give_a_valid_configuration_in_their_environment() -> None:
    services = yaml_of("compose.yaml")["services"]
    assert isinstance(serve_command, ConfiguredCommand)
    variables = {variable_of(each) for each in serve_command.configurable}

    assert len(services) == 3
    for service in services.values():
        environment = {**service["environment"], "HWM_BOOTSTRAP": "true"}
        assert environment.keys() <= variables
        assert service["command"] == ["serve"]
        check_configuration(environment=environment)


def test_the_pods_give_a_valid_configuration_in_their_environment() -> None:
    (container,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(serve_command, ConfiguredCommand)
    known = {variable_of(each) for each in serve_command.configurable}
    for given in (environment_of("hwm-2", "10.0.0.7"), environment_of("hwm-0", "10.0.0.5", HWM_CLUSTER_ID="ab" * 16)):
        environment = {name: value for name, value in given.items() if name.startswith("HWM_")}
        assert environment.keys() <= known
        assert not re.search(r"\$\(", " ".join(environment.values()))
        check_configuration(environment=environment)
    assert container["args"] == ["serve"]


def test_the_parts_of_the_manifest_fit_together() -> None:
    service, pods, budget = (manifest(kind) for kind in ("Service", "StatefulSet", "PodDisruptionBudget"))
    spec = pods["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    environment = environment_of("hwm-0", "10.0.0.5")
    labels = spec["template"]["metadata"]["labels"]

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["name"] == spec["serviceName"]
    assert labels == service["spec"]["selector"] == spec["selector"]["matchLabels"]
    assert labels == budget["spec"]["selector"]["matchLabels"]
    assert budget["spec"]["maxUnavailable"] == 1  # Two of three pods stay, which are a majority.
    assert int(environment["HWM_BEGIN_WITH"]) == spec["replicas"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert environment["HWM_ADVERTISE"] == f"hwm-0.hwm:{ports['peers']}/hwm-0.hwm:{ports['clients']}"
    assert environment["HWM_METRICS"] == f"10.0.0.5:{ports['metrics']}"
    names = [f"{pods['metadata']['name']}-{ordinal}.{spec['serviceName']}:{ports['clients']}" for ordinal in range(7)]
    assert environment["HWM_JOIN"].split(",") == names
    probes = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"/livez", "/readyz"}
    (mount,), (claim,) = container["volumeMounts"], spec["volumeClaimTemplates"]
    assert mount["name"] == claim["metadata"]["name"]
    assert environment["HWM_DIR"].startswith(mount["mountPath"] + "/")
    assert f"--uid {spec['template']['spec']['securityContext']['runAsUser']} " in text_of("Containerfile")


def test_the_unit_knows_the_exit_codes_after_which_no_restart_helps() -> None:
    unit = text_of("highwatermark.service")

    assert f"RestartPreventExitStatus={int(ExitCode.USAGE)} {int(ExitCode.REMOVED)}\n" in unit
    assert "--config /etc/highwatermark/member.toml" in unit
    assert tomllib.loads(text_of("member.toml"))["dir"].startswith("/var/lib/highwatermark/")
    assert "StateDirectory=highwatermark\n" in unit


def test_the_image_starts_the_command_and_has_every_package() -> None:
    lines = text_of("Containerfile").splitlines()
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]

    assert 'ENTRYPOINT ["hwm"]' in lines
    for package in packages["wheel"]["packages"]:
        assert f"COPY {package} /source/{package}" in lines


def test_every_metric_of_the_alerts_and_the_dashboard_exists() -> None:
    rules = [rule["expr"] for group in yaml_of("alerts.yaml")["groups"] for rule in group["rules"]]
    panels = json.loads(text_of("dashboard.json"))["panels"]
    targets = [target["expr"] for panel in panels for target in panel["targets"]]

    assert unknown_metrics("\n".join(rules)) == set()
    assert unknown_metrics("\n".join(targets)) == set()
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10


def test_the_alerts_are_those_of_the_documents() -> None:
    rules = [rule for group in yaml_of("alerts.yaml")["groups"] for rule in group["rules"]]
    section = METRICS_PAGE.partition("## Alerts that make sense")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| [^|]* \| `(.*?)`(?: for (\d+) ([smhd]))? \|", section, re.MULTILINE)

    assert [(rule["expr"], rule.get("for", "")) for rule in rules] == [
        (expr, time + unit) for expr, time, unit in cells
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10


def test_an_alert_fires_when_every_member_is_down() -> None:
    """If every member is down, no metric is left to compare. So the alert must test for the absence of a metric."""
    rules = {rule["alert"]: rule for group in yaml_of("alerts.yaml")["groups"] for rule in group["rules"]}

    assert " or absent(" in rules["HighwatermarkNoLeader"]["expr"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on PATH")
def test_prometheus_accepts_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", FOLDER / "alerts.yaml"], check=True, timeout=50)
    subprocess.run(["promtool", "test", "rules", FOLDER / "alerts_test.yaml"], check=True, timeout=50)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The program of the unit is not installed here, so another program takes its place."""
    unit = tmp_path / "highwatermark.service"
    unit.write_text(
        text_of("highwatermark.service").replace("/opt/highwatermark/bin/hwm", "/bin/true"), encoding="utf-8"
    )

    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=50, check=False)

    assert (done.returncode, done.stderr) == (0, "")
