"""The commands as a user runs them: on recorded pages and folders, with their output and exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from app.commands import document, gpuwatch
from gpuwatch.app.cli.scope import parse_selector, shown_name
from gpuwatch.app.cli.terminal import output
from gpuwatch.app.errors import OptionsError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.facts.model.cluster import Cluster, Workload
from gpuwatch.facts.model.telemetry import DoubtedDevice
from gpuwatch.say.machine import analysis_schema, to_json
from gpuwatch.sources.collect.snapshot_file import load_snapshot, save_snapshot

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHARED = Path(__file__).parents[2].parent / "shared"
PAGE = FIXTURES / "exposition" / "honor-labels-false.prom"
ALONE = ("--telemetry", PAGE, "--no-cluster")


def test_json_keeps_to_the_published_schema() -> None:
    published = json.loads((Path(__file__).parents[2] / "docs" / "analysis-v1.schema.json").read_text())
    assert published == json.loads(to_json(analysis_schema()))
    found = document("analyze", *ALONE)
    jsonschema.Draft202012Validator(published).validate(found)
    assert found["version"] == 1
    assert found["devices"]


def test_yaml_says_the_same_as_json() -> None:
    result = gpuwatch("analyze", *ALONE, "-o", "yaml")
    assert yaml.safe_load(result.stdout)["devices"] == document("analyze", *ALONE)["devices"]


def test_one_page_is_too_little_to_call_anything_idle_or_degraded() -> None:
    """A page is one sample: no window is covered, so all that can be said is unknown."""
    verdicts = {item["verdict"] for item in document("analyze", *ALONE)["findings"]}
    assert verdicts <= {"unknown", "busy"}


@pytest.mark.skipif(not SHARED.exists(), reason="the real pages of ../shared are not here")
@pytest.mark.parametrize(
    ("page", "devices"),
    [
        ("dcgm/aicr-h100x8-eks-driver580.prom", 8),
        ("dcgm/aicr-promapi-DCGM_FI_DEV_FB_USED.json", 16),
        ("dcgm/runai-t4-x2-1workload.prom", 2),
        ("dcgm/runai-a100-mig-1g5gb-active.prom", 1),
        ("dcgm/runai-a100-mig-enabled-empty.prom", 1),
        ("amd/issue259-unpartitioned-excerpt.prom", 1),
    ],
)
def test_analyze_on_real_pages(page: str, devices: int) -> None:
    found = document("analyze", "--telemetry", SHARED / "samples" / page, "--no-cluster")
    assert len(found["devices"]) == devices
    assert [item for item in found["plan"]["items"] if not item["refusals"]] == []


def test_a_capture_gives_the_same_analysis(tmp_path: Path) -> None:
    file = tmp_path / "c.json.gz"
    assert gpuwatch("capture", *ALONE, "--output-file", file).exit_code == 0
    assert document("analyze", "--telemetry", file) == document("analyze", *ALONE)


def test_a_capture_under_pseudonyms_keeps_the_findings(tmp_path: Path) -> None:
    file = tmp_path / "c.json.gz"
    assert gpuwatch("capture", *ALONE, "--pseudonyms", "--output-file", file).exit_code == 0
    plain, hidden = document("analyze", *ALONE), document("analyze", "--telemetry", file)
    assert len(hidden["devices"]) == len(plain["devices"])
    kinds = [sorted(item["kind"] for item in each["findings"]) for each in (plain, hidden)]
    assert kinds[0] == kinds[1]
    uuid = plain["devices"][0]["uuid"]
    assert uuid not in json.dumps(hidden)


def test_explain_a_device_by_a_beginning_of_its_id() -> None:
    uuid = document("analyze", *ALONE)["devices"][0]["uuid"]
    result = gpuwatch("explain", f"device/{uuid[:14]}", *ALONE)
    assert result.exit_code == 0
    assert "cannot tell: signals are missing" in result.stdout
    assert "health." not in result.stdout, "rules that found nothing are counted"
    whole = gpuwatch("explain", f"device/{uuid[:14]}", *ALONE, "-o", "wide")
    assert "health." in whole.stdout


def test_a_doubted_device_is_counted_shown_and_explained_as_unknown(tmp_path: Path) -> None:
    capture = tmp_path / "moment.json.gz"
    assert gpuwatch("capture", *ALONE, "--output-file", capture).exit_code == 0
    moment = load_snapshot(capture)
    first, *rest = moment.devices
    doubted = DoubtedDevice(shown=first, why="its target is unknown")
    cluster = replace(moment.cluster, known=True)
    save_snapshot(replace(moment, devices=tuple(rest), doubted=(doubted,), cluster=cluster, gaps=()), capture)
    found = document("analyze", "--telemetry", capture)
    assert (found["coverage"]["devices"], found["doubted"][0]["why"]) == (len(moment.devices), "its target is unknown")
    assert not any(first.id in item["devices"] for item in found["findings"])
    facts = document("doctor", "--telemetry", capture, code=ExitCode.LIMITED)["facts"]
    assert (
        facts["devices"]
        == f"{len(moment.devices)}, {len(moment.devices)} reporting now, 0 on a verified Node, 1 not trusted"
    )
    told = gpuwatch("explain", f"device/{first.id}", "--telemetry", capture).stdout
    assert "its target is unknown" in told
    assert "No rule has anything to say about it: it is not trusted." in told


def test_explain_names_what_comes_near() -> None:
    result = gpuwatch("explain", "node/nowhere", *ALONE)
    assert result.exit_code == 1
    assert "No Node 'nowhere'" in result.stderr


def test_doctor_tells_scripts_that_rules_are_limited_and_writes_a_counter_list(tmp_path: Path) -> None:
    out = tmp_path / "counters.csv"
    # The cluster is left out on purpose.
    found = document("doctor", *ALONE, "--csv-out", out, code=ExitCode.LIMITED)
    assert found["limited"] is True
    lines = out.read_text().splitlines()
    assert any(line.startswith("DCGM_FI_DEV_XID_ERRORS") for line in lines), "a custom list replaces the defaults"
    assert any(line.startswith("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL") for line in lines), "what the rules lack"
    names = {line.partition(",")[0] for line in lines if not line.startswith("#")}
    used = {each["metric"] for each in found["telemetry_schema"]["signals"]}
    assert used
    assert used <= names, "what is exported today stays"


def test_doctor_says_what_proves_that_a_gpu_is_idle(tmp_path: Path) -> None:
    def proof(page: Path) -> str:
        found = document("doctor", "--telemetry", page, "--no-cluster", code=ExitCode.LIMITED)
        return str(found["facts"]["idle is proven by"])

    assert proof(PAGE).startswith("power_watts")
    second = re.compile(r"^DCGM_FI_(DEV_POWER_USAGE|DEV_MEM_COPY_UTIL|PROF_DRAM_ACTIVE)\b.*\n", re.MULTILINE)
    trimmed = tmp_path / "trimmed.prom"
    trimmed.write_text(second.sub("", PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    said = proof(trimmed)
    assert said.startswith("nothing, so idle allocations are only suspected; export one of DCGM_FI_DEV_POWER_USAGE, ")


def test_doctor_says_which_sources_beside_the_exporters_there_are(tmp_path: Path) -> None:
    def facts(page: Path) -> dict[str, str]:
        return dict(document("doctor", "--telemetry", page, "--no-cluster", code=ExitCode.LIMITED)["facts"])

    assert facts(PAGE)["Pod ends known"].startswith("none: kube-state-metrics has no requests")
    assert facts(PAGE)["Node reboots known"].startswith("none: ")
    assert facts(PAGE)["InfiniBand ports"] == "none: no node_exporter shows any"
    more = tmp_path / "more.prom"
    request = 'kube_pod_container_resource_requests{namespace="ml",pod="a",node="n",resource="nvidia_com_gpu"} 1\n'
    more.write_text(PAGE.read_text(encoding="utf-8") + request, encoding="utf-8")
    assert facts(more)["Pod ends known"] == "of 1 Pods"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--telemetry", "nowhere.prom"], 1, "nowhere.prom"),
        ([], 1, "no telemetry was given: use --prometheus URL"),
        (["--telemetry", str(PAGE), "-n", "nowhere"], 1, "there is no Namespace 'nowhere'"),
        (["--prometheus", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9: cannot be reached"),
        (["--prometheus", "prom:9090"], 2, "must begin with http"),
        (["--prometheus", "http://p", "--telemetry", str(PAGE)], 2, "exclude each other"),
        (["--at", "yesterday"], 2, "is no time"),
        (["--telemetry", str(PAGE), "-l", "a~b"], 2, "'a~b' is no label selector"),
    ],
)
def test_wrong_input_is_a_sentence_and_nothing_else(arguments: list[str], code: int, complaint: str) -> None:
    result = gpuwatch("analyze", "--no-cluster", *arguments)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert not result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "settings.yaml: cannot be read"),
        ("plan: {budget: 1}", "plan.budget: there is no such setting"),
        ("prices: /nowhere.csv", "prices: the file /nowhere.csv does not exist"),
        ("xid_overrides: /nowhere.yaml", "xid_overrides: the file /nowhere.yaml does not exist"),
    ],
)
def test_wrong_settings_are_a_sentence_and_exit_code_2(tmp_path: Path, content: str | None, complaint: str) -> None:
    file = tmp_path / "settings.yaml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    result = gpuwatch("analyze", "--no-cluster", "--telemetry", PAGE, "--config", file)
    assert result.exit_code == ExitCode.USAGE == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_and_analyze_have_codes_of_their_own(tmp_path: Path) -> None:
    capture = tmp_path / "moment.json.gz"
    assert gpuwatch("capture", *ALONE, "--output-file", capture).exit_code == 0
    moment = load_snapshot(capture)
    save_snapshot(replace(moment, cluster=replace(moment.cluster, known=True), gaps=()), capture)
    assert gpuwatch("doctor", "--telemetry", capture).exit_code == ExitCode.LIMITED == 4
    assert gpuwatch("analyze", *ALONE, "--fail-on-findings").exit_code == ExitCode.OK
    page = PAGE.read_text(encoding="utf-8")
    labels = re.search(r"^DCGM_FI_DEV_GPU_TEMP(\{.*?\}) ", page, flags=re.MULTILINE)
    assert labels is not None
    sick = tmp_path / "sick.prom"
    sick.write_text(f"{page}\nDCGM_FI_DEV_ROW_REMAP_FAILURE{labels[1]} 1\n", encoding="utf-8")
    found = gpuwatch("analyze", "--telemetry", sick, "--no-cluster", "--fail-on-findings")
    assert found.exit_code == ExitCode.FOUND == 3, found.stdout


def test_ctrl_c_ends_with_130() -> None:
    """In a command that waits for a server which accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "gpuwatch.app.cli.main", "analyze", "--no-cluster", "--prometheus", url]
        # Tests in the background of a shell are started with Ctrl-C ignored, and would pass that on.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
            signal.signal(signal.SIGINT, before)
            silent.settimeout(30)
            connection, _ = silent.accept()
            with connection:  # it waits for the answer now
                running.send_signal(signal.SIGINT)
                _, said = running.communicate(timeout=30)
    assert running.returncode == ExitCode.INTERRUPTED == 130
    assert said.endswith("gpuwatch: interrupted\n")
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", ["folder", "empty folder", "API server"])
def test_a_cluster_that_cannot_be_read_is_an_error(kind: str, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], "
        "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: a, user: {}}]}"
    )
    (tmp_path / "empty").mkdir()
    options: dict[str, tuple[str | Path, ...]] = {
        "folder": ("--cluster", tmp_path / "nowhere"),
        "empty folder": ("--cluster", tmp_path / "empty"),
        "API server": ("--kubeconfig", kubeconfig),
    }
    result = gpuwatch("analyze", "--telemetry", PAGE, *options[kind])
    assert result.exit_code == ExitCode.FAILED
    assert not result.stdout
    assert result.stderr.rstrip().endswith("To look at telemetry alone, give --no-cluster.")


