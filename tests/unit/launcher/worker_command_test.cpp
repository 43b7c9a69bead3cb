#include "launcher/core/plan/worker_command.hpp"

#include <catch2/catch.hpp>
#include <map>

namespace torchup {
namespace {

using Kind = ProgramFile::Kind;
using Words = std::vector<std::string>;

/// A file system with a few names in it; PATH holds those that begin with /bin/.
std::optional<ProgramFile> look_up(const std::string& name, Where where) {
  static const std::map<std::string, ProgramFile> files{
      {"train.py", {"train.py", Kind::other, false}},
      {"tool.py", {"tool.py", Kind::script, true}},
      {"train", {"train", Kind::elf, true}},
      {"run.sh", {"run.sh", Kind::script, true}},
      {"dos", {"dos", Kind::script, true, "", "#!/usr/bin/env python3\r"}},
      {"dos.sh", {"dos.sh", Kind::script, true, "", "#!/bin/sh\r"}},
      {"unix", {"unix", Kind::script, true, "", "#!/bin/python3"}},
      {"noexec.sh", {"noexec.sh", Kind::script, false}},
      {"data", {"data", Kind::elf, false}},
      {"text", {"text", Kind::other, true}},
      {"s0.py", {"s0.py", Kind::other, false}},
      {"/bin/python3", {"/bin/python3", Kind::elf, true}},
      {"/bin/true", {"/bin/true", Kind::elf, true}}};
  const auto here = [&](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional{found->second};
  };
  const auto listed = [&] { return name.find('/') == std::string::npos ? here("/bin/" + name) : here(name); };
  switch (where) {
    case Where::path:
      return here(name);
    case Where::path_list:
      return listed();
    case Where::path_then_list:
      return here(name) ? here(name) : listed();
    case Where::list_then_path:
      return listed() ? listed() : here(name);
  }
  return std::nullopt;
}

ProgramFile elf(const std::string& path) { return {path, Kind::elf, true}; }

/// One Python, on PATH.
Pythons usual() {
  Pythons pythons;
  pythons.folder = "/opt/torchup/bin";
  pythons.on_path = elf("/bin/python3");
  return pythons;
}

/// torchup lies in the virtual environment /v, whose folder comes first on PATH.
Pythons in_environment(bool has_torch, bool is_activated) {
  Pythons pythons;
  pythons.folder = "/v/bin";
  pythons.beside = pythons.on_path = elf("/v/bin/python3");
  pythons.elsewhere = elf("/bin/python3");
  pythons.is_virtual = true;
  pythons.has_torch = has_torch;
  pythons.is_activated = is_activated;
  return pythons;
}

WorkerProgram chosen(ProgramRequest request, const PythonLookup& pythons = usual) {
  auto program = choose_program(request, look_up, pythons);
  REQUIRE(program.has_value());
  return *program;
}
ProgramRequest named(Words words) {
  ProgramRequest request;
  request.words = std::move(words);
  return request;
}
std::string refusal(const ProgramRequest& request, const PythonLookup& pythons = usual) {
  auto program = choose_program(request, look_up, pythons);
  return program ? "none" : program.error().message();
}

}  // namespace

TEST_CASE("Python scripts run with -u, whatever their mode bits", "[unit][command]") {
  REQUIRE(chosen(named({"train.py", "--x"})).command == Words{"/bin/python3", "-u", "train.py", "--x"});
  REQUIRE(chosen(named({"tool.py"})).command == Words{"/bin/python3", "-u", "tool.py"});
  REQUIRE(chosen(named({"noexec.sh"})).command == Words{"/bin/python3", "-u", "noexec.sh"});
  REQUIRE(chosen(named({"text"})).command == Words{"/bin/python3", "-u", "text"});
  REQUIRE(chosen(named({"train.py"})).title == "train.py");
}

TEST_CASE("native programs need no flag", "[unit][command]") {
  const auto program = chosen(named({"train", "a"}));
  REQUIRE(program.executable == "train");
  REQUIRE(program.command == Words{"train", "a"});
  REQUIRE(chosen(named({"run.sh"})).executable == "run.sh");
  REQUIRE(chosen(named({"true"})).executable == "/bin/true");
  REQUIRE(chosen(named({"true"})).command == Words{"true"});
}

TEST_CASE("the flags choose", "[unit][command]") {
  ProgramRequest module = named({"pkg.mod", "a"});
  module.module = true;
  REQUIRE(chosen(module).command == Words{"/bin/python3", "-u", "-m", "pkg.mod", "a"});
  module.no_python = true;
  REQUIRE(refusal(module) == "Don't use both the '--no-python' flag and the '--module' flag at the same time.");
  ProgramRequest plain = named({"train.py"});
  plain.run_path = true;
  REQUIRE(chosen(plain).title == "run_script_path");
  ProgramRequest own = named({"unknown"});
  own.python = "/bin/python3";
  REQUIRE(chosen(own).command == Words{"/bin/python3", "-u", "unknown"});
  REQUIRE(chosen(own).title == "/bin/python3");
}

TEST_CASE("a program that is none is named", "[unit][command]") {
  REQUIRE(refusal(named({"nosuch"})) == "No such file or directory: 'nosuch' (in the working directory or on PATH)");
  REQUIRE(refusal(named({"./nosuch"})) == "No such file or directory: './nosuch'");
  REQUIRE(refusal(named({""})) == "the program's name is empty");
  REQUIRE(refusal(named({"data"})).starts_with("Permission denied: 'data'"));
  ProgramRequest text = named({"text"});
  text.no_python = true;
  REQUIRE(refusal(text).starts_with("Exec format error: 'text'"));
}

TEST_CASE("local ranks are put into the arguments", "[unit][command]") {
  const auto program =
      chosen(named({"train", "r$local_rank", "${local_rank}x", "a$$b", "$local_ranks", "$name", "5$", "$$local_rank"}));
  REQUIRE(worker_command(program, LocalRank{3}) ==
          Words{"train", "r3", "3x", "a$b", "$local_ranks", "$name", "5$", "$local_rank"});
  const auto script = chosen(named({"s${local_rank}.py"}));
  REQUIRE(worker_command(script, LocalRank{1}) == Words{"/bin/python3", "-u", "s1.py"});
}

TEST_CASE("the legacy launcher puts the local rank before the program's arguments", "[unit][command]") {
  ProgramRequest request = named({"train.py", "a"});
  request.pass_local_rank = true;
  REQUIRE(worker_command(chosen(request), LocalRank{1}) ==
          Words{"/bin/python3", "-u", "train.py", "--local-rank=1", "a"});
  request.words = {"train.py"};
  REQUIRE(worker_command(chosen(request), LocalRank{0}) == Words{"/bin/python3", "-u", "train.py", "--local-rank=0"});
  request.no_python = true;
  REQUIRE(refusal(request) == "When using the '--no-python' flag, you must also set the '--use-env' flag.");
}

TEST_CASE("a Python script whose lines end in CR LF is given to Python", "[unit][command]") {
  const auto program = chosen(named({"dos", "a"}));
  CHECK(program.command == Words{"/bin/python3", "-u", "dos", "a"});
  CHECK(program.reason == "#! of a Python, with CR at its end, python3 on PATH");
  CHECK(chosen(named({"dos.sh"})).executable == "dos.sh");
  CHECK(chosen(named({"unix"})).executable == "unix");
}

TEST_CASE("which Python runs a script", "[unit][command]") {
  const auto reason = [](const Pythons& pythons) {
    return chosen(named({"train.py"}), [&] { return pythons; }).reason;
  };
  const std::string own = "Python script, python3 of torchup's environment /v";
  const std::string listed = "Python script, python3 on PATH";
  CHECK(reason(usual()) == listed);
  for (const bool on_path : {true, false}) {
    Pythons pythons = in_environment(true, false);
    if (!on_path) pythons.on_path = pythons.elsewhere;  // env -i /v/bin/torchup
    CHECK(reason(pythons) == own);
    pythons.has_torch = false;
    pythons.is_activated = true;
    CHECK(reason(pythons) == own);
  }

  SECTION("an environment that is only a tool's comes last") {
    Pythons pythons = in_environment(false, false);
    const auto program = chosen(named({"train.py"}), [&] { return pythons; });
    CHECK(program.command.front() == "/bin/python3");
    CHECK(program.reason == listed);
    pythons.elsewhere.reset();
    CHECK(reason(pythons) == "Python script, python3 beside torchup in /v/bin");
  }
  SECTION("one beside us that is no environment is not passed over") {
    Pythons pythons = in_environment(false, false);
    pythons.is_virtual = false;
    CHECK(reason(pythons) == listed);
    pythons.on_path.reset();
    CHECK(reason(pythons) == "Python script, python3 beside torchup in /v/bin");
  }
  SECTION("the user's word is before all") {
    ProgramRequest request = named({"train.py"});
    request.python = "/bin/true";
    const auto program = chosen(request, [] { return in_environment(true, true); });
    CHECK(program.command.front() == "/bin/true");
    CHECK(program.reason == "Python script, PYTHON_EXEC");
    request.python = "/bin/nowhere";
    CHECK(refusal(request) == "/bin/nowhere: no such program (PYTHON_EXEC), and train.py needs Python");
  }
  SECTION("the Python that started torchup is before all others, and is no title of the report") {
    ProgramRequest request = named({"train.py"});
    request.caller = "/bin/true";
    const auto program = chosen(request, [] { return in_environment(true, true); });
    CHECK(program.command.front() == "/bin/true");
    CHECK(program.title == "train.py");
    CHECK(program.reason == "Python script, the Python that started torchup");
    request.caller = "/bin/nowhere";
    CHECK(refusal(request) == "/bin/nowhere: no such program (TORCHUP_CALLER), and train.py needs Python");
    request.python = "/bin/python3";
    CHECK(chosen(request).reason == "Python script, PYTHON_EXEC");
  }
  SECTION("none at all") {
    const auto none = [] {
      Pythons pythons;
      pythons.folder = "/opt/torchup/bin";
      return pythons;
    };
    CHECK(refusal(named({"train.py"}), none) ==
          "train.py needs Python: no python3 is on PATH, nor beside torchup in /opt/torchup/bin (PYTHON_EXEC names "
          "another one)");
    CHECK(chosen(named({"train"}), none).executable == "train");  // needs none
  }
}

}  // namespace torchup
