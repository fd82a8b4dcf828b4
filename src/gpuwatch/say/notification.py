"""The notification of an upcoming action. Pure."""

from gpuwatch.facts.model.remediation import Remediation, StepKind
from gpuwatch.say.plan_tables import worth_bases
from gpuwatch.say.remediation_tables import as_argument
from gpuwatch.say.words import escaped, plural


def notification(remediation: Remediation) -> tuple[str, str]:
    """Title, and Markdown with what, why, when, and how to stop it. Names are escaped."""
    proposal = remediation.proposal
    title = f"gpuwatch: {str(proposal.action).replace('_', ' ')} of {proposal.target}"
    steps = (*remediation.steps[remediation.step :][:1], *remediation.steps)  # the one that is under way first
    said = next(
        (step.parameters["text"] for step in steps if step.kind is StepKind.NOTIFY and step.parameters), proposal.reason
    )
    lines = [
        escaped(said.removeprefix(f"{remediation.name}: ")),
        "",
        f"- It concerns {plural(proposal.gpus, 'GPU')}"
        + (f" in {escaped(proposal.namespace)}" if proposal.namespace else "")
        + (f" for {escaped(proposal.waiter)}, which waits for them" if proposal.waiter else "")
        + ".",
        *(f"- {label.capitalize()}: {escaped(text)}" for label, text in worth_bases(proposal.score)),
        f"- Stop it: gpuwatch reject {as_argument(remediation)}",
        f"- Once it is done, take it back: gpuwatch undo {as_argument(remediation)}",
    ]
    return " ".join(title.split()), "\n".join(lines) + "\n"
