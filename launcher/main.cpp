#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <optional>
#include <system_error>
#include <variant>

#include "launcher/cli.hpp"
#include "launcher/core/fan_out/remote_command.hpp"
#include "launcher/core/options/completion.hpp"
#include "launcher/core/plan/descriptor_need.hpp"
#include "launcher/core/plan/plan.hpp"
#include "launcher/core/plan/plan_fan_out.hpp"
#include "launcher/core/plan/plan_json.hpp"
#include "launcher/core/plan/worker_environment.hpp"
#include "launcher/core/record/incident.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/record/run_record.hpp"
#include "launcher/core/scheduler/batch_script.hpp"
#include "launcher/core/scheduler/seat_words.hpp"
#include "launcher/core/scheduler/visible_count.hpp"
#include "launcher/os/agent/agent_runner.hpp"
#include "launcher/os/agent/slurm_commands.hpp"
#include "launcher/os/diagnosis/health_check.hpp"
#include "launcher/os/diagnosis/native_stack.hpp"
#include "launcher/os/fan_out/front.hpp"
#include "launcher/os/fan_out/link_agent.hpp"
#include "launcher/os/io/own_log.hpp"
#include "launcher/os/io/program_file.hpp"
#include "launcher/os/io/regular_file.hpp"
#include "launcher/os/io/secrets.hpp"
#include "launcher/os/machine/cpus.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/gpus.hpp"
#include "launcher/os/machine/own_environment.hpp"
#include "launcher/os/machine/process_stat.hpp"
#include "launcher/os/machine/random_run_id.hpp"
#include "launcher/os/rehearsal/node_fault.hpp"
#include "launcher/os/rehearsal/node_starter.hpp"
#include "launcher/os/rehearsal/starter_link.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "launcher/os/worker/seats.hpp"
#include "launcher/plan_text.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/core/ops/version_answer.hpp"
#include "rendezvous/net/io/node_identity.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

/// Of a longer file the beginning, with more than `bytes_max` bytes.
Result<std::string> read_user_file(const std::string& path, std::size_t bytes_max) {
  std::ifstream file{path};
  std::string content;
  std::array<char, 4096> part{};
  do {
    file.read(part.data(), part.size());
    content.append(part.data(), static_cast<std::size_t>(file.gcount()));
  } while (file && content.size() <= bytes_max);
  if (!file && !file.eof()) return system_error(path);
  return content;
}

/// A pipe or device may never end.
Result<std::string> read_plain_file(const std::string& path, std::size_t bytes_max) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return system_error(path);
  if (!S_ISREG(status.st_mode)) return fail(errc::bad_value, path + " is no plain file");
  return read_user_file(path, bytes_max);
}

Machine this_machine() {
  Machine machine;
  machine.variable = [](std::string_view name) -> std::optional<std::string> {
    const char* const value = std::getenv(std::string{name}.c_str());
    return value ? std::optional<std::string>{value} : std::nullopt;
  };
  machine.program = find_program;
  machine.pythons = find_pythons;
  machine.cpus = [](bool with_topology) {
    auto cpus = read_cpus();
    if (cpus && with_topology) read_topology(*cpus);
    return cpus;
  };
  machine.gpus = [] { return read_gpus(); };
  machine.random_run_id = random_run_id;
  machine.script = [](const std::string& path) {
    return read_regular_file(path, script_bytes_max);  // one that is too long is refused with its place
  };
  machine.file = read_plain_file;
  machine.unix_seconds = [] { return static_cast<std::int64_t>(::time(nullptr)); };
  machine.time_left = ask_time_left;
  machine.writable = [](const std::string& path) { return ::access(path.c_str(), W_OK) == 0; };
  machine.host = own_host_name();
  return machine;
}

constexpr int lost_status = 1;

