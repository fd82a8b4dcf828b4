"""XIDs: the rules of thumb, the conflicts between authorities, and the operator's overrides."""

import json
from pathlib import Path

import pytest
import yaml

from gpuwatch.facts.catalog.tables import CatalogError
from gpuwatch.facts.catalog.xids import XidAction, XidClass, conflicts, parse_xids, xids, xids_with_overrides
from gpuwatch.facts.model.telemetry import GapKind

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.mark.parametrize(
    "code", [79, 48, 64, 95, 62, 140, 143, 110, 46, 54, 136, 156, 158, 142, 151, 74, 119, 120, 150, 171, 172]
)
def test_fatal_on_sight(code: int) -> None:
    assert xids()[code].xid_class is XidClass.FATAL
    assert xids()[code].rule == "fatal on sight"


@pytest.mark.parametrize("code", [32, *range(144, 147), 149, 109, 45, 94, 63, 92, 93, 121, 154, 155, 163, 168])
def test_only_with_corroboration(code: int) -> None:
    assert xids()[code].xid_class is XidClass.CORROBORATE


@pytest.mark.parametrize("code", [8, 13, 31, 43, 68, 69, 137, 11, 25, 39, 126, 139])
def test_the_application_first(code: int) -> None:
    assert xids()[code].xid_class is XidClass.APPLICATION


@pytest.mark.parametrize("code", [14, 37, 38, 44, 66, 67, 106, 107, 108, 141, 152, 153, 157, 160, 161])
def test_ignored_where_nvidia_asks_for_nothing(code: int) -> None:
    assert xids()[code].xid_class is XidClass.IGNORE
    assert xids()[code].rule == "NVIDIA: IGNORE"


@pytest.mark.parametrize("code", [147, 148, 162])
def test_ignored_where_nvidias_text_leaves_nothing_to_do(code: int) -> None:
    assert xids()[code].xid_class is XidClass.IGNORE
    assert xids()[code].rule == "nothing to do"


@pytest.mark.parametrize(("code", "reason"), TABLES["xid_reasons"])
def test_nvidias_text_is_the_reason_where_its_action_says_too_little(code: int, reason: str) -> None:
    assert reason in xids()[code].reason


def test_without_a_verdict_nothing_is_concluded_from_the_number_alone() -> None:
    silent = [one for one in xids().values() if one.action is XidAction.NONE_GIVEN]
    assert [one.code for one in silent] == list(range(162, 173))
    without_text = [one for one in silent if one.code in (166, 167, 169, 170)]
    assert {one.xid_class for one in without_text} == {XidClass.CORROBORATE}
    assert {one.rule for one in without_text} == {"no verdict"}


def test_every_fatal_one_is_something_that_nvidia_acts_on() -> None:
    harmless = (XidAction.RESTART_APP, XidAction.IGNORE, XidAction.NONE_GIVEN)
    fatal = [one for one in xids().values() if one.xid_class is XidClass.FATAL and one.action in harmless]
    assert [one.code for one in fatal] == [171, 172]  # which come with 48
    resets = {one.code for one in xids().values() if one.action is XidAction.RESET_GPU}
    assert {code for code in resets if xids()[code].xid_class is not XidClass.FATAL} == {109, 155}


def test_every_class_comes_with_its_rule_and_a_reason() -> None:
    assert all(one.rule and one.reason and one.source for one in xids().values())


@pytest.mark.parametrize("code", [0, 15, 173, -1, 999])
def test_an_unknown_number_is_unknown(code: int) -> None:
    assert xids().get(code) is None


def test_what_the_catalog_says_of_one() -> None:
    gone = xids()[79]
    assert gone.description == "GPU has fallen off the bus"
    assert gone.action is XidAction.RESTART_BM
    assert gone.architectures == ("A100", "H100", "B100", "GB200")
    assert xids()[74].architectures == ("A100", "H100")  # no such XID on Blackwell
    assert xids()[144].architectures == ("B100", "GB200")  # nor this one before it


def test_nvlink5_numbers_decide_nothing_where_their_decode_rows_differ() -> None:
    assert "16 IGNORE, 9 RESET_GPU, 8 XID_154_EVAL" in xids()[145].reason
    assert xids()[150].reason == "each of its decode rows says RESET_GPU"


@pytest.mark.parametrize(("code", "sentence"), TABLES["conflicts"])
def test_conflicts_are_readable(code: int, sentence: str) -> None:
    assert conflicts(xids()[code]) == sentence


