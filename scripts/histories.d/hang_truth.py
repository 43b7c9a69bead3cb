"""What a launcher has said of one history of hang_histories, beside what is true."""

import json


def events(path):
    """The whole lines of a file of events."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def stamps(folder, what):
    """rank -> nanoseconds, of those that have said it."""
    found = {}
    for path in folder.glob("stamps*"):
        for line in path.read_text().splitlines():
            word, when, _ = line.split()
            if word == what:
                found[int(path.name.removeprefix("stamps"))] = int(when)
    return found


def culprits(plan):
    """Whose fault it is: where two do different things, nobody knows who is right."""
    return list(range(2)) if plan.kind.verdicts == ("mismatch",) and plan.world == 2 else plan.ranks


class Told:
    """What the agents of a job have written, node by node."""

    def __init__(self, folder, plan, line):
        self.folder, self.plan, self.line = folder, plan, line
        self.nodes = [events(folder / f"events{node}") for node in range(plan.nodes)]
        self.pages = [(folder / f"stderr{node}").read_text(errors="replace") for node in range(plan.nodes)]

    def of(self, name, node=None):
        return [event for at, node_events in enumerate(self.nodes) if node in (None, at) for event in node_events if event["event"] == name]

    def verdicts(self):
        """[(kind, culprits, summary)] as the first node has them; all must have the same."""
        return [(event["kind"], event["culprits"], event["summary"]) for event in self.of("hang_found", 0)]

    def seconds(self):
        """From the last rank's fault, and the limit after it, to the verdict."""
        begun = [when for rank, when in stamps(self.folder, "begins").items() if rank in self.plan.ranks]
        found = self.of("hang_found")
        return found[0]["monotonic_us"] / 1e6 - max(begun) / 1e9 - self.plan.limit_s if begun and found else None

    def has_line(self):
        """The page shows where the program's own function stands."""
        return f"\n    program.py:{self.line} {self.plan.function}\n" in "".join(self.pages)

    # ---- what is wrong; an empty list: nothing

    def nodes_disagree(self):
        told = {json.dumps([(event["kind"], event["culprits"]) for event in self.of("hang_found", node)]) for node in range(self.plan.nodes)}
        return [f"nodes say different things: {sorted(told)}"] if len(told) > 1 else []

    def wrong_of_hang(self):
        found = self.verdicts()
        if not found:
            ended = [event["reason"] for event in self.of("job_ended")]
            return [f"no verdict; the job: {ended or 'goes on'}"]
        kind, ranks, summary = found[0]
        wrong = self.nodes_disagree()
        if kind not in self.plan.kind.verdicts or ranks != culprits(self.plan):
            wrong.append(f"told: {kind}, ranks {ranks}: {summary}")
        elif self.plan.kind.line and not self.has_line():
            wrong.append(f"program.py:{self.line} {self.plan.function} is not on the page")
        if self.plan.on_hang == "abort":
            for event in self.of("job_ended"):
                first = event["failures"][0]["rank"] if event["failures"] else None
                if event["exit_code"] != 1 or first not in culprits(self.plan):
                    wrong.append(f"ended with {event['exit_code']} and root cause rank {first}")
        return wrong

    def wrong_of_death(self):
        wrong = [f"a verdict: {summary}" for _, _, summary in self.verdicts()]
        ended = self.of("job_ended")
        if len(ended) != self.plan.nodes:
            return [*wrong, "the job has not ended"]
        for event in ended:
            cause = event["failures"][0] if event["failures"] else {"rank": None, "exit_code": None, "message": ""}
            if self.plan.kind.code is not None and (cause["rank"], cause["exit_code"]) != (self.plan.ranks[0], self.plan.kind.code):
                wrong.append(f"root cause: rank {cause['rank']}, code {cause['exit_code']}: {cause['message'][:300]}")
        summaries = [event["summary"] for event in self.of("incident_recorded")]
        if self.plan.kind.words and not any(self.plan.kind.words in summary for summary in summaries):
            wrong.append(f"without the words {self.plan.kind.words!r}: {summaries}")
        return wrong

    def wrong_of_pause(self, statuses):
        wrong = self.nodes_disagree()
        for kind, ranks, summary in self.verdicts():
            if kind != "busy":
                wrong.append(f"a verdict: {kind}: {summary}")
            elif ranks != self.plan.ranks:
                wrong.append(f"busy, but others: {summary}")
        if any(statuses):
            wrong.append(f"the job ended with {statuses}")
        return wrong
