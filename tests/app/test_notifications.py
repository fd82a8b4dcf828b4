"""Notifications on their way to people, beside the Remediation that waits for them: receivers that fail, none at all,
the forms in which messages arrive, and what is held back until somebody was told."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from deliver.receivers import Webhook, webhook
from execute.living import ENFORCE, SUGGEST, Fleet, new_store, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.notifications import KEPT, Notifications
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import Phase, Remediation, Step, StepKind
from gpuwatch.say.deliver import deliver as turns
from gpuwatch.say.deliver.deliver import Sent
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import DELIVERIES
from gpuwatch.sources.store.store import Store
from store.places import InCluster

# Apprise's mail plug-in imports it on Pythons that still have it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def one_attempt_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ATTEMPTS", 1)


class World:
    """An idle Job, a sick GPU under another, and the process that notifies what it does about them."""

    def __init__(self, folder: Path, *urls: str, plan: PlanPolicy) -> None:
        self.fleet = Fleet(idle={"chat"})
        self.fleet.owner("Job", "chat", 2)
        self.store = new_store()
        self.metrics = Metrics()
        self.policy = DeliveryPolicy(urls=urls, timeout_seconds=5.0, folder=folder / "inbox")
        self.state = InCluster(state=DELIVERIES)
        self.restarted()

        def tell(remediation: Remediation) -> None:
            self.notifications.tell(remediation, self.policy, self.fleet.now)

        self.executor = Executor(
            self.store,
            self.fleet.cluster,
            self.fleet.rehearsal,
            self.fleet.view,
            tell,
            ExecutorPolicies(plan, quick()),
            self.fleet.read_exporters,
        )

    def restarted(self) -> None:
        """As another process has it."""
        self.sent = Sent(self.state.opened)
        self.notifications = Notifications(self.sent, self.metrics, threading.Event())

    def propose(self) -> None:
        self.fleet.propose(self.executor)

    def run(self, minutes: int, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(minutes):
            self.fleet.settle()
            self.carry_on()
            self.notifications.send(self.policy, self.fleet.now)
            if until():
                return
            self.fleet.now += timedelta(minutes=1)

    def run_until_suspended(self, minutes: int) -> None:
        self.run(minutes, until=lambda: self.suspended)
        assert self.suspended

    def carry_on(self) -> None:
        for _ in range(6):
            for name in self.executor.due(self.fleet.now):
                self.executor.run_once(name, self.fleet.now)

    def only(self) -> Remediation:
        (found,) = self.store.all()
        return found

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def suspended(self) -> bool:
        return bool(self.fleet.find("chat")["spec"]["suspend"])


def url(server: Webhook) -> str:
    return f"json://{server.address}/"


def only(action: ActionKind, policy: PlanPolicy = ENFORCE) -> PlanPolicy:
    return replace(policy, modes={action: policy.mode(action)})


RELEASE = only(ActionKind.RELEASE_GANG)


def proposed(folder: Path, *servers: Webhook, plan: PlanPolicy = RELEASE) -> World:
    """A World whose proposal is made, and told to these."""
    world = World(folder, *map(url, servers), plan=plan)
    world.propose()
    return world


def told(remediation: Remediation) -> str:
    """What the notice's step says."""
    return next(step.error for step in remediation.steps if step.parameters.get("by") == "notice")


def test_a_release_is_told_and_done_after_the_time_to_object(tmp_path: Path) -> None:
    with webhook() as server:
        world = proposed(tmp_path, server)
        world.run(5)
        (message,) = [json.loads(body) for body in server.bodies]
        assert message["title"] == "gpuwatch: release gang of gang/Job/ml/chat"
        for words in (
            "2 idle GPUs",
            f"gpuwatch reject {world.only().name}",
            "gpuwatch.dev/objection",
            "Idle for good",
        ):
            assert words in message["message"], message["message"]
        assert not world.suspended
        world.run(30)
        assert world.suspended
        assert len(server.taken) == 1
    (file,) = (tmp_path / "inbox").glob("*/notification.md")
    assert world.only().name in file.read_text()
    assert world.value("gpuwatch_deliveries_total", content="notification", result="sent") == 2


