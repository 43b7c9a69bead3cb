"""Jobs in pods: with the variables that Kubernetes, Kubeflow and Volcano set, and what pods do to a launcher.

usage: pod_test.py TORCHUP TORCHUPD [unittest options]      skipped where namespaces cannot be made
"""

import os
import socket
import sys
import time
import unittest
from pathlib import Path

from pods import PodsCase
from waiting import children, state, until

PodsCase.launcher = TORCHUP = Path(sys.argv.pop(1)).resolve()
TORCHUPD = Path(sys.argv.pop(1)).resolve()
DOMAIN = "train.default.svc.cluster.local"
UNKNOWN_USER = 1_234_567
# Whether workers of all nodes reach the one that MASTER_ADDR names.
REACH = 'import os, socket; socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 30)'
WAIT = "while ! [ -e {folder}/release ]; do sleep 0.02; done"


def indexed(index):
    return {"JOB_COMPLETION_INDEX": str(index)}


class Controllers(PodsCase):
    """What each of them sets, and no more; the command line is the one that its users write."""

    def job(self, pods, each, *options):
        """Starts the pods `(name, domain, variables)`, whose names nobody knows until all of them wait or run."""
        command = [TORCHUP, *options, "--no-python", *pods.worker()]
        return [pods.start(number, name, command, variables, domain=domain)
                for number, (name, domain, variables) in enumerate(each)]

    def ends_well(self, pods, started, world, hosts):
        """One round of all workers, on these hosts in the order of their ranks."""
        entries = pods.round_of(world)
        self.assertEqual([entry["host"] for entry in sorted(entries, key=lambda entry: entry["rank"])], hosts)
        pods.release()
        for pod in started:
            self.assertEqual(pod.code(), 0, pod.said())
            self.assertEqual(pod.termination_log.read_text(), "")
        pods.nothing_left()
        return entries

    def test_indexed_job_whose_names_come_late(self):
        pods = self.pods(3)
        # Addresses say nothing of their order.
        started = self.job(pods, [(f"train-{index}", DOMAIN, indexed(index)) for index in (2, 1, 0)],
                           "--nnodes=3", "--nproc-per-node=2")
        late = started[:2]
        for pod in late:
            until(lambda: f"the name train-0.{DOMAIN} is not found" in pod.said(), "it says what it waits for")
            pod.looks_names_up(3)
        pods.name_pod(2, f"train-0.{DOMAIN}", "train-0")
        self.ends_well(pods, started, 6, ["train-0"] * 2 + ["train-1"] * 2 + ["train-2"] * 2)
        for pod in late:
            self.assertEqual(pod.said().count("is not found"), 1, pod.said())

    def test_kubeflow_v1_elastic(self):
        variables = {"PYTHONUNBUFFERED": "0", "PET_RDZV_ENDPOINT": "job-worker-0:23456", "PET_RDZV_BACKEND": "c10d",
                     "PET_NNODES": "2:3", "PET_MAX_RESTARTS": "3", "PET_NPROC_PER_NODE": "1"}
        pods = self.pods(3)
        started = self.job(pods, [(f"job-worker-{index}", "", variables) for index in range(3)])
        for index in range(3):
            pods.name_pod(index, f"job-worker-{index}")
        self.ends_well(pods, started, 3, [f"job-worker-{index}" for index in range(3)])

    def test_kubeflow_v1_with_a_master(self):
        names = ["job-master-0", "job-worker-0"]
        pods = self.pods(2)
        started = self.job(pods, [(name, "", {
            "PYTHONUNBUFFERED": "1", "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "MASTER_ADDR": "job-master-0",
            "PET_MASTER_ADDR": "job-master-0", "WORLD_SIZE": "4", "RANK": str(rank), "PET_NODE_RANK": str(rank),
            "PET_NPROC_PER_NODE": "2", "PET_NNODES": "2"}) for rank, name in enumerate(names)])
        until(lambda: "is not found" in started[1].said(), "the worker waits for the master's name")
        pods.name_pod(0, "job-master-0")
        entries = self.ends_well(pods, started, 4, ["job-master-0"] * 2 + ["job-worker-0"] * 2)
        self.assertEqual({entry["master"] for entry in entries}, {"job-master-0:23456"})

    def kubeflow_v2(self, index):
        return {**indexed(index), "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500"}

    def test_kubeflow_v2(self):
        pods = self.pods(2)
        started = self.job(pods, [(f"train-node-0-{index}", DOMAIN, self.kubeflow_v2(index)) for index in range(2)])
        until(lambda: "is not found" in started[1].said(), "the second pod waits for the first one's name")
        pods.name_pod(0, "train-node-0-0.train")
        entries = self.ends_well(pods, started, 4, ["train-node-0-0"] * 2 + ["train-node-0-1"] * 2)
        self.assertEqual({entry["master"] for entry in entries}, {"train-node-0-0.train:29500"})

    def test_volcano(self):
        names = ["job-master-0", "job-worker-0", "job-worker-1"]
        pods = self.pods(3)
        started = self.job(pods, [(name, "job.default.svc.cluster.local", {
            "MASTER_ADDR": "job-master-0.job", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": str(rank),
            "VC_TASK_INDEX": name[-1], "VK_TASK_INDEX": name[-1], "VC_MASTER_NUM": "1", "VC_WORKER_NUM": "2",
            "VC_MASTER_HOSTS": "job-master-0.job", "VC_WORKER_HOSTS": "job-worker-0.job,job-worker-1.job"})
            for rank, name in enumerate(names)])
        pods.name_pod(0, "job-master-0.job")
        self.ends_well(pods, started, 3, names)

    def over_ipv6(self, each, *options):
        """Workers of all nodes reach each other where there is nothing else."""
        pods = self.pods(2, socket.AF_INET6)
        pods.name_pod(0, f"train-0.{DOMAIN}", "train-node-0-0.train")
        command = [TORCHUP, *options, "--no-python", sys.executable, "-S", "-c", REACH]
        started = [pods.start(number, name, command, variables, domain=DOMAIN) for number, (name, variables) in enumerate(each)]
        for pod in started:
            self.assertEqual(pod.code(), 0, pod.said())
        pods.nothing_left()

    def test_indexed_job_with_ipv6_alone(self):
        self.over_ipv6([(f"train-{index}", indexed(index)) for index in range(2)], "--nnodes=2", "--nproc-per-node=2")

    def test_kubeflow_v2_with_ipv6_alone(self):
        self.over_ipv6([(f"train-node-0-{index}", self.kubeflow_v2(index)) for index in range(2)])


