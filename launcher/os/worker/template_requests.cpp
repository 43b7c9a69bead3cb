#include "launcher/os/worker/template_requests.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "launcher/core/plan/worker_command.hpp"
#include "rendezvous/base/template_mark.hpp"

namespace torchup {
namespace {

/// Where the template finds its own text.
constexpr std::string_view archive_path = "/proc/self/fd/4";
/// What is run by a Python that does not find it. Its end must not pass for that of a program.
constexpr const char* guard =
    "import os; os.write(3, b'failed this Python imports nothing of ours at its start (-E, -I or -S in a wrapper?)'); "
    "os._exit(1)";

std::string working_directory() {
  char* const path = ::get_current_dir_name();
  std::string text = path ? path : "";
  std::free(path);
  return text;
}

constexpr std::string_view hook_variable = "TORCHUP_WORKER_HOOK=";

/// The workers' common environment, with our text in front of where Python looks for modules, with what tells it where
/// the hook is, and without the variable by which that text knows how far it has come: a user's own are for the
/// workers.
std::vector<std::string> template_environment(const std::vector<std::string>& common, const std::string& hook) {
  constexpr std::string_view name = "PYTHONPATH=";
  std::vector<std::string> list;
  std::string path = fmt::format("{}{}", name, archive_path);
  bool first = true;
  for (const std::string& entry : common) {
    if (entry.starts_with("TORCHUP_PRELOAD=") || entry.starts_with(hook_variable)) continue;
    if (!entry.starts_with(name)) {
      list.push_back(entry);
    } else if (std::exchange(first, false) && entry.size() > name.size()) {
      path += ":" + entry.substr(name.size());
    }
  }
  list.push_back(std::move(path));
  if (!hook.empty()) list.push_back(fmt::format("{}{}", hook_variable, hook));
  return list;
}

/// Its arguments are those of every worker: its main may look at them on its way to worker_main.
ChildRequest native_request(const WorkerProgram& program, const std::vector<std::string>& environment,
                            const WorkerChannelAddress& control) {
  ChildRequest request;
  request.executable = program.executable;
  request.arguments = worker_command(program, LocalRank{0});
  request.environment = environment;
  request.own_address = fmt::format("{}={}", template_variable, to_text(control));
  return request;
}

}  // namespace

ChildRequest template_request(const WorkerProgram& program, const std::vector<std::string>& modules,
                              const std::vector<std::string>& environment, const std::string& hook,
                              const WorkerChannelAddress& control) {
  if (!program.python) return native_request(program, environment, control);
  // In the template Python is on its way to the program, as in a worker; its arguments come with the request.
  std::vector<std::string> command = worker_command(program, LocalRank{0});
  command.resize(program.module ? 4 : 3);
  ChildRequest request;
  request.executable = program.executable;
  request.arguments = {command.front(), "-u", "-c", guard, fmt::format("{}", fmt::join(modules, ","))};
  request.arguments.insert(request.arguments.end(), command.begin(), command.end());
  request.environment = template_environment(environment, hook);
  return request;
}

ForkRequest fork_request(const ChildRequest& child, const WorkerChannelAddress& channel, const WorkerProgram& program) {
  ForkRequest request;
  request.program = !program.python  ? ForkRequest::Program::native
                    : program.module ? ForkRequest::Program::module
                                     : ForkRequest::Program::script;
  // A native template is in ours, or where its main has gone since, as a worker's main does.
  if (program.python) request.directory = working_directory();
  request.cpus = child.cpus;
  request.arguments = child.arguments;
  if (child.page >= 0) {
    WorkerPageAddress address = child.page_address;
    address.pid = channel.pid;
    request.environment.push_back(fmt::format("{}={}", worker_page_variable, to_text(address)));
    request.environment.push_back(fmt::format("{}={}", worker_channel_variable, to_text(channel)));
  }
  request.environment.insert(request.environment.end(), child.environment.begin(), child.environment.end());
  if (child.common_environment) {
    request.environment.insert(request.environment.end(), child.common_environment->begin(),
                               child.common_environment->end());
  }
  return request;
}

}  // namespace torchup