def test_a_release_of_which_nobody_could_be_told_is_held_back_and_owners_get_their_whole_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook(503, 503, 503) as server:
        world = proposed(tmp_path, server)
        world.run(60, until=lambda: len(server.bodies) == 3 and world.value("gpuwatch_notifications_undelivered") == 1)
        held = world.only()
        assert (held.phase, world.suspended) == (Phase.NOTIFIED, False)
        assert told(held).startswith("No receiver took the notification: json 127.0.0.1")
        assert "503" in told(held)
        assert f"{held.name} waits" in caplog.text
        world.run(60, until=lambda: bool(server.taken))
        since = world.fleet.now
        world.run(120, until=lambda: world.suspended)
        assert world.fleet.now - since >= timedelta(seconds=600)
        assert len(server.taken) == 1
    assert world.value("gpuwatch_notifications_undelivered") == 0
    assert world.value("gpuwatch_deliveries_total", content="notification", result="failed") == 3


def test_one_of_which_nobody_could_ever_be_told_lapses_and_says_why(tmp_path: Path) -> None:
    with webhook(*[503] * 99) as server:
        world = proposed(tmp_path, server)
        world.run(119)
        assert world.only().phase is Phase.NOTIFIED
        world.run(30, until=lambda: not world.only().phase.open)
    lapsed = world.only()
    assert lapsed.phase is Phase.EXPIRED
    assert not world.suspended
    assert any("Its owners could not be notified in time: No receiver took" in turn.message for turn in lapsed.history)
    assert "gpuwatch.dev/notice" not in json.dumps(world.fleet.find("chat")["metadata"].get("annotations", {}))


def test_one_receiver_that_took_it_is_enough(tmp_path: Path) -> None:
    with webhook(*[503] * 99) as bad, webhook() as good:
        world = proposed(tmp_path, bad, good)
        world.run_until_suspended(30)
        assert len(good.taken) == 1
    assert world.value("gpuwatch_notifications_undelivered") == 0
    assert world.value("gpuwatch_deliveries_pending", content="notification") == 1


def test_a_person_can_stop_it_and_have_it_done_while_it_is_held_back(tmp_path: Path) -> None:
    with webhook(*[503] * 99) as server:
        world = proposed(tmp_path, server)
        world.run(10)
        world.store.reject(world.only().id)
        world.run(2)
        assert world.only().phase is Phase.REJECTED


def test_an_approval_is_a_person_who_knows(tmp_path: Path) -> None:
    with webhook(*[503] * 99) as server:
        world = proposed(tmp_path, server)
        world.run(10)
        world.store.approve(world.only().id, "ana")
        world.run_until_suspended(40)
        assert told(world.only()).startswith("No receiver took the notification")


def test_what_was_approved_goes_on_and_keeps_that_nobody_was_told(tmp_path: Path) -> None:
    with webhook(*[503] * 99) as server:
        world = proposed(tmp_path, server, plan=only(ActionKind.RELEASE_GANG, SUGGEST))
        world.run(3)
        assert server.bodies == []
        world.store.approve(world.only().id, "ana")
        world.run_until_suspended(30)
        assert "503" in told(world.only())
        assert world.value("gpuwatch_notifications_undelivered") == 1


def test_a_taint_waits_for_one_try_and_not_for_a_receiver_that_is_down(tmp_path: Path) -> None:
    with webhook(*[503] * 99) as server:
        world = World(tmp_path, url(server), plan=only(ActionKind.TAINT_NODE))
        world.fleet = fleet = Fleet(sick={"GPU-n0-0"})
        fleet.owner("Job", "train", 8)
        world.executor = replace(world.executor, writer=fleet.cluster, rehearsal=fleet.rehearsal, fresh=fleet.view)
        world.propose()
        world.run(20, until=lambda: bool(fleet.node("n0")["spec"].get("taints")))
        assert fleet.node("n0")["spec"]["taints"]
        assert server.bodies
        assert told(world.only()).startswith("No receiver took the notification")