class Replaced(PodsCase):
    """A pod goes without a word, and another one of its name comes with another address."""

    def job(self, pods):
        pods.name_pod(0, f"train-0.{DOMAIN}")
        return [self.pod(pods, index, index) for index in range(2)]

    def pod(self, pods, number, index):
        command = [TORCHUP, "--nnodes=2", "--max-restarts=1", "--no-python", *pods.worker()]
        return pods.start(number, f"train-{index}", command, indexed(index), domain=DOMAIN)

    def goes_on(self, pods, living):
        entries = pods.round_of(2, after=1)
        self.assertEqual({entry["host"]: entry["rank"] for entry in entries}, {"train-0": 0, "train-1": 1})
        self.assertEqual(pods.restart_counts(), [0, 0])
        pods.release()
        for pod in living:
            self.assertEqual(pod.code(), 0, pod.said())
        pods.nothing_left()

    def test_a_pod_of_the_job(self):
        pods = self.pods(3)
        first, second = self.job(pods)
        pods.round_of(2)
        second.delete()
        self.goes_on(pods, [first, self.pod(pods, 2, 1)])

    def test_the_pod_where_they_meet(self):
        pods = self.pods(3)
        first, second = self.job(pods)
        pods.round_of(2)
        first.delete()
        second.looks_names_up(1)
        pods.name_pod(2, f"train-0.{DOMAIN}")
        self.goes_on(pods, [self.pod(pods, 2, 0), second])


