"""One case of the contract under one launcher: started in a folder of its own, and looked at."""
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import cases

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from ranks import free_port  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CASE_LIMIT_S = 60
PREAMBLE = "import os, signal, subprocess, sys, time\nfrom probe import mark, other_ended, others_recorded, record, stay, until\n"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Run:
    """One case under one launcher, in a folder of its own."""

    def __init__(self, case, tool, keep):
        self.case, self.tool, self.keep = case, tool, keep
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="contract_"))
        self.port = free_port()
        self.occupant = None
        self.agents = []
        self.timed_out = False

    def fill(self, text):
        return text.replace("{dir}", str(self.dir)).replace("{port}", str(self.port)).replace("{python}", cases.PYTHON)

    def prepare(self):
        for name in ("tmp", "probe"):
            (self.dir / name).mkdir()
        shutil.copy(HERE / "probe.py", self.dir)
        if self.case.script is not None:
            (self.dir / "s.py").write_text(PREAMBLE + self.case.script + "\n")
        for name, text in self.case.files.items():
            path = self.dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.fill(text))
            path.chmod(0o755 if text.startswith("#!") or "_exec" in name else 0o644)

    def environment(self):
        base = {
            "PATH": os.path.dirname(cases.PYTHON) + ":" + os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.dir / "tmp"),
            "PROBE_DIR": str(self.dir / "probe"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FT_MARK": self.dir.name,
        }
        base.update({name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")})  # a sanitizer's
        base.update({name: self.fill(value) for name, value in self.case.env.items()})
        return base

    def start(self, line, number):
        program = self.tool.legacy if self.case.legacy else self.tool.program
        words = program + [self.fill(word) for word in shlex.split(line)]
        out = open(self.dir / f"out.{number}", "wb")
        err = open(self.dir / f"err.{number}", "wb")

        def child():
            if self.case.cpus:
                os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.case.cpus])
            for name in ("SIGINT", "SIGQUIT", "SIGHUP"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)

        agent = subprocess.Popen(words, cwd=self.dir, env=self.environment(), stdin=subprocess.PIPE, stdout=out, stderr=err,
                                 preexec_fn=child, start_new_session=True)
        agent.stdin.close()
        self.agents.append(agent)

    def wait_for(self, what, until):
        while not what():
            if time.monotonic() > until:
                self.timed_out = True
                return
            time.sleep(0.01)

    def records(self):
        return sorted(self.dir.glob("probe/*.json"))

    def steps(self, until):
        for step in self.case.steps:
            word, _, rest = step.partition(" ")
            if word == "workers":
                self.wait_for(lambda: len(self.records()) >= int(rest) or self.over(), until)
            elif word == "mark":
                self.wait_for(lambda: (self.dir / "probe" / (rest + ".mark")).exists() or self.over(), until)
            elif word == "signal":
                self.agents[0].send_signal(getattr(signal, rest))
            elif word == "pause":
                time.sleep(float(rest))
            else:
                raise ValueError(step)

    def over(self):
        return all(agent.poll() is not None for agent in self.agents)

    def descendants(self):
        """Live processes that carry this run's mark."""
        found = []
        mark = b"FT_MARK=" + self.dir.name.encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                if mark in pathlib.Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
            except OSError:
                pass
        return found

    def run(self):
        self.prepare()
        until = time.monotonic() + CASE_LIMIT_S
        if self.case.occupied:
            self.occupant = socket.create_server(("127.0.0.1", self.port))
        lines = self.case.run if isinstance(self.case.run, list) else [self.case.run]
        for number, line in enumerate(lines):
            self.start(line, number)
        try:
            self.steps(until)
            for agent in self.agents:
                try:
                    agent.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.timed_out = True
            if "left" in self.case.look:
                self.wait_for(lambda: not self.descendants(), time.monotonic() + 0.5)
                self.timed_out = any(agent.poll() is None for agent in self.agents)
            return self.observe()
        finally:
            for pid in self.descendants():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for agent in self.agents:
                agent.kill()
                agent.wait()
            if self.occupant:
                self.occupant.close()
            if not self.keep:
                shutil.rmtree(self.dir, ignore_errors=True)

    # What is looked at. Everything that cannot be the same twice is replaced by a name.

    def observe(self):
        seen = {}
        if self.timed_out:
            seen["timed_out"] = True
        for look in self.case.look:
            name, _, argument = look.partition(" ")
            seen[look] = getattr(self, "look_" + name)(*([argument] if argument else []))
        if self.case.error:
            seen["error"] = self.look_error()
        if self.case.says:
            text = self.stderr()
            seen["says"] = {pattern: bool(re.search(pattern, text)) for pattern in self.case.says}
        return seen

    def stdout(self, number=0):
        return (self.dir / f"out.{number}").read_bytes().decode("utf-8", "replace")

    def stderr(self, number=0):
        return (self.dir / f"err.{number}").read_bytes().decode("utf-8", "replace")

    def neutral(self, text):
        text = text.replace(str(self.dir), "<dir>")
        text = re.sub(r"torchelastic_[a-z0-9_]{8}", "<temporary>", text)
        text = UUID.sub("<uuid>", text)
        text = re.sub(r"((?:<uuid>|none|job[0-9]*)_)[a-z0-9_]{8}\b", r"\1<random>", text)
        text = re.sub(rf"(?<![\w.]){re.escape(socket.gethostname())}(?![\w.])", "<hostname>", text)
        return text

    def look_status(self):
        codes = [agent.poll() for agent in self.agents]
        named = [signal.Signals(-code).name if code is not None and code < 0 else code for code in codes]
        return named if len(named) > 1 else named[0]

    def look_error(self):
        """The message of the case, when the launcher says it; else the last line, so that one sees what it says."""
        text = self.stderr()
        if self.case.error in text:
            return self.case.error
        lines = text.strip().splitlines()
        return "not said; last line: " + (self.neutral(lines[-1]) if lines else "")

    def workers(self):
        found = {}
        for path in self.records():
            found[path.stem] = json.loads(path.read_text())
        return dict(sorted(found.items(), key=lambda item: [int(part) if part.isdigit() else -1 for part in item[0].split(".")]))

    def look_workers(self):
        """Which (restart count, rank) ran."""
        names = list(self.workers())
        cpus = min(self.case.cpus, len(os.sched_getaffinity(0)))
        if self.case.count_cpus and names == [f"0.{rank}" for rank in range(cpus)]:
            return "one for each CPU"
        return names

    def look_argv(self):
        return {name: [self.neutral(word) for word in seen["argv"]] for name, seen in self.workers().items()}

    def value(self, name, value):
        if name == "MASTER_PORT":
            return "<the given port>" if value == str(self.port) else "<port>" if value.isdigit() and int(value) > 0 else value
        if name == "MASTER_ADDR" and value in (cases.FQDN, "127.0.0.1") and "MASTER_ADDR" not in self.case.exact:
            return "<this host>"
        return self.neutral(value)

    def look_env(self, names):
        return {worker: {name: self.value(name, seen["env"][name]) if name in seen["env"] else None for name in names.split(",")}
                for worker, seen in self.workers().items()}

    def look_environment(self):
        """The whole table of the contract but for the error file."""
        return self.look_env(",".join(cases.ENVIRONMENT))

    def look_added(self):
        """Names that the workers have and the launcher has not, or with another value; and those that went."""
        base = self.environment()
        return {worker: {"added": sorted(name for name, value in seen["env"].items() if base.get(name) != value and name not in ("LC_CTYPE", "PWD", "SHLVL", "_", "OLDPWD")),
                         "removed": sorted(name for name in base if name not in seen["env"])} for worker, seen in self.workers().items()}

    def look_process(self):
        return {worker: {key: seen[key] for key in ("own_session", "descriptors")} for worker, seen in self.workers().items()}

    def look_stdin(self):
        return {worker: "null" if seen["stdin"] == "/dev/null" else "inherited" for worker, seen in self.workers().items()}

    def look_affinity(self):
        return {worker: len(seen["affinity"]) for worker, seen in self.workers().items()}

    def look_marks(self):
        return {path.stem: path.read_text() for path in sorted(self.dir.glob("probe/*.mark"))}

    def look_stdout(self):
        return in_short(sorted(self.neutral(self.stdout()).splitlines(keepends=True)))

    def look_out(self):
        """Standard output to the byte."""
        return self.neutral(self.stdout())

    def look_stderr(self):
        """The lines of workers, which all carry `W:`; the launcher's own are its affair."""
        return sorted(line for line in self.neutral(self.stderr()).splitlines(keepends=True) if "W:" in line)

    def look_silent(self):
        return self.stderr() == ""

    def look_left(self):
        """Whether a process of this run lives on."""
        return bool(self.descendants())

    def look_logs(self, where="logs"):
        base = self.dir / where
        if not base.exists():
            return None
        if base.is_file():
            return "a file"
        tree = {}
        for path in sorted(base.rglob("*")):
            name = self.neutral(str(path.relative_to(base)))
            if path.name == "incident.json":
                continue   # ours, see look_incident
            if path.is_file():
                text = path.read_bytes().decode("utf-8", "replace")
                tree[name] = "error file" if path.name == "error.json" else sorted(self.neutral(text).splitlines(keepends=True))
            elif not any(path.iterdir()):
                tree[name] = "empty"
        return tree

    def look_incident(self):
        return sorted(str(path.relative_to(path.parents[1])) for path in (self.dir / "logs").rglob("incident.json"))

    def look_temporary(self):
        """What stays in TMPDIR."""
        return sorted({self.neutral(str(path.relative_to(self.dir / "tmp"))).split("/")[0] for path in (self.dir / "tmp").rglob("*")})

    def look_file(self, name):
        path = self.dir / name
        if not path.exists():
            return None
        try:
            return self.blank(json.loads(path.read_text()))
        except ValueError:
            return self.neutral(path.read_text())

    def blank(self, value):
        if isinstance(value, dict):
            return {key: "<traceback>" if key == "py_callstack" else "<time>" if key == "timestamp" else self.blank(inner) for key, inner in value.items()}
        if isinstance(value, str):
            return re.sub(r"Process \d+ got", "Process <pid> got", self.neutral(value))
        return value

    def look_report(self):
        """The failure report, line by line."""
        found = re.search(r"^(={10,})\n(.* FAILED\n(?s:.*?)^\1)$", self.stderr(), re.MULTILINE)
        if not found:
            return None
        text = self.neutral(found.group(0))
        text = re.sub(r"(  time      : )\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", r"\1<time>", text)
        text = re.sub(r"(  host      : ).*", r"\1<host>", text)
        text = re.sub(r"\(pid: \d+\)", "(pid: <pid>)", text)
        text = re.sub(r"received by PID \d+", "received by PID <pid>", text)
        width = {len(line) for line in text.splitlines() if re.fullmatch(r"[=-]{10,}", line)}
        text = re.sub(r"^([=-])\1{9,}$", r"\1\1\1", text, flags=re.MULTILINE)
        return [f"ruler {'60' if width == {60} else 'as the longest line'}"] + text.splitlines()

    def look_events(self):
        """Events on the console: name, source, and of the inner part the keys."""
        events = []
        for line in self.stderr().splitlines():
            if not line.startswith('{"name"'):
                continue
            event = json.loads(line)
            meta = event["metadata"]
            inner = json.loads(meta["metadata"])
            events.append([event["name"], event["source"], sorted(event), sorted(meta), sorted(inner), meta["state"],
                           meta["global_rank"], meta["group_rank"], meta["agent_restarts"], self.neutral(str(meta["run_id"]))])
        return events


def in_short(lines):
    """Many lines as their number and a digest."""
    if len(lines) <= 40:
        return lines
    return {"lines": len(lines), "sha256": hashlib.sha256("".join(lines).encode()).hexdigest()}
