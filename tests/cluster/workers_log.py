"""Workers that write down when and where they start (node_worker.py), and what a test reads there and tells them."""

import collections
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))
from waiting import until  # noqa: E402

WORKER = Path(__file__).with_name("node_worker.py")


class WorkersLog:
    """Of one job; a class that has it as a base calls `begin_log` with the job's folder first."""

    def begin_log(self, folder):
        self.dir = folder
        self.log = folder / "workers.jsonl"
        self.log.touch()

    def worker(self):
        """The program."""
        return [sys.executable, "-S", WORKER, self.dir]

    def started(self):
        """What workers wrote when they started, one entry each."""
        return [json.loads(line) for line in self.log.read_text().rpartition("\n")[0].splitlines()]  # not one half written

    def rounds(self):
        """The entries by round: workers of one round meet at one store. The kernel may give its port to the store of a later
        round too: that is another one where a node has the same rank again."""
        rounds, begun = {}, collections.Counter()
        for entry in self.started():
            store = entry["master"], entry["restarts"], entry["world"]
            worker = store, entry["host"], entry["rank"]
            rounds.setdefault((store, begun[worker]), []).append(entry)
            begun[worker] += 1
        return list(rounds.values())

    def round_of(self, world, after=0, limit=40.0):
        """The entries of the first complete round of `world` workers whose index is at least `after`."""
        def find():
            for entries in self.rounds()[after:]:
                if entries[0]["world"] == world and len(entries) == world:
                    return entries
            return None

        return until(find, f"a round of {world} workers", limit)

    def release(self):
        """All workers of now and later exit 0."""
        (self.dir / "release").touch()

    def fail(self, rank, code=3):
        """The worker of that rank in the last round exits with `code`."""
        pid = [entry for entry in self.rounds()[-1] if entry["rank"] == rank][0]["pid"]
        self.tell_to_fail(pid, code)

    def tell_to_fail(self, pid, code):
        """The worker reads its code as soon as the file is there."""
        (self.dir / f"code.{pid}").write_text(str(code))
        (self.dir / f"code.{pid}").rename(self.dir / f"fail.{pid}")

    def check_ranks(self):
        """In every round ranks are dense and unique, and all agree on the world; a node's ranks are consecutive."""
        for entries in self.rounds():
            ranks = [entry["rank"] for entry in entries]
            world = entries[0]["world"]
            assert len(set(ranks)) == len(ranks) and all(0 <= rank < world for rank in ranks), entries
            by_node = {}
            for entry in entries:
                by_node.setdefault(entry["group_rank"], []).append(entry)
            for node in by_node.values():
                assert len({entry["host"] for entry in node}) == 1, entries
                own = [entry["rank"] for entry in node]
                # A round that was stopped while it started has not all its workers; one that has, has them side by side.
                if len(entries) == world:
                    assert max(own) - min(own) + 1 == len(own), entries

    def restart_counts(self):
        return [entries[0]["restarts"] for entries in self.rounds()]
