"""What it costs to look at jobs: torchupctl beside torchup --version and kubectl; launching with the control socket and
without, beside MPI's hydra; a launcher's memory with a page open; scrapes and snapshots of a job of 12,500 agents; a page of
1,000 ranks; and 12,500 agents placed while streams of events are followed, beside nobody who follows them.

The many agents are one load generator (agents_load); torchupd and it have a processor each, as if they were two machines.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from http.client import HTTPConnection

import measure
from bench_launch import memory_kib, program_of, tree, wall_ms
from bench_rendezvous import FIRST_WAIT, on_processor
from operations_readers import LIMIT_S, Followers, UnixConnection, ask, stream_request

sys.path += [os.path.join(measure.ROOT, "tests", folder) for folder in ("support", "operations")]
from waiting import until  # noqa: E402

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
JOB = "bench"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


# ---- the processes

@contextlib.contextmanager
def daemon(options):
    """A torchupd that begins jobs at once; gives its process and port."""
    process = subprocess.Popen([measure.program(options, "torchupd"), "--bind", "127.0.0.1", "--port", "0", "--no-control-socket"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=on_processor(0))
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        time.sleep(FIRST_WAIT)
        yield process, port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def agents(options, port, count):
    """So many, who stay; gives how long they took to be placed."""
    load = subprocess.Popen([measure.program(options, "agents_load"), "127.0.0.1", str(port), str(count), "8", "hold", JOB],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=on_processor(1))
    try:
        line = load.stdout.readline()
        if not line:
            sys.exit("bench: agents_load has ended (its last line is above)")
        yield json.loads(line)
    finally:
        load.stdin.close()
        try:
            load.wait(LIMIT_S)
        finally:
            load.kill()
            load.stdout.close()


@contextlib.contextmanager
def launcher(options, workers, environment):
    """A job of sleeping workers, once all of them sleep; gives the launcher."""
    process = subprocess.Popen([measure.program(options, "torchup"), f"--nproc-per-node={workers}", f"--rdzv-id={JOB}", "sleep",
                                "1000"], env=environment, **QUIET)
    try:
        until(lambda: sum(program_of(pid).endswith("/sleep") for pid in tree(process.pid)) == workers, "the workers sleep")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


@contextlib.contextmanager
def runtime_directory():
    with tempfile.TemporaryDirectory(prefix="bench_operations_") as folder:
        yield {**os.environ, "TORCHUP_RUNTIME_DIR": folder}


def socket_in(environment):
    folder = environment["TORCHUP_RUNTIME_DIR"]
    return until(lambda: next((os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".sock")), None),
                 "a control socket", 10)


# ---- torchupctl, and launching

def commands(options, results, goals):
    with runtime_directory() as environment, launcher(options, 2, environment):
        socket_in(environment)
        os.environ["TORCHUP_RUNTIME_DIR"] = environment["TORCHUP_RUNTIME_DIR"]
        ctl = measure.program(options, "torchupctl")
        contenders = {"torchupctl ps": wall_ms([ctl, "ps"]), "torchupctl status": wall_ms([ctl, "status", JOB]),
                      "torchup --version": wall_ms([measure.program(options, "torchup"), "--version"])}
        kubectl = shutil.which("kubectl")
        if kubectl:
            contenders["kubectl version"] = wall_ms([kubectl, "version", "--client"])
        else:
            print("kubectl: not found, left out (Debian package kubernetes-client)")
        try:
            times = measure.interleave(contenders, 4 * options.rounds)
        finally:
            del os.environ["TORCHUP_RUNTIME_DIR"]
    results["commands_ms"] = measure.report("start to exit, with one job", "ms", times, "torchupctl ps", 2)
    median = {name: statistics.median(values) for name, values in times.items()}
    for name in "torchupctl ps", "torchupctl status":
        goals.at_most(f"{name} [ms]", median[name], 10)
        goals.at_most(f"{name} / torchup --version", median[name] / median["torchup --version"], 1.5)
        if kubectl:
            goals.at_least(f"kubectl version --client / {name}", median["kubectl version"] / median[name], 20)


def launches(options, results, goals):
    torchup = [measure.program(options, "torchup"), "--nproc-per-node=2"]
    contenders = {"with the socket": wall_ms([*torchup, "true"]), "without": wall_ms([*torchup, "--no-control-socket", "true"])}
    if hydra := shutil.which("mpiexec.hydra"):
        contenders["hydra"] = wall_ms([hydra, "-n", "2", "true"])
    else:
        print("hydra: not found, left out (Debian package mpich)")
    times = measure.interleave(contenders, 20 * options.rounds)
    results["two_noops_ms"] = measure.report("two no-op workers, start to exit", "ms", times, "with the socket", 2)
    median = {name: statistics.median(values) for name, values in times.items()}
    goals.at_most("launch with the socket / without", median["with the socket"] / median["without"], 1.03)
    if hydra:
        goals.at_most("launch with the socket / hydra", median["with the socket"] / median["hydra"], 1)


# ---- a launcher that is looked at

def pss_mib(process):
    own = [pid for pid in tree(process.pid) if not program_of(pid).endswith("/sleep")]
    return sum(memory_kib(pid, "Pss") for pid in own) / 1024


def looked_at(options, environment):
    """Its memory before anybody looks, and the most with a page open and a scrape each second."""
    with launcher(options, 8, environment) as process:
        path = socket_in(environment)
        time.sleep(2.5)  # a second after its workers' start a launcher gives back what only that needed
        before = pss_mib(process)
        page = urllib.parse.urlsplit(subprocess.run([measure.program(options, "torchupctl"), "page", JOB], env=environment,
                                                    check=True, capture_output=True, text=True).stdout.strip())
        browser = HTTPConnection("127.0.0.1", page.port, timeout=LIMIT_S)
        ask(browser, "/")
        browser.sock.sendall(stream_request(f"/v1/jobs/{JOB}/stream", page.fragment.partition("=")[2]))
        most = before
        for _ in range(options.seconds):
            scrape = UnixConnection(path)
            ask(scrape, "/metrics")
            scrape.close()
            if select.select([browser.sock], [], [], 0)[0]:
                browser.sock.recv(1 << 20)
            most = max(most, pss_mib(process))
            time.sleep(1)
        browser.close()
        return before, most


def memory(options, results, goals):
    with runtime_directory() as environment:
        runs = [looked_at(options, environment) for _ in range(min(options.rounds, 3))]
    names = ("page open, scrapes each second", "nobody looks")
    values = dict(zip(names, ([most for _, most in runs], [before for before, _ in runs])))
    results["pss_mib"] = measure.report("PSS of the launcher's own processes, 8 workers", "MiB", values, names[0], 2)
    goals.at_most("PSS with a page open and scrapes [MiB]", statistics.median(values[names[0]]), 6)


# ---- a large job

def long_turns(metrics):
    """Turns of the loop that took longer than 10, 25, 50 ms … 1 s, by that."""
    counts = {float(limit): int(count) for limit, count in
              re.findall(r'torchup_loop_turn_seconds_bucket\{le="([\d.]+)"\} (\d+)', metrics)}
    total = int(re.search(r"torchup_loop_turn_seconds_count (\d+)", metrics).group(1))
    return {limit: total - count for limit, count in counts.items() if limit >= 0.01}


def large_job(options, results, goals):
    rows = {}
    with daemon(options) as (_, port), agents(options, port, options.agents):
        door = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        time.sleep(options.seconds)  # reports of all have come once
        turns = [long_turns(ask(door, "/metrics")[1].decode())]
        door.close()  # whoever is silent that long is closed; another request connects again
        time.sleep(options.seconds)  # as long again as what follows: nobody looks
        turns.append(long_turns(ask(door, "/metrics")[1].decode()))
        for name, path in (("scrape", "/metrics"), ("list of jobs", "/v1/jobs"), ("snapshot", f"/v1/jobs/{JOB}")):
            asked = []
            for _ in range(max(options.rounds, options.seconds)):
                asked.append(ask(door, path))
                time.sleep(0.3)
            rows[name] = {"ms": [1e3 * seconds for seconds, _ in asked], "bytes": max(len(body) for _, body in asked)}
        turns.append(long_turns(ask(door, "/metrics")[1].decode()))
    title = f"{options.agents} agents, {8 * options.agents} ranks: from the request to the last byte"
    results["large_job_ms"] = measure.report(title, "ms", {name: row["ms"] for name, row in rows.items()}, "scrape", 2)
    results["large_job_bytes"] = {name: row["bytes"] for name, row in rows.items()}
    print("  bytes: " + ", ".join(f"{name} {row['bytes']:,}" for name, row in rows.items()))
    over = {name: {limit: late[limit] - early[limit] for limit in late if late[limit] > early[limit]}
            for name, early, late in (("nobody looks", *turns[:2]), ("looked at", *turns[1:]))}
    results["long_turns"] = over
    for name, found in over.items():
        told = ", ".join(f"{count} over {1e3 * limit:g} ms" for limit, count in found.items())
        print(f"  turns of the loop, {name}: {told or 'none over 10 ms'}")
    goals.at_most("scrape [ms]", statistics.median(rows["scrape"]["ms"]), 50)
    goals.at_most("scrape [bytes]", rows["scrape"]["bytes"], 1e6)
    goals.at_most("list of jobs [bytes]", rows["list of jobs"]["bytes"], 10e3)
    goals.at_most("snapshot [bytes]", rows["snapshot"]["bytes"], 4e6)
    goals.at_most("turns of the loop over 25 ms while looked at", over["looked at"].get(0.025, 0), 0)


# ---- a page

def cpu_s(process):
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def used_percent(process, seconds):
    begin, before = time.monotonic(), cpu_s(process)
    time.sleep(seconds)
    return 100 * (cpu_s(process) - before) / (time.monotonic() - begin)


def drawn_ms(port):
    """From the start of the navigation until the page has a cell for each rank; nothing where there is no browser."""
    import unittest

    from browser import Browser
    try:
        browser = Browser()
    except unittest.SkipTest as missing:
        print(f"the page is not drawn: {missing}")
        return None
    try:
        browser.open(f"http://127.0.0.1:{port}/jobs/{JOB}")
        return browser.until("return document.querySelector('#ranks [role=gridcell]') && performance.now()")
    finally:
        browser.close()


def page(options, results, goals):
    with daemon(options) as (process, port), agents(options, port, options.page_agents):
        time.sleep(2)

        def followed():
            followers = Followers(port, f"/v1/jobs/{JOB}/stream", 1, deaf=False)
            followers.start()
            until(lambda: followers.pieces[0], "the stream's begin")
            try:
                return used_percent(process, options.seconds)
            finally:
                followers.end()

        contenders = {"a page is open": followed, "none is": lambda: used_percent(process, options.seconds)}
        used = measure.interleave(contenders, options.rounds, warm=False)
        drawn = [drawn_ms(port) for _ in range(min(options.rounds, 3))]
    ranks = 8 * options.page_agents
    results["page_cpu_percent"] = measure.report(f"torchupd, {ranks} ranks that change each second", "% of a core", used,
                                                 "a page is open", 2)
    cost = statistics.median(used["a page is open"]) - statistics.median(used["none is"])
    goals.at_most(f"a page of {ranks} ranks [% of a core]", cost, 1)
    if None not in drawn:
        results["page_drawn_ms"] = measure.report(f"{ranks} cells drawn in Chromium", "ms", {"the page": drawn}, "the page", 0)
        goals.at_most(f"a page of {ranks} ranks drawn [ms]", statistics.median(drawn), 1000)


# ---- streams

def placed_ms(options, readers, missing):
    """12,500 agents come while so many follow the events, and a deaf one; the events that they missed go into `missing`."""
    with daemon(options) as (_, port):
        followers = Followers(port, f"/v1/jobs/{JOB}/stream", readers, deaf=True) if readers else None
        if followers:
            followers.start()
        with agents(options, port, options.agents) as placed:
            if followers:
                door = HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
                last = json.loads(ask(door, f"/v1/jobs/{JOB}")[1])["seq"]
                until(lambda: followers.have_seen(last), "all events have come")
                missing.append(followers.end())
        return 1e3 * placed["seconds"]


def streams(options, results, goals):
    missing = []
    names = (f"{options.readers} follow, one is deaf", "nobody follows")
    contenders = {names[0]: lambda: placed_ms(options, options.readers, missing), names[1]: lambda: placed_ms(options, 0, missing)}
    times = measure.interleave(contenders, options.rounds, warm=False)
    results["placed_ms"] = measure.report(f"{options.agents} agents placed", "ms", times, names[0], 0)
    results["events_missing"] = missing
    goals.at_most("placed, events followed / not", statistics.median(times[names[0]]) / statistics.median(times[names[1]]), 1.10)
    goals.at_most("events that did not reach a reader", sum(missing), 0)


PARTS = {"commands": commands, "launch": launches, "memory": memory, "large": large_job, "page": page, "streams": streams}


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which of {', '.join(PARTS)} (default all)")
    parser.add_argument("--agents", type=int, default=12500, help="of the large job (default 12500)")
    parser.add_argument("--page-agents", type=int, default=125, help="of 8 ranks each, on the page (default 125)")
    parser.add_argument("--readers", type=int, default=10, help="who follow the events (default 10)")
    parser.add_argument("--seconds", type=int, default=10, help="of each look at what goes on (default 10)")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    print(measure.machine())
    print(f"load of the last minute before: {os.getloadavg()[0]:.1f}")
    results, goals = {}, measure.Goals()
    for name in parts:
        PARTS[name](options, results, goals)
    results["goals"] = goals.table()
    measure.finish(options, results)


if __name__ == "__main__":
    main()