class Life(PodsCase):
    """One pod, whose process 1 torchup is."""

    def alone(self, *command, variables=(), **how):
        pods = self.pods(1)
        return pods, pods.start(0, "train", [TORCHUP, *(str(word).format(folder=pods.dir) for word in command)], dict(variables), **how)

    def test_workers_that_ignore_sigterm_are_gone_before_the_pods_patience_ends(self):
        ignore = "trap '' TERM; setsid sh -c 'echo left; exec sleep 100' & echo started; while :; do sleep 1; done"
        pods, pod = self.alone("--nproc-per-node=2", "sh", "-c", ignore)
        until(lambda: pod.wrote().split().count("started") == 2 == pod.wrote().split().count("left"), "workers and what they leave")
        begin = time.monotonic()
        pod.terminate()
        self.assertEqual(pod.code(), 143, pod.said())
        self.assertLess(time.monotonic() - begin, 30)  # then the kubelet kills
        self.assertEqual(pod.termination_log.read_text(), "torchup ended with 143: got SIGTERM\n")
        pods.nothing_left()

    def test_orphans_are_reaped(self):
        pods, pod = self.alone("sh", "-c", "for i in 1 2 3 4 5; do (true &); (setsid true &); done; touch {folder}/done; " + WAIT)
        until((pods.dir / "done").exists, "orphans")
        outer = pod.first()

        def zombies():
            parents = (outer, *children(outer))
            below = [pid for parent in parents for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
            return [pid for pid in below if state(pid) == "Z"]

        until(lambda: not zombies(), "no zombie is left")
        pods.release()
        self.assertEqual(pod.code(), 0, pod.said())

    def test_root_is_read_only_and_nobody_knows_the_user(self):
        # None raises before both have printed: the first one's end is the other's.
        script = """import os, pathlib, time
own = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"])
print("at", own, flush=True)
(own.parent / "printed").touch()
while not all((own.parents[1] / rank / "printed").exists() for rank in "01"):
    time.sleep(0.01)
raise ValueError("bad")
"""
        pods = self.pods(1)
        (pods.dir / "bad.py").write_text(script)
        pod = pods.start(0, "train", [TORCHUP, "--nproc-per-node=2", pods.dir / "bad.py"], {}, read_only=True, uid=UNKNOWN_USER)
        self.assertEqual(pod.code(), 1, pod.said())
        files = [line[3:] for line in pod.wrote().splitlines() if line.startswith("at ")]
        self.assertEqual(len(files), 2, pod.wrote())
        for path in files:
            self.assertTrue(path.startswith("/dev/shm/"), path)
        said = pod.said()
        self.assertNotIn("no error files", said)
        self.assertEqual(said.count("/dev/shm has "), 1, said)
        self.assertIn("2 workers want 1.0 GiB: mount an emptyDir with medium: Memory there", said)
        message = pod.termination_log.read_text()
        self.assertRegex(message, r"\Atorchup ended with 1: rank \d .*\nrank \d .* on train: exit code 1: ValueError: bad\n")
        self.assertTrue(message.endswith("ValueError: bad\n"), message)
        pods.nothing_left()

    def test_memory_to_share_is_looked_at_where_it_matters(self):
        pods = self.pods(1)
        for workers, found in (("1", "ok"), ("2", "warning")):
            pod = pods.start(0, "train", [TORCHUP, "--preflight-only", f"--nproc-per-node={workers}"], {})
            self.assertEqual(pod.code(), 0, pod.said())
            head, row = pod.wrote().splitlines()[:2]
            self.assertEqual(row.split()[head.split().index("shm")], found, pod.wrote())

    def test_termination_log_of_the_users_own(self):
        pods = self.pods(1)
        own = pods.dir / "own"
        for word, written in ((f"--termination-log={own}", True), ("--termination-log=", False)):
            pod = pods.start(0, "train", [TORCHUP, word, "sh", "-c", "echo last words; exit 7"], {})
            self.assertEqual(pod.code(), 1, pod.said())
            self.assertEqual(pod.termination_log.read_text(), "")
            self.assertEqual(own.exists(), written)
            if written:
                self.assertRegex(own.read_text(), r"\Atorchup ended with 1: .*\nrank 0 .*exit code 7\nits last lines:\nlast words\n\Z")
                own.unlink()
        pod = pods.start(0, "train", [TORCHUP, "--termination-log=/none/file", "echo", "ran"], {})
        self.assertEqual((pod.code(), pod.wrote()), (2, ""))
        self.assertIn("--termination-log: /none/file", pod.said())


class Probes(PodsCase):
    def test_a_node_is_ready_while_its_workers_run(self):
        pods = self.pods(2)
        pods.name_pod(0, f"train-0.{DOMAIN}")
        command = [TORCHUP, "--nnodes=2", "--no-python", *pods.worker()]
        variables = {"TORCHELASTIC_HEALTH_CHECK_PORT": "8080"}
        started = [pods.start(0, "train-0", command, {**variables, **indexed(0)}, domain=DOMAIN)]
        until(lambda: pods.probe(0, 8080, "/healthz") == (200, "ok\n"), "it is alive")
        until(lambda: pods.probe(0, 8080, "/readyz") == (503, "waiting\n"), "it waits for the second pod")
        started.append(pods.start(1, "train-1", command, {**variables, **indexed(1)}, domain=DOMAIN))
        pods.round_of(2)
        for number in range(2):
            until(lambda: pods.probe(number, 8080, "/readyz") == (200, "ok\n"), "its worker runs")
            self.assertEqual(pods.probe(number, 8080, "/healthz"), (200, "ok\n"))
            self.assertEqual(pods.probe(number, 8080, "/")[0], 403)
            self.assertEqual(pods.probe(number, 8080, "/none")[0], 403)
        pods.release()
        for pod in started:
            self.assertEqual(pod.code(), 0, pod.said())

    def test_torchupd(self):
        pods = self.pods(1)
        token = pods.dir / "token"
        token.write_text("0123456789abcdef")
        token.chmod(0o440)
        os.chown(token, 0, UNKNOWN_USER)  # a Secret, as an fsGroup has it
        pod = pods.start(0, "torchupd-0", [TORCHUPD, "--bind=::", "--port=29400", f"--token-file={token}"], {}, read_only=True,
                         uid=UNKNOWN_USER)
        until(lambda: "ready on" in pod.wrote() or pod.process.poll() is not None, "torchupd")
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/status", 401), ("/metrics", 401)):
            self.assertEqual(pods.probe(0, 29400, path)[0], status, path)
        pod.terminate()
        self.assertEqual(pod.code(), 0, pod.said())

    def test_a_failure_is_told_by_all_pods(self):
        pods = self.pods(2)
        pods.name_pod(0, f"train-0.{DOMAIN}")
        program = "[ $RANK = 0 ] && exec sleep 100; echo out of luck; exit 9"
        started = [pods.start(index, f"train-{index}", [TORCHUP, "--nnodes=2", "sh", "-c", program], indexed(index), domain=DOMAIN)
                   for index in range(2)]
        for pod in started:
            self.assertEqual(pod.code(), 1, pod.said())
            self.assertRegex(pod.termination_log.read_text(),
                             r"\Atorchup ended with 1: rank 1 .*\nrank 1 \(local rank 0, pid \d+\) on train-1: exit code 9\n")
        self.assertTrue(started[1].termination_log.read_text().endswith("\nits last lines:\nout of luck\n"))


if __name__ == "__main__":
    unittest.main()
