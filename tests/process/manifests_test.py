"""The manifests of examples/kubernetes and those that torchup prints, as Kubernetes, JobSet and Kubeflow's Trainer know
their fields, and as torchup means them.

usage: manifests_test.py TORCHUP EXAMPLES CHECKERS [unittest options]

CHECKERS is a folder with the packages kubernetes-validate and kubeflow-trainer-api (scripts/setup --tests makes it).
"""

import copy
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

TORCHUP = os.path.abspath(sys.argv.pop(1))
EXAMPLES = Path(sys.argv.pop(1))
sys.path.insert(0, sys.argv.pop(1))
try:
    import kubernetes_validate
    import yaml
    from kubeflow_trainer_api import models
    MISSING = None
except ImportError as error:
    MISSING = f"{error} (scripts/setup --tests installs what checks manifests)"

TRAINER_KINDS = {"JobSet": "JobsetV1alpha2JobSet", "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
                 "TrainJob": "TrainerV1alpha1TrainJob"}
QUEUE = "kueue.x-k8s.io/queue-name"


def printed(*words):
    return subprocess.run([TORCHUP, "--print-batch-script=kubernetes", *words], capture_output=True, text=True, check=True,
                          timeout=60).stdout


def as_started(command):
    """What becomes of a container's command: `$$` is `$`, `$(NAME)` a variable."""
    return [re.sub(r"\$(\$|\(.*?\))", lambda found: "$" if found[1] == "$" else "a variable", word) for word in command]


def documents(text):
    return list(yaml.safe_load_all(text))


def kinds(found):
    return [document["kind"] for document in found]


def within(document, name):
    """All values of that key, however deep."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key == name:
                yield value
            yield from within(value, name)
    elif isinstance(document, list):
        for value in document:
            yield from within(value, name)


def pods(document):
    """The specs of all pods that it makes: what has containers."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        for value in document.values():
            yield from pods(value)
    elif isinstance(document, list):
        for value in document:
            yield from pods(value)


