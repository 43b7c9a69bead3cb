#pragma once

#include <cstdint>
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
  bool executable = false;      ///< by us
  std::string problem = {};     ///< why it cannot be used at all: "Permission denied", …; else empty
  std::string first_line = {};  ///< of a script: its `#!` line as far as the kernel reads it, a CR at its end included
  std::optional<std::uint32_t> template_mark = {};  ///< of an ELF file: its TemplateMark
};

/// Where to look for a program: only as a path (a name without slash means the working directory), only on PATH, or
/// both in this order. The shell's job; nothing when there is none.
enum class Where { path, path_list, path_then_list, list_then_path };
using ProgramLookup = std::function<std::optional<ProgramFile>(const std::string& name, Where where)>;

/// Where a Python may be, for a program that needs one. The shell looks; none of these is started to find out.
struct Pythons {
  std::string folder;                    ///< of torchup's own file
  std::optional<ProgramFile> beside;     ///< python3 in that folder
  std::optional<ProgramFile> on_path;    ///< the first python3 on PATH
  std::optional<ProgramFile> elsewhere;  ///< the first one on PATH that is not in that folder
  bool is_virtual = false;               ///< the folder belongs to a virtual environment
  bool has_torch = false;                ///< and PyTorch is in it, or it sees the packages of its base
  bool is_activated = false;             ///< VIRTUAL_ENV or CONDA_PREFIX names it
};
using PythonLookup = std::function<Pythons()>;

/// Name of the variable by which a Python that starts torchup names itself; it never reaches a worker, which under
/// torchrun would not see that Python in its environment either.
inline constexpr std::string_view caller_variable = "TORCHUP_CALLER";

/// How the program was named on the command line.
struct ProgramRequest {
  std::vector<std::string> words;  ///< the program and its arguments; at least one
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string python;  ///< PYTHON_EXEC; empty: found by the rules of choose_program
  std::string caller;  ///< the Python that started torchup, of caller_variable; empty: none did
  bool pass_local_rank = false;
};

/// Decides how the workers are started.
///
/// By contract a program is a Python script, run as `python3 -u SCRIPT`, or with `no_python` a program of its own.
/// Ours: an ELF file, and a `#!` script that is executable and whose name does not end in .py, are started themselves;
/// but not one that names a Python and was written with CR at its ends of lines: no kernel finds `python3\r`.
///
/// Which Python: torchrun runs workers with the one that it is installed in, and so do we, without being Python. The
/// first of these: PYTHON_EXEC; the one that started us; the one beside us, if its environment has PyTorch or is the
/// activated one; python3 on PATH, but not that of an environment that is only a tool's (`uvx torchup`: ours, neither
/// activated nor with PyTorch); the one beside us.
///
/// Errors: errc::bad_value, one line for people: no such program, not executable, no Python, contradicting flags.
[[nodiscard]] Result<WorkerProgram> choose_program(const ProgramRequest& request, const ProgramLookup& look_up,
                                                   const PythonLookup& pythons);

/// The argument list of one worker: `$local_rank`, `${local_rank}` and `$$` replaced in every word but argv[0], other
/// `$` left as they are.
[[nodiscard]] std::vector<std::string> worker_command(const WorkerProgram& program, LocalRank local_rank);

}  // namespace torchup
