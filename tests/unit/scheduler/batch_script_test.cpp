#include "launcher/core/scheduler/batch_script.hpp"

#include <catch2/catch.hpp>
#include <map>

namespace torchup {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

std::string script(std::string_view scheduler, const std::map<std::string, std::string>& options,
                   const std::vector<std::string>& program = {"train.py", "--epochs", "10"}) {
  OptionValues values;
  for (const auto& [name, value] : options) values.set(name, value);
  const auto text = batch_script(scheduler, values, program);
  return text ? *text : "error: " + text.error().message();
}

}  // namespace

TEST_CASE("a script for sbatch starts this command line on all its nodes", "[unit][scheduler]") {
  const std::string text = script("slurm", {{"nnodes", "4"}, {"nproc-per-node", "8"}, {"print-batch-script", "slurm"}});
  REQUIRE_THAT(text, StartsWith("#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=1\n"));
  REQUIRE_THAT(text, Contains("\n##SBATCH --gpus-per-node=8\n"));
  REQUIRE_THAT(
      text,
      EndsWith("\nsrun --kill-on-bad-exit=0 'torchup' '--nnodes=4' '--nproc-per-node=8' 'train.py' '--epochs' '10'\n"));
  for (const char* elastic : {"--no-kill", "requeue", "open-mode"}) REQUIRE(text.find(elastic) == std::string::npos);
}

TEST_CASE("an elastic job and one that comes back have what they need", "[unit][scheduler]") {
  const std::string elastic = script("slurm", {{"nnodes", "3:4"}});
  REQUIRE_THAT(elastic, Contains("\n#SBATCH --nodes=4\n"));
  REQUIRE_THAT(elastic, Contains("\n#SBATCH --no-kill\n"));
  REQUIRE_THAT(elastic, Contains("\nsrun --no-kill --kill-on-bad-exit=0 'torchup' '--nnodes=3:4' "));
  REQUIRE_THAT(script("slurm", {{"requeue", "20"}}), Contains("\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"));
}

TEST_CASE("a step goes on when the first node has left, whatever the site's default is", "[unit][scheduler]") {
  for (const char* option : {"stop-before", "requeue", "drain-signals", "role"}) {
    REQUIRE_THAT(script("slurm", {{option, "5"}}), Contains("\nsrun --kill-on-bad-exit=0 'torchup' "));
  }
}

TEST_CASE("what is not said stands as a comment", "[unit][scheduler]") {
  const std::string text = script("slurm", {});
  REQUIRE_THAT(text, Contains("\n##SBATCH --nodes=N  # "));
  REQUIRE_THAT(text, Contains("\n##SBATCH --gpus-per-node=N\n"));
  REQUIRE_THAT(script("kubernetes", {}), Contains("completions: 1  # --nnodes did not say\n"));
}

TEST_CASE("no word of the command line becomes a word of the shell's or of YAML", "[unit][scheduler]") {
  const std::vector<std::string> program{"a b.py", "it's", "$(touch x) $$", "\"quoted\"", "two\nlines", "é😀\x7f"};
  const std::string text = script("slurm", {}, program);
  REQUIRE_THAT(text, EndsWith("\nsrun --kill-on-bad-exit=0 'torchup' 'a b.py' 'it'\\''s' '$(touch x) $$' '\"quoted\"' "
                              "'two\nlines' 'é😀\x7f'\n"));
  REQUIRE_THAT(script("kubernetes", {}, program),
               Contains("command: [\"torchup\", \"a b.py\", \"it's\", \"$$(touch x) $$$$\", \"\\\"quoted\\\"\", "
                        "\"two\\nlines\", \"\\u00e9😀\\u007f\"]\n"));
}

TEST_CASE("a word that YAML cannot hold is refused, and a shell's script has it as it is", "[unit][scheduler]") {
  const std::string refusal = " is not UTF-8, and YAML and JSON hold no other text";
  REQUIRE(script("kubernetes", {}, {"x.py", "a\xff"}) == "error: --print-batch-script=kubernetes: 'a\\xff'" + refusal);
  REQUIRE(script("kubernetes", {{"role", "\xc3"}}) ==
          "error: --print-batch-script=kubernetes: '--role=\\xc3'" + refusal);
  REQUIRE_THAT(script("slurm", {}, {"x.py", "a\xff"}), EndsWith(" 'x.py' 'a\xff'\n"));
}