def test_a_latin_1_terminal_gets_tables_and_machines_get_utf_8() -> None:
    command = [sys.executable, "-m", "gpuwatch.app.cli.main", "analyze", "--no-cluster", "--telemetry", str(PAGE)]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    table = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    assert b"Traceback" not in table.stderr
    assert "·".encode("latin-1") in table.stdout
    document = subprocess.run([*command, "-o", "json"], env=environment, capture_output=True, timeout=60, check=True)
    json.loads(document.stdout.decode("utf-8"))


def test_tab_completes_commands_options_and_values_in_bash(tmp_path: Path) -> None:
    """As bash calls it for `gpuwatch ana<Tab>` and so on. docs/cli.md says how it was tried in the other shells."""
    program = tmp_path / "gpuwatch"
    program.write_text(f"#!{sys.executable}\nfrom gpuwatch.app.cli.main import main\nmain()\n")
    program.chmod(0o755)
    script = """
        eval "$(_GPUWATCH_COMPLETE=bash_source gpuwatch)"
        complete -p gpuwatch
        for line in "ana" "analyze -o pa" "analyze --fail"; do
            COMP_WORDS=(gpuwatch $line) COMP_CWORD=$(wc -w <<< "$line") COMPREPLY=()
            _gpuwatch_completion gpuwatch; echo "${COMPREPLY[@]}"
        done"""
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    told = subprocess.run(["bash", "-c", script], env=path, capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.split("\n")[:4] == [
        "complete -o nosort -F _gpuwatch_completion gpuwatch",
        "analyze",
        "parquet",
        "--fail-on-findings",
    ]


def test_a_name_is_as_kubectl_prints_it_in_one_namespace() -> None:
    owner = Workload(id="Job/ml/train", kind="Job", api_version="batch/v1", namespace="ml", name="train")
    cluster = Cluster(workloads=(owner,))
    names = {"workload/Job/ml/train": "job.batch/train", "pod/ml/a-0": "pod/a-0", "device/GPU-1": "device/GPU-1"}
    for subject, name in names.items():
        assert shown_name(subject, "", cluster) == subject
        assert shown_name(subject, "ml", cluster) == name


def test_help_has_whole_summaries_and_the_exit_codes() -> None:
    said = gpuwatch("--help").stdout
    assert "...\n" not in said.partition("Commands:")[2]
    for each in ExitCode:
        assert f"  {int(each):<4} {each.meaning[:40]}" in said


def test_verbose_tells_the_steps() -> None:
    command = [sys.executable, "-m", "gpuwatch.app.cli.main", "analyze", "--no-cluster", "--telemetry", str(PAGE), "-v"]
    assert "listing devices" in subprocess.run(command, capture_output=True, timeout=60, check=True, text=True).stderr


@pytest.mark.parametrize("moment", ["noon", "2026-01-31T18:00"])
def test_a_moment_needs_a_form_and_a_zone(moment: str) -> None:
    result = gpuwatch("analyze", "--at", moment, "--telemetry", PAGE)
    assert result.exit_code == 2
    assert "--at" in result.stderr


def test_the_operators_own_xid_classes_are_read_and_their_faults_are_gaps(tmp_path: Path) -> None:
    (tmp_path / "xids.yaml").write_text("xids: {79: {class: nonsense, reason: ours}}\n")
    config = tmp_path / "gpuwatch.yaml"
    config.write_text(f"xid_overrides: {tmp_path / 'xids.yaml'}\n")
    gaps = document("analyze", *ALONE, "--config", config)["gaps"]
    (ours,) = [gap for gap in gaps if "79" in gap["what"] + gap["detail"]]
    assert "nonsense" in ours["detail"]


POD = {"team": "vision", "tier": "prod"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("team=vision", True),
        ("team==vision,tier=dev", False),
        ("tier!=dev", True),
        ("owner!=a", True),  # as kubectl: also where the label is missing
        ("team", True),
        ("!team", False),
        ("tier in (dev, prod)", True),
        ("tier notin (dev,prod),team", False),
        ("owner notin (a)", True),
    ],
)
def test_a_selector_selects_as_kubectl_does(selector: str, matches: bool) -> None:
    chosen = parse_selector(selector)
    assert chosen is not None
    assert chosen(POD) is matches