def lost(given, kept, path=""):
    """What a model does not know of a document, or reads as something else."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}.{key}"
            else:
                yield from lost(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list):
        if not isinstance(kept, list) or len(kept) != len(given):
            yield path
        else:
            for index, (one, other) in enumerate(zip(given, kept)):
                yield from lost(one, other, f"{path}[{index}]")
    elif given != kept:
        yield path


@unittest.skipIf(MISSING, MISSING)
class Manifests(unittest.TestCase):
    def example(self, name):
        return documents((EXAMPLES / "kubernetes" / name).read_text())

    def check(self, document):
        """Each field is one that its kind has, of the right type."""
        if document["kind"] not in TRAINER_KINDS:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
            return
        model = getattr(models, TRAINER_KINDS[document["kind"]])
        self.assertEqual(list(lost(document, model.from_dict(document).to_dict())), [])
        for jobs in within(document, "replicatedJobs"):
            for job in jobs:
                self.check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job["template"]["spec"]})

    def check_failure_policy(self, document, of):
        """Disruptions and saved states count nothing, what would end alike ends the job; in this order."""
        policy, = within(document, "podFailurePolicy")
        shown = [(rule["action"], rule.get("onPodConditions") or rule["onExitCodes"]["values"]) for rule in policy["rules"]]
        self.assertEqual(shown, [("Ignore", [{"type": "DisruptionTarget", "status": "True"}]), ("Ignore", [75]),
                                 ("FailJob", [1, 2, 65, 68, 70])])
        self.assertEqual({rule["onExitCodes"]["containerName"] for rule in policy["rules"][1:]}, {of})
        self.assertEqual(list(within(document, "restartPolicy")), ["Never"])

    def check_probes(self, pod, readiness):
        container, = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        variables = {each["name"]: each["value"] for each in container["env"]}
        for name, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            if name == "readinessProbe" and not readiness:
                self.assertNotIn(name, container)
                continue
            probe = container[name]["httpGet"]
            self.assertEqual(probe["path"], path)
            self.assertEqual(str(ports.get(probe["port"], probe["port"])), variables["TORCHELASTIC_HEALTH_CHECK_PORT"])

    def check_restricted(self, pod):
        """The pod security standard of this name."""
        context = pod["securityContext"]
        self.assertEqual((context["runAsNonRoot"], context["seccompProfile"]), (True, {"type": "RuntimeDefault"}))
        self.assertGreater(context["runAsUser"], 0)
        for container in pod["containers"]:
            self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                            "capabilities": {"drop": ["ALL"]}})

    def check_room(self, pod):
        self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], 30)  # workers have 25 s of it
        memory = {volume["name"] for volume in pod["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory"}
        container, = pod["containers"]
        self.assertEqual([mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == "/dev/shm"], list(memory))

    def check_training(self, pod):
        self.check_restricted(pod)
        self.check_room(pod)
        self.assertEqual(pod["containers"][0]["terminationMessagePolicy"], "FallbackToLogsOnError")

    def test_what_checks_them_finds_faults(self):
        job = self.example("indexed_job.yaml")[1]
        job["spec"]["completionmode"] = "Indexed"
        with self.assertRaises(kubernetes_validate.ValidationError):
            self.check(job)
        for name in ("jobset.yaml", "train_job.yaml"):
            for document in self.example(name):
                wrong = copy.deepcopy(document)
                wrong["spec"]["colour"] = 1
                with self.assertRaises(AssertionError):
                    self.check(wrong)

    def check_indexed_job(self, found, readiness):
        """The service, the job and its pod."""
        self.assertEqual(kinds(found), ["Service", "Job"])
        service, job = found
        for document in found:
            self.check(document)
        pod, = pods(job)
        self.check_failure_policy(job, pod["containers"][0]["name"])
        self.check_probes(pod, readiness)
        self.assertEqual(service["spec"]["selector"], {"batch.kubernetes.io/job-name": job["metadata"]["name"]})
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        return service, job, pod

    def test_indexed_job(self):
        service, job, pod = self.check_indexed_job(self.example("indexed_job.yaml"), readiness=True)
        self.check_training(pod)
        self.assertEqual((service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]), ("None", True))
        self.assertIn(QUEUE, job["metadata"]["labels"])
        nodes = job["spec"]["completions"]
        self.assertEqual((job["spec"]["parallelism"], pod["containers"][0]["command"][:2]), (nodes, ["torchup", f"--nnodes={nodes}"]))

    def test_jobset(self):
        job_set, = self.example("jobset.yaml")
        self.check(job_set)
        pod, = pods(job_set)
        self.check_failure_policy(job_set, pod["containers"][0]["name"])
        self.check_probes(pod, readiness=False)
        self.check_training(pod)
        self.assertIn(QUEUE, job_set["metadata"]["labels"])
        self.assertTrue(job_set["spec"]["network"]["publishNotReadyAddresses"])

    def test_train_job_and_its_runtime(self):
        runtime, job = self.example("train_job.yaml")
        self.assertEqual((runtime["kind"], job["kind"]), ("TrainingRuntime", "TrainJob"))
        self.check(runtime)
        self.check(job)
        pod, = pods(runtime)
        self.check_failure_policy(runtime, pod["containers"][0]["name"])
        self.check_probes(pod, readiness=False)
        self.check_training(pod)
        self.assertEqual(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"])
        self.assertIn(QUEUE, job["metadata"]["labels"])

    def test_torchupd(self):
        found = self.example("torchupd.yaml")
        self.assertEqual(kinds(found), ["Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"])
        service, daemon, budget, policy = found
        for document in found:
            self.check(document)
        pod, = pods(daemon)
        self.check_restricted(pod)
        container, = pod["containers"]
        port, = (each["containerPort"] for each in container["ports"])
        self.assertIn(f"--port={port}", container["command"])
        self.assertEqual([each["port"] for each in service["spec"]["ports"]], [port])
        self.assertEqual([each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]], [port])
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            self.assertEqual(container[probe]["httpGet"]["path"], path)
        folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        claim, = daemon["spec"]["volumeClaimTemplates"]
        state, = (word.partition("=")[2] for word in container["command"] if word.startswith("--state-dir="))
        self.assertTrue(state.startswith(folders[claim["metadata"]["name"]] + "/"))
        secret, = (volume for volume in pod["volumes"] if "secret" in volume)
        self.assertEqual(secret["secret"]["defaultMode"] & 0o007, 0)  # read_token_file takes no other
        self.assertIn(f"--token-file={folders[secret['name']]}/token", container["command"])
        labels = daemon["spec"]["template"]["metadata"]["labels"]
        for selector in (service["spec"]["selector"], daemon["spec"]["selector"]["matchLabels"],
                         budget["spec"]["selector"]["matchLabels"], policy["spec"]["podSelector"]["matchLabels"]):
            self.assertEqual(selector, labels)

    def test_printed_ones(self):
        words = ["it's", "a b", "$(HOME) $$ $", "two\nlines", "- x: 1", "é", "😀\x7f\x85"]
        for options in (["--nnodes=4"], ["--nnodes=2:4", "--nproc-per-node=8"], [], ["--nnodes=3", "--shutdown-timeout=100"]):
            service, _, pod = self.check_indexed_job(documents(printed(*options, *words)), readiness=False)
            self.check_room(pod)
            self.assertEqual(as_started(pod["containers"][0]["command"]), ["torchup", *options, *words])
            self.assertTrue(service["spec"]["publishNotReadyAddresses"])
        self.assertEqual(pod["terminationGracePeriodSeconds"], 105)


if __name__ == "__main__":
    unittest.main()