TEST_CASE("a program is not taken for options where it looks like them", "[unit][scheduler]") {
  REQUIRE_THAT(script("slurm", {{"nnodes", "2"}}, {"-x.py", "1"}),
               EndsWith(" 'torchup' '--nnodes=2' '--' '-x.py' '1'\n"));
  REQUIRE_THAT(script("slurm", {}, {"x.py", "--", "1"}), EndsWith(" 'torchup' '--' 'x.py' '--' '1'\n"));
  REQUIRE_THAT(script("slurm", {}, {"x.py", "-1", "--"}), EndsWith(" 'torchup' 'x.py' '-1' '--'\n"));
}

TEST_CASE("options that mean something elsewhere alone are refused", "[unit][scheduler]") {
  for (const char* name : {"hosts", "hostfile", "host-discovery"}) {
    REQUIRE_THAT(script("slurm", {{name, "x"}}),
                 StartsWith("error: --print-batch-script=slurm: --" + std::string{name}));
    REQUIRE_THAT(script("kubernetes", {{name, "x"}}), StartsWith("error: --print-batch-script=kubernetes: "));
  }
  REQUIRE_THAT(script("kubernetes", {{"requeue", "3"}}),
               StartsWith("error: --print-batch-script=kubernetes: --requeue"));
}

TEST_CASE("options of variables and files are not the command line's", "[unit][scheduler]") {
  OptionValues values;
  values.set("nnodes", "2");
  values.set("max-restarts", "3", "PET_MAX_RESTARTS");
  values.set("hostfile", "list", "PET_HOSTFILE");
  values.set("module", "1");
  const auto text = batch_script("slurm", values, {"m"});
  REQUIRE_THAT(*text, EndsWith("\nsrun --kill-on-bad-exit=0 'torchup' '--nnodes=2' '--module' 'm'\n"));
  OptionValues variables;
  variables.set("nnodes", "2", "PET_NNODES");
  variables.set("requeue", "2", "PET_REQUEUE");
  REQUIRE_THAT(*batch_script("kubernetes", variables, {"m"}), Contains("completions: 1  # --nnodes did not say\n"));
  REQUIRE(batch_script("slurm", variables, {"m"})->find("--requeue") == std::string::npos);
}

TEST_CASE("an Indexed Job meets by a headless service", "[unit][scheduler]") {
  const std::string text = script("kubernetes", {{"nnodes", "2:4"}, {"nproc-per-node", "8"}});
  for (const char* part :
       {"  clusterIP: None\n", "  publishNotReadyAddresses: true\n", "  completionMode: Indexed\n",
        "  completions: 4\n", "  parallelism: 4\n", "      subdomain: torchup-job\n", "        image: IMAGE\n",
        "            path: /healthz\n", "      restartPolicy: Never\n", "        #     nvidia.com/gpu: 8\n",
        "        command: [\"torchup\", \"--nnodes=2:4\", \"--nproc-per-node=8\", \"train.py\", \"--epochs\", "
        "\"10\"]\n"}) {
    CAPTURE(part);
    REQUIRE_THAT(text, Contains(part));
  }
  const auto disrupted = text.find("DisruptionTarget"), stopped = text.find("values: [75]"),
             failed = text.find("values: [1, 2, 65, 68, 70]");
  REQUIRE(disrupted < stopped);
  REQUIRE(stopped < failed);
  REQUIRE(failed != std::string::npos);
}

TEST_CASE("nodes that are none are refused", "[unit][scheduler]") {
  for (const char* bad : {"x", "0", "4:3", "1:2:3", "65537", ""}) {
    CAPTURE(bad);
    REQUIRE_THAT(script("slurm", {{"nnodes", bad}}), StartsWith("error: --nnodes=" + std::string{bad} + " is not "));
  }
  REQUIRE_THAT(script("lsf", {}), StartsWith("error: --print-batch-script=lsf: "));
}

}  // namespace torchup
