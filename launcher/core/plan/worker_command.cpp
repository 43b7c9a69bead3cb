#include "launcher/core/plan/worker_command.hpp"

#include "launcher/core/text/text.hpp"

namespace torchup {
namespace {

Error missing(const std::string& name, Where where) {
  std::string text = "No such file or directory: '" + name + "'";
  if (name.find('/') == std::string::npos)
    text += where == Where::path ? " (in the working directory)" : " (in the working directory or on PATH)";
  return fail(errc::bad_value, std::move(text));
}

/// Nothing, or what stands there cannot be used.
Error unusable(const std::string& name, Where where, const std::optional<ProgramFile>& file) {
  return file ? fail(errc::bad_value, file->problem + ": '" + name + "'") : missing(name, where);
}

bool usable(const std::optional<ProgramFile>& file) { return file && file->problem.empty(); }

/// A word of the user's command line for one worker.
std::string for_worker(std::string_view word, LocalRank local_rank) {
  return substituted(word, {{"local_rank", std::to_string(local_rank.value())}});
}

Result<ProgramFile> find_python(const ProgramRequest& request, const ProgramLookup& look_up) {
  const std::string name = request.python.empty() ? "python3" : request.python;
  auto found = look_up(name, Where::path_list);
  if (found && found->executable) return *found;
  return fail(errc::bad_value, name + ": no such program" + (request.python.empty() ? " on PATH" : " (PYTHON_EXEC)") +
                                   ", and " + request.words.front() + " needs Python");
}

Result<WorkerProgram> native(const ProgramRequest& request, const ProgramFile& file, std::string reason) {
  if (!file.executable) {
    return fail(errc::bad_value, "Permission denied: '" + request.words.front() +
                                     "' (not executable: chmod +x it, or name an interpreter in front of it)");
  }
  if (file.kind == ProgramFile::Kind::other) {
    return fail(errc::bad_value,
                "Exec format error: '" + request.words.front() + "' (neither an ELF file nor a script with #!)");
  }
  WorkerProgram program;
  program.executable = file.path;
  program.command = request.words;
  program.arguments_at = 1;
  program.title = request.words.front();
  program.reason = std::move(reason);
  return program;
}

Result<WorkerProgram> with_python(const ProgramRequest& request, const ProgramLookup& look_up,
                                  const std::string& script, std::string why) {
  auto python = find_python(request, look_up);
  if (!python) return python.error();
  WorkerProgram program;
  program.executable = python->path;
  program.command = {python->path, "-u"};
  if (request.module && !request.run_path) program.command.emplace_back("-m");
  program.command.push_back(script);
  program.arguments_at = program.command.size();
  program.command.insert(program.command.end(), request.words.begin() + 1, request.words.end());
  // As torchrun: a Python of the user's own choice is what the report names.
  program.title = request.run_path          ? "run_script_path"
                  : !request.python.empty() ? request.python
                                            : request.words.front();
  program.reason = std::move(why) + (request.python.empty() ? ", python3 on PATH" : ", PYTHON_EXEC");
  return program;
}

Result<WorkerProgram> finished(const ProgramRequest& request, Result<WorkerProgram> program) {
  if (program) program->pass_local_rank = request.pass_local_rank;
  return program;
}

bool ends_in_py(const std::string& name) { return name.ends_with(".py"); }

}  // namespace

Result<WorkerProgram> choose_program(const ProgramRequest& request, const ProgramLookup& look_up) {
  const std::string& name = request.words.front();
  if (name.empty()) return fail(errc::bad_value, "the program's name is empty");
  if (request.pass_local_rank && request.no_python) {
    return fail(errc::bad_value, "When using the '--no-python' flag, you must also set the '--use-env' flag.");
  }
  if (request.no_python && request.module && !request.run_path) {
    return fail(errc::bad_value, "Don't use both the '--no-python' flag and the '--module' flag at the same time.");
  }
  Result<WorkerProgram> program = fail(errc::bad_value, "");
  if (request.run_path) {
    const auto file = look_up(name, Where::path);
    if (!usable(file)) return unusable(name, Where::path, file);
    program = with_python(request, look_up, file->path, "--run-path");
  } else if (request.module) {
    program = with_python(request, look_up, name, "--module");
  } else if (request.no_python) {
    const auto file = look_up(name, Where::list_then_path);
    if (!usable(file)) return unusable(name, Where::list_then_path, file);
    program = native(request, *file, "--no-python");
  } else {
    // The name itself may depend on the local rank; then it is that of local rank 0 which decides.
    const std::string first = for_worker(name, LocalRank{0});
    const auto file = look_up(first, Where::path_then_list);
    // An interpreter of the user's own choice may know the name although we do not.
    if (!usable(file) && !request.python.empty())
      return finished(request, with_python(request, look_up, name, "not found here"));
    if (!usable(file)) return unusable(name, Where::path_then_list, file);
    if (file->kind == ProgramFile::Kind::elf) {
      program = native(request, *file, "ELF file");
    } else if (file->kind == ProgramFile::Kind::script && file->executable && !ends_in_py(name)) {
      program = native(request, *file, "executable script with #!");
    } else {
      program = with_python(request, look_up, file->path == first ? name : file->path,
                            ends_in_py(name) ? "Python script" : "neither ELF nor #! program");
    }
  }
  return finished(request, std::move(program));
}

std::vector<std::string> worker_command(const WorkerProgram& program, LocalRank local_rank) {
  const std::string legacy = "--local-rank=" + std::to_string(local_rank.value());
  std::vector<std::string> command{program.command.front()};
  for (std::size_t i = 1; i < program.command.size(); ++i) {
    if (i == program.arguments_at && program.pass_local_rank) command.push_back(legacy);
    command.push_back(for_worker(program.command[i], local_rank));
  }
  if (program.command.size() == program.arguments_at && program.pass_local_rank) {
    command.push_back(legacy);
  }
  return command;
}

}  // namespace torchup
