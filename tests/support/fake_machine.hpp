#pragma once

#include <map>
#include <string>

#include "launcher/core/plan/plan.hpp"

namespace torchup {

using Texts = std::map<std::string, std::string, std::less<>>;

/// A machine with four CPUs, no GPU, these variables, and every program.
inline Machine fake_machine(Texts variables = {}) {
  Machine machine;
  machine.variable = [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional{found->second};
  };
  machine.program = [](const std::string& name, Where) {
    return std::optional{ProgramFile{"/bin/" + name, ProgramFile::Kind::elf, true}};
  };
  machine.pythons = [] {
    Pythons pythons;
    pythons.on_path = ProgramFile{"/bin/python3", ProgramFile::Kind::elf, true};
    return pythons;
  };
  machine.cpus = [](bool) -> Result<Cpus> {
    Cpus cpus;
    cpus.allowed = {0, 1, 2, 3};
    return cpus;
  };
  machine.gpus = [] { return Gpus{{}, "no NVIDIA driver is loaded"}; };
  machine.random_run_id = [] { return std::string{"00000000-0000-4000-8000-0000000000ff"}; };
  machine.file = [](const std::string& path, std::size_t) -> Result<std::string> {
    return fail(errc::missing_value, path + ": No such file or directory");
  };
  machine.writable = [](const std::string&) { return false; };
  machine.host = "host";
  return machine;
}

}  // namespace torchup