/// An answer that nobody can read in full is none.
int give(const EarlyEnd& answer) {
  std::fputs(answer.err.c_str(), stderr);
  if (std::fputs(answer.out.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return answer.status;
  std::perror("torchup: stdout");
  return lost_status;
}

int refuse(const Error& error, const LogWords& log = {}) {
  Log{own_log(log)}.tell({LogLevel::error, error.message()});
  return error.code == make_error_code(errc::refused) ? exit_code::unfit : exit_code::refused;
}

Result<> read_config_file(OptionValues& options) {
  const std::string path = options.text("config");
  const auto content = read_user_file(path, config_bytes_max);
  if (!content) return fail(errc::bad_value, "--config: " + content.error().message());
  return options.read_config(*content, path);
}

/// --version and --print-completion, which need neither program nor machine.
std::optional<EarlyEnd> answer_without_program(const OptionValues& options) {
  if (options.flag("version")) {
    const auto schemas = {SchemaNumber{"events_schema", event_schema}, SchemaNumber{"result_schema", result_schema},
                          SchemaNumber{"incident_schema", incident_schema},
                          SchemaNumber{"state_schema", static_cast<int>(job_format_version)}};
    return EarlyEnd{0, version_answer("torchup", options.flag("json"), schemas), ""};
  }
  if (!options.has("print-completion")) return std::nullopt;
  return EarlyEnd{0, completion_script(options.text("print-completion")).value(), ""};
}

/// --print-env: what the worker with the rank of --rank would get, were all nodes like this one.
EarlyEnd environment_answer(const LaunchConfig& plan, const OptionValues& options) {
  const auto rank = static_cast<int>(options.integer("rank", 0).value());
  const int workers = plan.local_world_size;
  const int nodes = plan.terms.max_nodes;
  if (rank < 0 || rank >= workers * nodes) {
    return usage_error(fmt::format("argument --rank: {} is not from 0 to {}", rank, workers * nodes - 1));
  }
  Placement placement;
  placement.group_rank = GroupRank{rank / workers};
  placement.group_world_size = nodes;
  placement.first_rank = Rank{rank / workers * workers};
  placement.first_role_rank = placement.first_rank;
  placement.world_size = workers * nodes;
  placement.role_world_size = workers * nodes;
  placement.master_addr = plan.rendezvous.endpoint ? plan.rendezvous.endpoint->host : "127.0.0.1";
  const Variables variables = WorkerEnvironment{plan, {}}.changes(placement, LocalRank{rank % workers}, "");
  return {0, options.text("format", "sh") == "json" ? variables_as_json(variables) : variables_as_shell(variables), ""};
}

/// A file that is written at the end, or beside the job, is refused at the start when it cannot be: then it is no use
/// to run.
Result<> check_output_file(const std::string& option, const std::string& path) {
  if (path.empty() || ::access(path.c_str(), W_OK) == 0) return {};
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  if (errno == ENOENT && ::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return system_error(option + ": " + path + " cannot be written");
}

/// A log folder that is a file is refused before anything starts. (The null device means no files.)
Result<> check_log_folder(const std::string& path) {
  struct stat status {};
  if (path.empty() || ::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return fail(errc::bad_value, "log_dir: " + path + " is a file");
}

/// Of this process: become_guarded has raised it as far as it goes.
std::uint64_t descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

/// What went wrong, from the outside in: a coroutine's name, then what it met.
std::string whole_text(const std::exception& error) {
  std::string text = error.what();
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& inner) {
    text += ": " + whole_text(inner);
  } catch (...) {
  }
  return text;
}

/// Whether the system has no thread or process left for us, which is no fault of ours.
bool is_shortage(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  const auto* const boosts = dynamic_cast<const boost::system::system_error*>(&error);
  if ((system && system->code().value() == EAGAIN) || (boosts && boosts->code().value() == EAGAIN)) return true;
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& inner) {
    return is_shortage(inner);
  } catch (...) {
  }
  return false;
}

int report(const std::exception& error) {
  if (is_shortage(error)) {
    std::fprintf(stderr, "torchup: the system gives no more threads: %s (raise ulimit -u, or pids.max of the cgroup)\n",
                 whole_text(error).c_str());
    return exit_code::unfit;
  }
  std::fprintf(stderr, "torchup: internal fault: %s\n", whole_text(error).c_str());
  return exit_code::internal;
}

/// Everything that can be refused before anything starts.
Result<> check_machine(const LaunchConfig& plan) {
  if (auto checked = check_log_folder(plan.output.log_dir); !checked) return checked;
  if (auto checked = check_output_file("--result-file", plan.output.result_file); !checked) return checked;
  if (auto checked = check_output_file("--termination-log", plan.output.termination_log); !checked) return checked;
  if (auto checked = check_output_file("--events", plan.output.events_file); !checked) return checked;
  const std::string lacking = descriptors_lacking(plan, descriptor_limit());
  return lacking.empty() ? Result<>{} : fail(errc::refused, lacking);
}

/// The options of all sources, whose types are right.
std::variant<CommandLine, int> read_options(std::span<const std::string> words, const Machine& machine) {
  auto parsed = parse_command_line(words);
  if (const EarlyEnd* answer = std::get_if<EarlyEnd>(&parsed)) return give(*answer);
  auto& line = std::get<CommandLine>(parsed);
  if (const auto answer = answer_without_program(line.options)) return give(*answer);
  if (auto read = line.options.read_environment(machine.variable); !read) return refuse(read.error());
  if (line.options.has("config")) {
    if (auto read = read_config_file(line.options); !read) return refuse(read.error());
  }
  if (line.as_torchrun) line.options.derive("scheduler", "none", "the name torchrun");
  if (auto checked = check_types(line.options); !checked) return give(usage_error(checked.error().message()));
  if (line.program.empty() && !line.options.flag("preflight-only")) {
    return give(usage_error("the following arguments are required: training_script, training_script_args"));
  }
  return std::move(line);
}

/// The name under which the tasks of this node find each other. What starts them all without a name is their parent.
std::string name_of_seats(const SchedulerPart& scheduler, const Guarded& guarded) {
  const std::string step = scheduler.step.empty() ? fmt::format("{}", parent_of(guarded.outer)) : scheduler.step;
  return seat_name(fmt::format("{}.{}", step, scheduler.node.value_or(0)), ::geteuid());  // nodes may share a machine
}

/// Of several tasks that the scheduler starts on this node the first is the agent, with workers in the places of all.
/// Returns the code with which this process is to end at once, where it is another, or the GPUs are not for all.
std::optional<int> take_seats(LaunchConfig& plan, const Guarded& guarded, const LogWords& log, Seats& seats) {
  const SchedulerPart& scheduler = plan.scheduler;
  if (scheduler.tasks == 1) return std::nullopt;
  const auto cpus = read_cpus();
  if (!cpus) return refuse(cpus.error(), log);
  const SeatCard own{scheduler.task, cpus->allowed, this_machine().variable(cuda_devices)};
  const std::string name = name_of_seats(scheduler, guarded);
  if (scheduler.task > 0) {
    const SeatEnd end = sit(name, own);
    if (!end.why.empty() && scheduler.task == 1) Log{own_log(log)}.tell({LogLevel::error, end.why});  // for all of them
    return end.exit_code;
  }
  if (auto gathered = seats.gather(name, scheduler.tasks); !gathered) {
    if (plan.gives_up.empty()) plan.gives_up = gathered.error().message();
    return std::nullopt;
  }
  std::vector<SeatCard> cards = seats.cards();
  cards.push_back(own);
  auto seated = seat_workers(cards, scheduler.tasks, plan.local_world_size, scheduler.gpus);
  if (!seated) {
    const int status = refuse(seated.error(), log);
    seats.tell(status);
    return status;
  }
  bind_to_seats(*std::move(seated), plan);
  return std::nullopt;
}

/// --dry-run.
int show(const LaunchConfig& plan, const OptionValues& options) {
  return give({0, options.text("format", "sh") == "json" ? plan_as_json(plan) : plan_text(plan), ""});
}

std::optional<int> refuse_old_kernel(const LogWords& log) {
  const auto checked = check_kernel();
  if (checked) return std::nullopt;
  static_cast<void>(refuse(checked.error(), log));
  return exit_code::unfit;
}

/// --hosts and its like: the agents are started elsewhere.
int launch_on_hosts(const CommandLine& line, const Machine& machine, std::string token, Guarded guarded) {
  const LogWords log = log_words(line.options);
  const FanOutFacts facts{{machine.variable, machine.file, machine.host},
                          own_environment(),
                          own_directory(),
                          own_program(),
                          TORCHUP_VERSION};
  auto front = plan_fan_out(line.options, line.program, line.legacy, machine, facts);
  if (!front) return refuse(front.error(), log);
  if (auto checked = check_machine(front->job); !checked) return refuse(checked.error(), log);
  if (auto lacking = descriptors_lacking(front->hosts.settings.hosts.size(), descriptor_limit()); !lacking.empty()) {
    return refuse(fail(errc::refused, std::move(lacking)), log);
  }
  if (auto read = read_tokens(line.options, std::move(token), front->job); !read) return refuse(read.error(), log);
  front->hosts.agents.token = front->job.rendezvous.token;
  if (line.options.flag("print-env")) return give(environment_answer(front->job, line.options));
  if (line.options.flag("dry-run")) return show(front->job, line.options);
  if (const auto status = refuse_old_kernel(log)) return *status;
  return run_front(*front, std::move(guarded), machine.host);
}

int launch(std::span<const std::string> words, std::string token, const StarterLink& starter, Guarded guarded,
           std::optional<LinkedNode> linked) {
  Machine machine = this_machine();
  machine.starter = [outer = guarded.outer] { return command_line(parent_of(outer), starter_bytes_max); };
  auto node = rehearsed_node(starter);
  if (!node) return refuse(node.error());
  machine.linked = std::move(linked);
  if (machine.linked) machine.host = machine.linked->plan.name;
  machine.rehearsed = *node;
  if (machine.rehearsed) machine.host = fmt::format("node{}", machine.rehearsed->index);
  const auto read = read_options(words, machine);
  if (const int* const status = std::get_if<int>(&read)) return *status;
  const auto& line = std::get<CommandLine>(read);
  const LogWords log = log_words(line.options);
  if (line.options.has("print-batch-script")) {
    const auto script = batch_script(line.options.text("print-batch-script"), line.options, line.program);
    return script ? give({0, *script, ""}) : refuse(script.error(), log);
  }
  if (!machine.linked && asks_for_hosts(line.options)) {
    return launch_on_hosts(line, machine, std::move(token), std::move(guarded));
  }
  auto plan = make_plan(line.options, line.program, line.legacy, machine);
  if (!plan) return refuse(plan.error(), log);
  if (auto checked = check_machine(*plan); !checked) return refuse(checked.error(), log);
  if (auto tokens = read_tokens(line.options, token, *plan); !tokens) return refuse(tokens.error(), log);
  if (line.options.flag("print-env")) return give(environment_answer(*plan, line.options));
  if (line.options.flag("dry-run")) {
    if (auto learned = learn_deadline(machine, *plan); !learned) return refuse(learned.error(), log);
    return plan->gives_up.empty() ? show(*plan, line.options) : refuse(fail(errc::bad_value, plan->gives_up), log);
  }
  if (const auto status = refuse_old_kernel(log)) return *status;
  if (plan->rehearsal.nodes > 0) return run_rehearsed_nodes(*plan, guarded, words, token, machine.host);
  Seats seats;
  if (const auto status = take_seats(*plan, guarded, log, seats)) return *status;
  if (auto learned = learn_deadline(machine, *plan); !learned) {
    const int status = refuse(learned.error(), log);
    seats.tell(status);
    return status;
  }
  const std::string& told = plan->scheduler.own_name;
  run_agent(*plan, std::move(guarded), told.empty() ? machine.host : told, std::move(seats));
}

}  // namespace
}  // namespace torchup