@pytest.mark.skipif(not SHARED.exists(), reason="the shared reference is not beside this checkout")
def test_the_table_agrees_with_the_reference() -> None:
    reference = {x["code"]: x for x in json.loads((SHARED / "reference/xid_classification.json").read_text())}
    assert set(xids()) == set(reference) | {14, 108}  # which the reference lacks, and NVIDIA's page has
    for code, facts in reference.items():
        assert xids()[code].action == (facts["nvidia_immediate"] or "NONE_GIVEN")
        authorities = {name for name, verdict in facts["others"].items() if verdict and verdict != "-"}
        assert {opinion.authority for opinion in xids()[code].others} - {"nvsentinel"} == authorities


def test_a_malformed_table_is_named() -> None:
    entry = {
        "code": 1,
        "description": "d",
        "architectures": [],
        "action": "IGNORE",
        "others": {"eks": "event"},
    }
    authorities = {"eks": {"verdicts": {"event": {"acts": False, "text": "EKS: an event only"}}}}

    def table(*entries: dict[str, object]) -> str:
        shared = {"source": "s", "checked": "2026-11-21", "acts": {}, "authorities": authorities}
        return json.dumps({**shared, "xids": entries})

    assert parse_xids(table(entry), "x.json")[1].xid_class is XidClass.IGNORE
    for broken, complaint in (
        (entry | {"action": "PANIC"}, r"x.json, XID 1: 'PANIC' is not a valid XidAction"),
        (entry | {"code": "1"}, r"x.json, entry 1: the code '1' is no whole number"),
        (entry | {"others": {"eks": "FATAL"}}, r"x.json, XID 1: eks has no verdict 'FATAL'; it has event"),
        (entry | {"others": {"gke": "cond"}}, r"x.json, XID 1: 'gke' is missing; add it"),
    ):
        with pytest.raises(CatalogError, match=complaint):
            parse_xids(table(broken), "x.json")
    with pytest.raises(CatalogError, match=r"x.json, entry 2: XID 1 has an entry already"):
        parse_xids(table(entry, entry), "x.json")
    with pytest.raises(CatalogError, match=r"x.json, line 1: no valid JSON"):
        parse_xids("[", "x.json")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "xids.yaml"
    path.write_text(text)
    return path


def test_an_override_changes_the_class_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path, "xids:\n  63: {class: fatal, reason: our supplier replaces on 63}\n")
    found, gaps = xids_with_overrides(path)
    assert gaps == ()
    changed = found[63]
    assert (changed.xid_class, changed.rule) == (XidClass.FATAL, "the operator's override")
    assert changed.reason == "our supplier replaces on 63"
    assert str(path) in changed.source
    assert changed.action is XidAction.IGNORE
    assert conflicts(changed) == conflicts(xids()[63])
    assert {code for code in found if found[code] != xids()[code]} == {63}
    assert xids()[63].xid_class is XidClass.CORROBORATE  # the catalog itself is as it was


def test_an_override_can_add_an_xid(tmp_path: Path) -> None:
    text = "xids:\n  180: {class: application, reason: driver 590, description: Frobnication}\n"
    found, gaps = xids_with_overrides(write(tmp_path, text))
    assert gaps == ()
    assert found[180].xid_class is XidClass.APPLICATION
    assert conflicts(found[180]) == ""


@pytest.mark.parametrize(("entry", "complaint"), TABLES["bad_overrides"])
def test_a_bad_entry_is_named_and_the_others_count(tmp_path: Path, entry: str, complaint: str) -> None:
    path = write(tmp_path, f"xids:\n  94: {{class: fatal, reason: x}}\n  {entry}\n")
    found, gaps = xids_with_overrides(path)
    (gap,) = gaps
    assert gap.kind is GapKind.BAD_INPUT
    assert gap.what == f"{path}, XID {entry.split(':', maxsplit=1)[0]}"
    assert complaint in gap.detail
    assert found[63] == xids()[63]
    assert found[94].xid_class is XidClass.FATAL


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("xids: {63: [", "is no valid YAML"),
        ("63: {class: fatal, reason: x}", "expected one key 'xids'"),
        ("", "expected one key 'xids'"),
        ("xids: [63]", "expected one key 'xids'"),
    ],
)
def test_a_bad_file_leaves_the_catalog_in_force(tmp_path: Path, text: str, complaint: str) -> None:
    found, (gap,) = xids_with_overrides(write(tmp_path, text))
    assert found == xids()
    assert complaint in gap.detail
    assert "The catalog's classes apply" in gap.detail


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    found, (gap,) = xids_with_overrides(tmp_path / "none.yaml")
    assert found == xids()
    assert gap.what == str(tmp_path / "none.yaml")
    assert "No such file" in gap.detail


def test_the_driver_branch_that_speaks_of_an_xid() -> None:
    assert (xids()[48].recovery_driver, xids()[109].recovery_driver, xids()[143].recovery_driver) == (565, 570, 575)
    assert (xids()[46].recovery_driver, xids()[158].recovery_driver) == (None, 0)
