#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// What stands at a path, or behind a name on PATH.
struct ProgramFile {
  enum class Kind {
    elf,     ///< a native executable
    script,  ///< begins with `#!`
    other    ///< a file with anything else in it, or a folder
  };
  std::string path;  ///< as it can be opened
  Kind kind = Kind::other;
  bool executable = false;   ///< by us
  std::string problem = {};  ///< why it cannot be used at all: "Permission denied", …; else empty
};

/// Where to look for a program: only as a path (a name without slash means the working directory), only on PATH, or
/// both in this order. The shell's job; nothing when there is none.
enum class Where { path, path_list, path_then_list, list_then_path };
using ProgramLookup = std::function<std::optional<ProgramFile>(const std::string& name, Where where)>;

/// How the program was named on the command line.
struct ProgramRequest {
  std::vector<std::string> words;  ///< the program and its arguments; at least one
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string python;  ///< PYTHON_EXEC; empty: python3 on PATH
  bool pass_local_rank = false;
};

/// Decides how the workers are started.
///
/// By contract a program is a Python script, run as `python3 -u SCRIPT`, or with `no_python` a program of its own.
/// Ours: an ELF file, and a `#!` script that is executable and whose name does not end in .py, are started themselves.
///
/// Errors: errc::bad_value, one line for people: no such program, not executable, no Python, contradicting flags.
[[nodiscard]] Result<WorkerProgram> choose_program(const ProgramRequest& request, const ProgramLookup& look_up);

/// The argument list of one worker: `$local_rank`, `${local_rank}` and `$$` replaced in every word but argv[0], other
/// `$` left as they are.
[[nodiscard]] std::vector<std::string> worker_command(const WorkerProgram& program, LocalRank local_rank);

}  // namespace torchup