@pytest.mark.parametrize("selector", ["a=b=c", "!a=b", "a in b", "="])
def test_what_is_no_selector_is_refused(selector: str) -> None:
    with pytest.raises(OptionsError, match="is no label selector"):
        parse_selector(selector)


def test_a_pipe_is_160_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output().width == 160
    monkeypatch.setenv("COLUMNS", "100")
    assert output().width == 100


def test_a_terminal_has_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert output().width == 80


@pytest.mark.parametrize(
    ("setting", "value", "usual", "says"),
    [
        ("execute.notice_period_seconds", 0, 60, "owners cannot object"),
        ("execute.write_timeout_seconds", 65, 66, "may be under way for 65 s"),
        ("plan.min_confidence_ratio", 0, 0.1, "of any confidence"),
        ("plan.budget_ratio", 1, 0.9, "out of service at once"),
        ("plan.storm_ratio", 1, 0.9, "is a storm"),
        ("plan.idle_storm_ratio", 1, 0.9, "is a storm"),
    ],
)
def test_doctor_says_what_a_setting_takes_away(setting: str, value: float, usual: float, says: str) -> None:
    name = f"GPUWATCH_{setting.replace('.', '__').upper()}"
    told = [
        gpuwatch("doctor", *ALONE, "--allow-limited", COLUMNS="200", **{name: str(each)}).stdout
        for each in (value, usual)
    ]
    (line,) = [line for line in told[0].splitlines() if "takes a safeguard away" in line]
    assert setting in line
    assert says in line
    assert "takes a safeguard away" not in told[1]
