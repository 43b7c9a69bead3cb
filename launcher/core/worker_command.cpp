#include "launcher/core/worker_command.hpp"

#include <cctype>

namespace torchup {
namespace {

Error missing(const std::string& name, Where where) {
  const bool bare = name.find('/') == std::string::npos;
  std::string text = name + ": no such file";
  if (bare && where == Where::path) text += " in the working directory";
  if (bare && where != Where::path) text += " in the working directory, and no such program on PATH";
  return fail(errc::bad_value, text);
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
    return fail(errc::bad_value, file.path + ": not executable; chmod +x it, or name an interpreter in front of it");
  }
  WorkerProgram program;
  program.executable = file.path;
  program.command = request.words;
  program.arguments_at = 1;
  program.title = request.words.front();
  program.reason = std::move(reason);
  return program;
}

Result<WorkerProgram> with_python(const ProgramRequest& request, const ProgramLookup& look_up, const std::string& script,
                                  std::string why) {
  auto python = find_python(request, look_up);
  if (!python) return python.error();
  WorkerProgram program;
  program.executable = python->path;
  program.command = {python->path, "-u"};
  if (request.module && !request.run_path) program.command.emplace_back("-m");
  program.command.push_back(script);
  program.arguments_at = program.command.size();
  program.command.insert(program.command.end(), request.words.begin() + 1, request.words.end());
  program.title = request.run_path ? "run_script_path" : request.words.front();
  program.reason = std::move(why) + (request.python.empty() ? ", python3 on PATH" : ", PYTHON_EXEC");
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
    if (!file) return missing(name, Where::path);
    program = with_python(request, look_up, file->path, "--run-path");
  } else if (request.module) {
    program = with_python(request, look_up, name, "--module");
  } else if (request.no_python) {
    const auto file = look_up(name, Where::list_then_path);
    if (!file) return missing(name, Where::list_then_path);
    program = native(request, *file, "--no-python");
  } else {
    const auto file = look_up(name, Where::path_then_list);
    if (!file) return missing(name, Where::path_then_list);
    if (file->kind == ProgramFile::Kind::elf) {
      program = native(request, *file, "ELF file");
    } else if (file->kind == ProgramFile::Kind::script && file->executable && !ends_in_py(name)) {
      program = native(request, *file, "executable script with #!");
    } else {
      program = with_python(request, look_up, file->path, ends_in_py(name) ? "Python script" : "neither ELF nor #! program");
    }
  }
  if (program) program->pass_local_rank = request.pass_local_rank;
  return program;
}

std::vector<std::string> worker_command(const WorkerProgram& program, LocalRank local_rank) {
  const std::string number = std::to_string(local_rank.value());
  const auto substituted = [&](const std::string& word) {
    std::string text;
    for (std::size_t at = 0; at < word.size();) {
      const std::string_view rest = std::string_view{word}.substr(at);
      constexpr std::string_view plain = "$local_rank";
      constexpr std::string_view braced = "${local_rank}";
      const auto continues = [&](std::size_t end) {
        return end < rest.size() && (std::isalnum(static_cast<unsigned char>(rest[end])) != 0 || rest[end] == '_');
      };
      if (rest.starts_with("$$")) {
        text += '$';
        at += 2;
      } else if (rest.starts_with(braced)) {
        text += number;
        at += braced.size();
      } else if (rest.starts_with(plain) && !continues(plain.size())) {
        text += number;
        at += plain.size();
      } else {
        text += word[at++];
      }
    }
    return text;
  };
  std::vector<std::string> command{program.command.front()};
  for (std::size_t i = 1; i < program.command.size(); ++i) {
    if (i == program.arguments_at && program.pass_local_rank) command.push_back("--local-rank=" + number);
    command.push_back(substituted(program.command[i]));
  }
  if (program.command.size() == program.arguments_at && program.pass_local_rank) {
    command.push_back("--local-rank=" + number);
  }
  return command;
}

}  // namespace torchup
