#include "launcher/core/plan/worker_command.hpp"

#include <fmt/format.h>

#include <algorithm>

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
  return substituted(word, {{"local_rank", fmt::format("{}", local_rank.value())}});
}

struct Python {
  std::string path;
  std::string reason;
};

/// The one that a variable names.
Result<Python> named_python(const ProgramRequest& request, const ProgramLookup& look_up) {
  const bool of_the_user = !request.python.empty();
  const std::string& name = of_the_user ? request.python : request.caller;
  const auto found = look_up(name, Where::path_list);
  if (found && found->executable) {
    return Python{found->path, of_the_user ? "PYTHON_EXEC" : "the Python that started torchup"};
  }
  return fail(errc::bad_value, fmt::format("{}: no such program ({}), and {} needs Python", name,
                                           of_the_user ? "PYTHON_EXEC" : caller_variable, request.words.front()));
}

Result<Python> python_of_our_choice(const ProgramRequest& request, const Pythons& pythons) {
  const std::string environment = pythons.folder.substr(0, pythons.folder.rfind('/'));
  if (pythons.beside && (pythons.has_torch || pythons.is_activated)) {
    return Python{pythons.beside->path, fmt::format("python3 of torchup's environment {}", environment)};
  }
  if (const auto& listed = pythons.is_virtual ? pythons.elsewhere : pythons.on_path) {
    return Python{listed->path, "python3 on PATH"};
  }
  if (pythons.beside) return Python{pythons.beside->path, fmt::format("python3 beside torchup in {}", pythons.folder)};
  return fail(errc::bad_value, fmt::format("{} needs Python: no python3 is on PATH, nor beside torchup in {} "
                                           "(PYTHON_EXEC names another one)",
                                           request.words.front(), pythons.folder));
}

/// Whether the kernel would look for `python3\r`: written where lines end in CR LF.
bool is_python_with_cr(const ProgramFile& file) {
  if (!file.first_line.ends_with('\r')) return false;
  const auto words = split(std::string_view{file.first_line}.substr(2, file.first_line.size() - 3), ' ');
  return std::ranges::any_of(
      words, [](std::string_view word) { return word.substr(word.rfind('/') + 1).starts_with("python"); });
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
  program.template_mark = file.template_mark;
  return program;
}

bool ends_in_py(const std::string& name) { return name.ends_with(".py"); }

class Chooser {
 public:
  Chooser(const ProgramRequest& request, const ProgramLookup& look_up, const PythonLookup& pythons)
      : request_{request}, look_up_{look_up}, pythons_{pythons} {}

  [[nodiscard]] Result<WorkerProgram> choose() const {
    const std::string& name = request_.words.front();
    if (request_.run_path) {
      const auto file = look_up_(name, Where::path);
      if (!usable(file)) return unusable(name, Where::path, file);
      return with_python(file->path, "--run-path");
    }
    if (request_.module) return with_python(name, "--module");
    if (request_.no_python) {
      const auto file = look_up_(name, Where::list_then_path);
      if (!usable(file)) return unusable(name, Where::list_then_path, file);
      return native(request_, *file, "--no-python");
    }
    return by_its_file(name);
  }

 private:
  [[nodiscard]] Result<WorkerProgram> by_its_file(const std::string& name) const {
    // The name itself may depend on the local rank; then it is that of local rank 0 which decides.
    const std::string first = for_worker(name, LocalRank{0});
    const auto file = look_up_(first, Where::path_then_list);
    if (!usable(file)) {
      // An interpreter of the user's own choice may know the name although we do not.
      if (!request_.python.empty()) return with_python(name, "not found here");
      return unusable(name, Where::path_then_list, file);
    }
    const std::string& script = file->path == first ? name : file->path;
    if (file->kind == ProgramFile::Kind::elf) return native(request_, *file, "ELF file");
    if (ends_in_py(name)) return with_python(script, "Python script");
    if (file->kind != ProgramFile::Kind::script || !file->executable) {
      return with_python(script, "neither ELF nor #! program");
    }
    if (is_python_with_cr(*file)) return with_python(script, "#! of a Python, with CR at its end");
    return native(request_, *file, "executable script with #!");
  }

  [[nodiscard]] Result<WorkerProgram> with_python(const std::string& script, std::string_view why) const {
    const bool is_named = !request_.python.empty() || !request_.caller.empty();
    const auto python = is_named ? named_python(request_, look_up_) : python_of_our_choice(request_, pythons_());
    if (!python) return python.error();
    WorkerProgram program;
    program.executable = python->path;
    program.command = {python->path, "-u"};
    program.python = true;
    program.module = request_.module && !request_.run_path;
    if (program.module) program.command.emplace_back("-m");
    program.command.push_back(script);
    program.arguments_at = program.command.size();
    program.command.insert(program.command.end(), request_.words.begin() + 1, request_.words.end());
    // As torchrun: a Python of the user's own choice is what the report names.
    program.title = request_.run_path          ? "run_script_path"
                    : !request_.python.empty() ? request_.python
                                               : request_.words.front();
    program.reason = fmt::format("{}, {}", why, python->reason);
    return program;
  }

  const ProgramRequest& request_;
  const ProgramLookup& look_up_;
  const PythonLookup& pythons_;
};

}  // namespace

Result<WorkerProgram> choose_program(const ProgramRequest& request, const ProgramLookup& look_up,
                                     const PythonLookup& pythons) {
  if (request.words.front().empty()) return fail(errc::bad_value, "the program's name is empty");
  if (request.pass_local_rank && request.no_python) {
    return fail(errc::bad_value, "When using the '--no-python' flag, you must also set the '--use-env' flag.");
  }
  if (request.no_python && request.module && !request.run_path) {
    return fail(errc::bad_value, "Don't use both the '--no-python' flag and the '--module' flag at the same time.");
  }
  auto program = Chooser{request, look_up, pythons}.choose();
  if (program) program->pass_local_rank = request.pass_local_rank;
  return program;
}

std::vector<std::string> worker_command(const WorkerProgram& program, LocalRank local_rank) {
  const std::string legacy = fmt::format("--local-rank={}", local_rank.value());
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