int main(int argc, char** argv) {
  if (argc == 3 && argv[1] == torchup::nvml_word) return torchup::answer_about_gpus(argv[2]);
  if (argc == torchup::health_words && argv[1] == torchup::health_word) return torchup::answer_about_health(argv);
  if (argc > 0 && torchup::is_stack_program(argv[0])) {
    return torchup::run_stack_program(std::vector<std::string>(argv + 1, argv + argc));
  }
  if (argc == torchup::node_fault_words && argv[1] == torchup::node_fault_word) {
    return torchup::bring_about_node_fault(argv);
  }
  std::optional<torchup::LinkedNode> linked;
  if (const auto start = argc == 2 ? torchup::read_link_word(argv[1]) : std::nullopt)
    linked = torchup::link_agent(*start);
  std::string token = torchup::take_token_variable();  // from both processes
  if (linked) token = linked->plan.token;
  const torchup::StarterLink starter = torchup::take_starter_link();
  torchup::Guarded guarded = torchup::become_guarded();
  // One arena for all threads: each costs more than everything that the small ones allocate.
  ::mallopt(M_ARENA_MAX, 1);
  const std::vector<std::string> words =
      linked ? torchup::words_of(linked->plan) : std::vector<std::string>(argv, argv + argc);
  try {
    return torchup::launch(words, std::move(token), starter, std::move(guarded), std::move(linked));
  } catch (const std::exception& error) {
    const int status = torchup::report(error);
    static_cast<void>(torchup::kill_descendants(std::chrono::seconds{10}));
    return status;
  }
}