def test_without_anybody_to_tell_annotation_and_event_are_the_notification(tmp_path: Path) -> None:
    world = World(tmp_path, plan=RELEASE)
    world.policy = DeliveryPolicy()
    world.propose()
    world.run_until_suspended(15)
    assert any(line.startswith("patch Job") for line in world.fleet.log)
    kinds = [step.parameters.get("by") for step in world.only().steps if step.kind is StepKind.NOTIFY]
    assert kinds == ["annotation", "event", "notice"]


def test_undoing_and_others_do_not_wait_for_a_receiver_that_hangs(tmp_path: Path) -> None:
    """Nothing is sent in the thread that carries Remediations out."""
    with webhook(*[0] * 9, hang_seconds=30) as server:
        world = proposed(tmp_path, server)
        world.carry_on()
        assert server.bodies == []
        assert told(world.only()) == "The notification is on its way."


def test_a_leader_that_is_killed_before_it_was_sent_leaves_it_to_the_next(tmp_path: Path) -> None:
    with webhook() as server:
        world = proposed(tmp_path, server)
        world.carry_on()
        world.restarted()
        world.run_until_suspended(30)
        assert len(server.taken) == 1


def test_slacks_form_is_what_a_compatible_receiver_gets(tmp_path: Path) -> None:
    """Mattermost's webhooks take Slack's messages, and can be anywhere."""
    with webhook() as server:
        world = World(tmp_path, f"mmost://{server.address}/abcdefghijk", plan=RELEASE)
        world.propose()
        world.run(5)
        (message,) = [json.loads(body) for body in server.bodies]
    assert "release gang of gang/Job/ml/chat" in message["text"]
    assert f"gpuwatch reject {world.only().name}" in message["text"]


def test_names_make_neither_markup_nor_mentions(tmp_path: Path) -> None:
    with webhook() as server:
        world = proposed(tmp_path, server)
        found = world.only()
        bad = replace(found.proposal, reason="`@here` <b>*x*</b>", namespace="ml")
        step = {"by": "notice", "text": f"{found.name}: gpuwatch will. `@here` <b>*x*</b>"}
        hostile = replace(found, name="hostile", proposal=bad, steps=(_notice(found, step),))
        with pytest.raises(Exception, match="on its way"):
            world.notifications.tell(hostile, world.policy, world.fleet.now)
        world.notifications.send(world.policy, world.fleet.now)
        (message,) = [json.loads(body)["message"] for body in server.bodies]
    assert "<b>" not in message
    assert "@here" not in message
    assert "*x*" not in message.replace("\\*", "")


def _notice(found: Remediation, parameters: dict[str, str]) -> Step:
    return Step(kind=StepKind.NOTIFY, target=found.proposal.objects[0], parameters=parameters)


def test_a_restart_sends_to_those_that_lack_it_and_to_no_other_again(tmp_path: Path) -> None:
    with webhook() as good, webhook(503) as bad:
        world = proposed(tmp_path, good, bad)
        world.run(3, until=lambda: bool(bad.bodies))
        assert (len(good.taken), len(bad.taken)) == (1, 0)
        world.restarted()
        world.run(5, until=lambda: bool(bad.taken))
        world.restarted()
        world.run_until_suspended(30)
        assert (len(good.taken), len(bad.taken)) == (1, 1)
        assert good.taken == bad.taken


def test_while_the_state_cannot_be_read_nothing_is_sent_and_nothing_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def unread() -> Store:
        raise StoreError("the API server does not answer")

    with webhook() as server:
        world = World(tmp_path, url(server), plan=RELEASE)
        world.notifications = Notifications(Sent(unread), world.metrics, threading.Event())
        world.propose()
        with pytest.raises(StoreError):
            world.run(3)
        for _ in range(3):
            assert not world.notifications.send(world.policy, world.fleet.now)
        assert caplog.text.count("what was sent is not known, so nothing is sent") == 1
        world.restarted()
        world.run_until_suspended(30)
        assert len(server.taken) == 1


def test_old_notifications_go(tmp_path: Path) -> None:
    world = proposed(tmp_path)
    world.run(5)
    (kept,) = world.sent.all().values()
    second = timedelta(seconds=1)
    assert world.notifications.forget(kept.at + KEPT - second) == 0
    assert world.notifications.forget(kept.at + KEPT + second) == 1
    world.sent.read_again()
    assert world.sent.all() == {}
