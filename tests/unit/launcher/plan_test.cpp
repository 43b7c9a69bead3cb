#include "launcher/core/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

#include "launcher/core/options/completion.hpp"
#include "launcher/core/options/manual.hpp"
#include "launcher/core/plan/plan_rehearsal.hpp"
#include "launcher/core/plan/worker_environment.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "tests/support/fake_machine.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

Result<LaunchConfig> planned(const Texts& options, const Texts& variables = {}) {
  OptionValues values;
  for (const auto& [name, value] : options) values.set(name, value);
  return make_plan(values, {"prog", "a"}, false, fake_machine(variables));
}
LaunchConfig plan(const Texts& options, const Texts& variables = {}) {
  auto result = planned(options, variables);
  REQUIRE(result.has_value());
  return *result;
}
std::string refusal(const Texts& options, const Texts& variables = {}) {
  auto result = planned(options, variables);
  return result ? "none" : result.error().message();
}

}  // namespace

TEST_CASE("one node without port meets in this process, under a fresh run id", "[unit][plan]") {
  const LaunchConfig config = plan({});
  REQUIRE(!config.rendezvous.endpoint);
  REQUIRE(config.rendezvous.run_id == RunId{"00000000-0000-4000-8000-0000000000ff"});
  REQUIRE(config.terms.max_nodes == 1);
  REQUIRE(config.local_world_size == 1);
  REQUIRE(plan({{"standalone", "1"}, {"rdzv-backend", "foo"}}).rendezvous.backend == Backend::c10d);
}

TEST_CASE("a job of one node has the run id that it was given, but not a standalone one", "[unit][plan]") {
  REQUIRE(plan({{"rdzv-id", "job/1"}}).rendezvous.run_id == RunId{"job/1"});
  REQUIRE(plan({{"rdzv-id", "job/1"}, {"standalone", "1"}}).rendezvous.run_id ==
          RunId{"00000000-0000-4000-8000-0000000000ff"});
}

TEST_CASE("the doors by which people see a job are as they were asked for", "[unit][plan]") {
  REQUIRE(plan({}).operations == OperationsOptions{});
  const OperationsOptions doors =
      plan({{"no-control-socket", "1"}, {"status-port", "0"}, {"status-bind", "::"}, {"status-host", "a.example,b"}})
          .operations;
  REQUIRE_FALSE(doors.control_socket);
  REQUIRE(doors.status_port == Port{0});
  REQUIRE(doors.status_bind == "::");
  REQUIRE(doors.host_names == std::vector<std::string>{"a.example", "b"});
  REQUIRE(refusal({{"status-port", "65536"}}).starts_with("--status-port="));
  REQUIRE(refusal({{"status-port", "-1"}}).starts_with("--status-port="));
  REQUIRE(refusal({{"status-bind", "node1"}}).starts_with("--status-bind="));
  REQUIRE(refusal({{"status-host", "a,"}}).starts_with("--status-host: "));
  REQUIRE(refusal({{"status-host", "a:80"}}).starts_with("--status-host: "));
}

TEST_CASE("a port makes it static", "[unit][plan]") {
  const LaunchConfig config = plan({{"master-port", "1_234"}, {"rdzv-id", "job1"}});
  REQUIRE(config.rendezvous.backend == Backend::static_);
  REQUIRE(config.rendezvous.endpoint == Endpoint{"127.0.0.1", Port{1234}});
  REQUIRE(config.rendezvous.run_id == RunId{"job1"});
  REQUIRE(config.terms.join_timeout == 900s);
  REQUIRE(plan({{"nnodes", "2"}, {"node-rank", "1"}}).rendezvous.group_rank == GroupRank{1});
  REQUIRE(refusal({{"nnodes", "2"}, {"node-rank", "2"}}).find("--node-rank=2") == 0);
  REQUIRE(refusal({{"rdzv-endpoint", "localhost"}}) ==
          "port is missing in endpoint: localhost. Try to specify --master-port");
}

TEST_CASE("c10d with its timeouts", "[unit][plan]") {
  const LaunchConfig config = plan({{"nnodes", "2:4"},
                                    {"rdzv-backend", "c10d"},
                                    {"rdzv-endpoint", "h:7"},
                                    {"rdzv-conf", " join_timeout = 5,last_call_timeout=1 , unknown=x,is_host=YES"}});
  REQUIRE(config.terms.min_nodes == 2);
  REQUIRE(config.terms.max_nodes == 4);
  REQUIRE(config.rendezvous.endpoint == Endpoint{"h", Port{7}});
  REQUIRE(config.terms.join_timeout == 5s);
  REQUIRE(config.terms.last_call == 1s);
  REQUIRE(config.rendezvous.is_host == true);
  REQUIRE(config.terms.lease == 10s);
  REQUIRE(plan({{"rdzv-backend", "c10d"}, {"rdzv-conf", "keep_alive_interval=2"}}).terms.lease == 6s);
  REQUIRE(refusal({{"rdzv-backend", "c10d"}, {"rdzv-conf", "a"}}) ==
          "The rendezvous configuration option 'a' must have a value specified.");
  REQUIRE(refusal({{"rdzv-backend", "c10d"}, {"rdzv-conf", "a=1,"}}) ==
          "The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.");
  REQUIRE(refusal({{"rdzv-backend", "c10d"}, {"rdzv-conf", "join_timeout=0"}}) ==
          "The join timeout (0:00:00) must be positive.");
  REQUIRE(refusal({{"rdzv-backend", "etcd-v2"}}).find("--rdzv-backend=etcd") != std::string::npos);
}

TEST_CASE("node counts", "[unit][plan]") {
  REQUIRE(refusal({{"nnodes", "1:2:3"}}) == "nnodes=1:2:3 is not in \"MIN:MAX\" format");
  REQUIRE(refusal({{"nnodes", "2:1"}}) == "min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1");
  const Texts c10d{{"rdzv-backend", "c10d"}, {"rdzv-endpoint", "a"}};
  const auto with = [&](Texts more) {
    more.insert(c10d.begin(), c10d.end());
    return more;
  };
  REQUIRE(plan(with({{"nnodes", "65536"}})).terms.min_nodes == nodes_max);
  REQUIRE(refusal(with({{"nnodes", "65537"}})) == "--nnodes=65537: a job has 65536 nodes at most");
  REQUIRE(plan(with({{"nnodes", "1:1000000000000"}})).terms.max_nodes == nodes_max);
  REQUIRE(plan({{"max-restarts", "1000000000000"}}).terms.max_restarts == restarts_max);
  REQUIRE(plan(with({{"nnodes", "2"}, {"rdzv-id", std::string(256, 'i')}})).rendezvous.run_id.value().size() == 256);
  for (const std::string& id : {std::string(257, 'i'), std::string{"job\n1"}, std::string{"\xff"}}) {
    REQUIRE(refusal(with({{"nnodes", "2"}, {"rdzv-id", id}})).starts_with("--rdzv-id cannot be used: it "));
  }
  REQUIRE(refusal({{"nnodes", "1:"}}) == "--nnodes=1:: invalid literal for int() with base 10: ''");
}

TEST_CASE("the grace comes from the option, then the variable, then the contract", "[unit][plan]") {
  REQUIRE(plan({}).stop_grace == 30s);
  REQUIRE(plan({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600"}}).stop_grace == 600s);
  REQUIRE(plan({{"shutdown-timeout", "120"}}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600"}}).stop_grace == 120s);
  REQUIRE(refusal({{"shutdown-timeout", "-5"}}) == "shutdown_timeout must be non-negative, got -5");
}

TEST_CASE("which signals end the job", "[unit][plan]") {
  REQUIRE(plan({}).end_signals == std::vector{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  REQUIRE(plan({}).forward_signals == std::vector{SIGUSR1, SIGUSR2});
  const LaunchConfig config = plan({{"signals-to-handle", "SIGTERM, SIGFOO ,SIGUSR1"}});
  REQUIRE(config.end_signals == std::vector{SIGTERM, SIGUSR1});
  REQUIRE(config.end_signals_listed);
  REQUIRE(config.warnings == std::vector<std::string>{"Failed to register signal handler for SIGFOO"});
  for (const std::string name : {"WINCH", "URG", "CONT", "CHLD", "TSTP", "ABRT", "SEGV", "KILL", "SIGSTOP"}) {
    REQUIRE(refusal({{"forward-signals", name}}).find("is no signal that can be passed on") != std::string::npos);
    REQUIRE(refusal({{"drain-signals", name}}).find("is no signal that can ask for this") != std::string::npos);
  }
  const LaunchConfig unheard = plan({{"signals-to-handle", "SIGWINCH,SIGTERM"}});
  REQUIRE(unheard.end_signals == std::vector{SIGTERM});
  REQUIRE(unheard.warnings == std::vector<std::string>{"Failed to register signal handler for SIGWINCH"});
  REQUIRE(plan({{"forward-signals", "ALRM,40"}}).forward_signals == std::vector{SIGALRM, 40});
  REQUIRE(refusal({{"signals-to-handle", "SIGKILL"}}).find("cannot be caught") != std::string::npos);
}

TEST_CASE("restart pace and window", "[unit][plan]") {
  const LaunchConfig config = plan({{"restart-backoff", "0.5..30"}, {"restart-window", "60"}, {"max-restarts", "3"}});
  REQUIRE(config.restart_backoff == RestartBackoff{500ms, 30s});
  REQUIRE(config.terms.restart_window == 60s);
  REQUIRE(config.terms.max_restarts == 3);
  REQUIRE(refusal({{"restart-backoff", "3..1"}}).find("MIN..MAX") != std::string::npos);
  REQUIRE(refusal({{"max-restarts", "-1"}}) == "max_restarts must be >= 0");
}

TEST_CASE("how long all may be silent, and what is done then", "[unit][plan]") {
  using Mode = HangTimeout::Mode;
  REQUIRE(plan({}).terms.hang_timeout == HangTimeout{});
  REQUIRE(plan({{"hang-timeout", "auto"}}).terms.hang_timeout == HangTimeout{});
  REQUIRE(plan({{"hang-timeout", "off"}}).terms.hang_timeout == HangTimeout{.mode = Mode::off});
  REQUIRE(plan({{"hang-timeout", "2.5"}}).terms.hang_timeout == HangTimeout{.mode = Mode::given, .silence = 2500ms});
  REQUIRE(plan({{"hang-timeout", "2,60"}}).terms.hang_timeout ==
          HangTimeout{.mode = Mode::given, .silence = 2s, .start = 60s});
  REQUIRE(plan({{"hang-timeout", "0.1,inf"}}).terms.hang_timeout ==
          HangTimeout{.mode = Mode::given, .silence = 100ms, .start = duration_max});
  for (const std::string text : {"", "x", "2,", ",2", "2,3,4", "2s", "nan", "AUTO"}) {
    REQUIRE(refusal({{"hang-timeout", text}}) == "--hang-timeout=" + text +
                                                     " is not auto, off or S[,START] in seconds, for instance 120 or "
                                                     "120,900");
  }
  for (const std::string text : {"0", "-1", "0.09", "2,0", "2,-1"}) {
    REQUIRE(refusal({{"hang-timeout", text}}) == "--hang-timeout=" + text + " is too short: at least 0.1 s, or off");
  }
  REQUIRE(plan({}).terms.on_hang == OnHang::report);
  REQUIRE(plan({{"on-hang", "report"}}).terms.on_hang == OnHang::report);
  REQUIRE(plan({{"on-hang", "abort"}}).terms.on_hang == OnHang::abort);
  REQUIRE(plan({{"on-hang", "restart"}}).terms.on_hang == OnHang::restart);
}

TEST_CASE("the heartbeat timeout is another word for both", "[unit][plan]") {
  const JobTerms terms = plan({{"heartbeat-timeout", "30"}}).terms;
  REQUIRE(terms.hang_timeout == HangTimeout{.mode = HangTimeout::Mode::given, .silence = 30s});
  REQUIRE(terms.on_hang == OnHang::restart);
  REQUIRE(plan({{"heartbeat-timeout", "0"}}).terms == plan({}).terms);
  const JobTerms newer = plan({{"heartbeat-timeout", "30"}, {"hang-timeout", "off"}, {"on-hang", "report"}}).terms;
  REQUIRE(newer.hang_timeout.mode == HangTimeout::Mode::off);
  REQUIRE(newer.on_hang == OnHang::report);
  REQUIRE(refusal({{"heartbeat-timeout", "-1"}}) == "--heartbeat-timeout must be >= 0");
  REQUIRE(refusal({{"heartbeat-timeout", "0.01"}}) == "--heartbeat-timeout must be 0 or at least 0.1 s");
}

TEST_CASE("how often stragglers are looked for", "[unit][plan]") {
  REQUIRE(plan({}).terms.straggler_window == 60s);
  REQUIRE(plan({{"straggler-window", "1"}}).terms.straggler_window == 1s);
  REQUIRE(plan({{"straggler-window", "0"}}).terms.straggler_window == 0s);
  REQUIRE(refusal({{"straggler-window", "0.9"}}) == "--straggler-window must be 0 or at least 1 s");
  REQUIRE(refusal({{"straggler-window", "-1"}}) == "--straggler-window must be >= 0");
}

TEST_CASE("a signal to the starter of a rehearsal's nodes ends the job where it ends an agent's", "[unit][plan]") {
  LaunchConfig config;
  config.end_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  config.forward_signals = {SIGUSR1};
  config.drain_signals = {SIGUSR2};
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGALRM}) CHECK(ends_all_nodes(config, number));
  for (const int number : {SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH, SIGURG, SIGCHLD}) {
    CHECK_FALSE(ends_all_nodes(config, number));
  }
  config.forward_signals.push_back(SIGTERM);  // what is listed for both ends
  CHECK(ends_all_nodes(config, SIGTERM));
}

TEST_CASE("a rehearsal's script is read with the plan", "[unit][plan]") {
  REQUIRE(!plan({}).rehearsal.script);
  REQUIRE(plan({{"rehearse", "at 5s kill rank=1"}}).rehearsal.script->statements.size() == 1);
  REQUIRE(refusal({{"rehearse", "at 5 kill rank=1"}}).starts_with("--rehearse: 1:4: '5' is no time"));
  REQUIRE(refusal({{"rehearse", ""}}).starts_with("--rehearse: 1:1: the script is empty"));
  REQUIRE(refusal({{"rehearse", "at 5s leave node=0 back=2s"}}) ==
          "--rehearse: 'at 5s leave node=0 back=2s': back= needs --rehearse-nodes: nobody else starts a node again");
  REQUIRE(refusal({{"rehearse", "expect exit=0"}, {"preflight-only", "1"}}) ==
          "--rehearse: --preflight-only starts nothing that could have faults");
  OptionValues values;
  values.set("rehearse", "@faults");
  Machine machine = fake_machine();
  machine.script = [](const std::string& path) -> Result<std::string> { return "\nat " + path + " kill rank=1"; };
  const auto wrong = make_plan(values, {"prog"}, false, machine);
  REQUIRE(wrong.error().message().starts_with("--rehearse: faults:2:4: 'faults' is no time"));
  machine.script = [](const std::string& path) -> Result<std::string> {
    return fail(errc::bad_value, path + ": gone");
  };
  REQUIRE(make_plan(values, {"prog"}, false, machine).error().message() == "--rehearse: faults: gone");
}

TEST_CASE("the nodes of a rehearsal meet where their starter says", "[unit][plan]") {
  const Texts options{{"rehearse", "at 5s kill node=1 back=2s"},
                      {"rehearse-nodes", "3"},
                      {"standalone", "1"},
                      {"log-dir", "/logs"},
                      {"result-file", "/r"},
                      {"node-rank", "9"}};
  const LaunchConfig starter = plan(options);
  REQUIRE(starter.rehearsal.nodes == 3);
  REQUIRE(starter.terms.min_nodes == 3);
  REQUIRE(starter.output.log_dir == "/logs");
  OptionValues values;
  for (const auto& [name, value] : options) values.set(name, value);
  Machine machine = fake_machine();
  machine.rehearsed = RehearsedNode{2, 3, Port{12345}, {}};
  const auto node = make_plan(values, {"prog"}, false, machine);
  REQUIRE(node.has_value());
  REQUIRE(node->rehearsal.nodes == 0);
  REQUIRE(node->rehearsal.node == machine.rehearsed);
  REQUIRE(node->rendezvous.backend == Backend::c10d);
  REQUIRE(node->rendezvous.endpoint == Endpoint{"127.0.0.1", Port{12345}});
  REQUIRE(node->rendezvous.is_host == false);
  REQUIRE(node->rendezvous.local_addr == "127.0.0.1");
  REQUIRE(node->terms.max_nodes == 3);
  REQUIRE(node->output.log_dir == "/logs/node2");
  REQUIRE(node->output.result_file == "/r.node2");
  machine.rehearsed->index = 0;
  REQUIRE(make_plan(values, {"prog"}, false, machine)->rendezvous.is_host == true);
  REQUIRE(plan({{"rehearse", "expect exit=0"}, {"rehearse-nodes", "2"}, {"nnodes", "1:4"}}).terms.max_nodes == 4);
}

TEST_CASE("how many nodes a rehearsal may have", "[unit][plan]") {
  REQUIRE(plan({{"rehearse", "expect exit=0"}, {"rehearse-nodes", "64"}}).rehearsal.nodes == 64);
  for (const char* number : {"0", "65", "-1"}) {
    REQUIRE(refusal({{"rehearse", "expect exit=0"}, {"rehearse-nodes", number}}) ==
            fmt::format("--rehearse-nodes={} is not from 1 to 64", number));
  }
  REQUIRE(refusal({{"rehearse-nodes", "2"}}).starts_with("--rehearse-nodes needs --rehearse"));
  for (const char* nodes : {"3:4", "1"}) {
    REQUIRE(refusal({{"rehearse", "expect exit=0"}, {"rehearse-nodes", "2"}, {"nnodes", nodes}})
                .starts_with("--rehearse-nodes=2: the job is one of "));
  }
}

TEST_CASE("who is expected, and in which order ranks are given", "[unit][plan]") {
  const Texts c10d{{"rdzv-backend", "c10d"}, {"rdzv-endpoint", "a"}, {"nnodes", "2:4"}};
  const auto with = [&](Texts more) {
    more.insert(c10d.begin(), c10d.end());
    return more;
  };
  REQUIRE(plan(c10d).terms.rank_order == RankOrder::address);
  const JobTerms terms =
      plan(with({{"rank-order", "hostlist"}, {"expect-hosts", "b,a"}, {"nnodes-multiple-of", "2"}})).terms;
  REQUIRE(terms.rank_order == RankOrder::hostlist);
  REQUIRE(terms.hostlist == "b,a");
  REQUIRE(terms.nodes_multiple_of == 2);
  REQUIRE(plan(with({{"rank-order", "join"}})).terms.rank_order == RankOrder::join);
  REQUIRE(plan(with({{"set-socket-ifname", "1"}})).set_socket_ifname);
  REQUIRE(refusal(with({{"rank-order", "hostlist"}})).find("--expect-hosts") != std::string::npos);
  REQUIRE(refusal(with({{"expect-hosts", "n[1"}})).find("--expect-hosts=n[1") != std::string::npos);
  // What does not go whole over the wire would differ from that of whoever hosts the coordinator.
  std::string longest = "a";
  while (longest.size() + 2 <= text_bytes_max) longest += ",b";
  longest.resize(text_bytes_max, 'b');
  REQUIRE(plan(with({{"expect-hosts", longest}})).terms.hostlist == longest);
  REQUIRE(refusal(with({{"expect-hosts", longest + "b"}})).find("write ranges") != std::string::npos);
  REQUIRE(refusal(with({{"nnodes-multiple-of", "0"}})).find("must be >= 1") != std::string::npos);
  REQUIRE(refusal(with({{"nnodes-multiple-of", "5"}})).find("more than --nnodes allows") != std::string::npos);
}

TEST_CASE("an empty run id becomes a decimal number", "[unit][plan]") {
  REQUIRE(plan({{"rdzv-id", ""}, {"master-port", "1"}}).rendezvous.run_id == RunId{"302240678275694148452607"});
}

TEST_CASE("the workers' environment", "[unit][plan]") {
  const LaunchConfig config = plan({{"nproc-per-node", "2"}, {"role", "r"}});
  const std::vector<std::string> inherited{"A=b=c",
                                           "RANK=77",
                                           "TORCHUP_TOKEN=secret",
                                           "TORCH_NCCL_ASYNC_ERROR_HANDLING=3",
                                           "TORCHUP_WORKER_PAGE=3:secret",
                                           "TORCHUP_WORKER_CHANNEL=4:secret",
                                           "TORCHUP_TEMPLATE=3:secret"};
  Placement placement;
  placement.group_rank = GroupRank{1};
  placement.first_rank = Rank{4};
  placement.world_size = 6;
  placement.master_addr = "10.0.0.1";
  placement.master_port = Port{99};
  const WorkerEnvironment environments{config, inherited};
  auto environment = *environments.common();
  for (std::string& line : environments.own(placement, LocalRank{1}, "e.json")) environment.push_back(std::move(line));
  const auto has = [&](const char* line) { return std::count(environment.begin(), environment.end(), line) == 1; };
  for (const char* line :
       {"A=b=c", "RANK=5", "LOCAL_RANK=1", "WORLD_SIZE=6", "GROUP_RANK=1", "ROLE_NAME=r", "MASTER_ADDR=10.0.0.1",
        "MASTER_PORT=99", "TORCHELASTIC_ERROR_FILE=e.json", "TORCHELASTIC_USE_AGENT_STORE=True", "OMP_NUM_THREADS=1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT"}) {
    INFO(line);
    REQUIRE(has(line));
  }
  for (const std::string& line : environment) REQUIRE(line.find("secret") == std::string::npos);
}

TEST_CASE("the hook's folder stands first where Python looks for modules", "[unit][plan]") {
  const LaunchConfig config = plan({});
  const auto path = [&](const std::vector<std::string>& inherited, std::string_view hook) {
    std::vector<std::string> found;
    const WorkerEnvironment environment{config, inherited, hook};
    for (const std::string& line : *environment.common()) {
      if (line.starts_with("PYTHONPATH=")) found.push_back(line);
    }
    return found;
  };
  using Lines = std::vector<std::string>;
  CHECK(path({}, "/m/hook") == Lines{"PYTHONPATH=/m/hook"});
  CHECK(path({"PYTHONPATH=/a:/b"}, "/m/hook") == Lines{"PYTHONPATH=/m/hook:/a:/b"});
  CHECK(path({"PYTHONPATH="}, "/m/hook") == Lines{"PYTHONPATH=/m/hook"});
  CHECK(path({"PYTHONPATH=/a", "PYTHONPATH=/b"}, "/m/hook") == Lines{"PYTHONPATH=/m/hook:/a"});  // as Python takes it
  CHECK(path({"PYTHONPATH=/a"}, "") == Lines{"PYTHONPATH=/a"});
  CHECK(path({}, "").empty());
}

TEST_CASE("Python workers have the hook unless the user will not have it", "[unit][plan]") {
  CHECK(plan({}).worker_hook);
  CHECK_FALSE(plan({{"no-worker-hook", "1"}}).worker_hook);
}

TEST_CASE("manual and completion know every option", "[unit][plan]") {
  const std::string manual = manual_page("1.0");
  for (const char* shell : {"bash", "zsh", "fish", "tcsh"}) {
    const std::string script = completion_script(shell).value();
    for (const OptionSpec& option : option_table()) {
      INFO(shell << " " << option.name);
      REQUIRE(script.find(std::string{option.name}) != std::string::npos);
    }
  }
  for (const OptionSpec& option : option_table()) {
    std::string name{option.name};
    for (std::size_t at = 0; (at = name.find('-', at)) != std::string::npos; at += 2) name.insert(at, "\\");
    INFO(name);
    const bool taken = option.name != "use-env";  // torchup-launch's alone
    REQUIRE((manual.find("\\-\\-" + name + "\\fR") != std::string::npos) == taken);
  }
  REQUIRE(std::ranges::none_of(manual, [](unsigned char c) { return c < ' ' && c != '\n'; }));  // `\f` is one
  REQUIRE(completion_script("csh") == std::nullopt);
}

TEST_CASE("a program that can be forked is preloaded itself", "[unit][plan]") {
  const auto with = [](std::optional<std::uint32_t> mark, std::vector<std::string> words, const Texts& options = {}) {
    OptionValues values;
    values.set("preload", "program");
    for (const auto& [name, text] : options) values.set(name, text);
    auto machine = fake_machine({});
    machine.program = [mark](const std::string& name, Where) {
      const auto kind = name.ends_with(".py")   ? ProgramFile::Kind::other
                        : name.ends_with(".sh") ? ProgramFile::Kind::script
                                                : ProgramFile::Kind::elf;
      ProgramFile file{name, kind, true};
      if (kind == ProgramFile::Kind::elf) file.template_mark = mark;
      return std::optional{file};
    };
    return make_plan(values, words, false, machine);
  };
  using Words = std::vector<std::string>;
  REQUIRE(with(1, {"train", "a"})->preload == Words{"program"});
  CHECK_FALSE(with(1, {"train", "a"})->worker_hook);  // it needs none
  REQUIRE(with(1, {"train", "a"}, {{"no-python", "1"}})->preload == Words{"program"});
  SECTION("nothing else is started so") {
    CHECK(
        with({}, {"train"}).error().message() ==
        "--preload=program: train has no mark of torchup's worker_main (ELF file): name a program that is linked with "
        "torchup::worker_runtime and calls worker_main, or leave --preload out");
    CHECK(with(1, {"train.sh"})
              .error()
              .message()
              .starts_with(
                  "--preload=program: train.sh has no mark of torchup's worker_main (executable script with #!): "));
    CHECK(
        with(2, {"train"}).error().message() ==
        "--preload=program: train was built with another release of torchup (its mark is of version 2, this launcher's "
        "1): build it again with this one, or leave --preload out");
    CHECK(
        with(1, {"train.py"})
            .error()
            .message()
            .starts_with(
                "--preload=program is for C++ programs on torchup's worker_runtime, and train.py is run by Python ("));
    CHECK(with(1, {"train.py"})
              .error()
              .message()
              .ends_with("): name the modules that it imports, for instance --preload=torch"));
  }
  SECTION("what main may look at is the same for all workers") {
    const auto others = with(1, {"train", "--out=${local_rank}"});
    CHECK(others->preload.empty());
    CHECK(others->warnings.back() ==
          "--preload: train has other arguments for each worker, and may look at them before worker_main; workers are "
          "started without it");
  }
}

TEST_CASE("what is preloaded are modules, for a program that Python runs", "[unit][plan]") {
  const auto with = [](std::string value, Texts options, const Texts& variables = {}, std::string program = "x.py") {
    OptionValues values;
    options["preload"] = std::move(value);
    for (const auto& [name, text] : options) values.set(name, text);
    auto machine = fake_machine(variables);
    machine.program = [](const std::string& name, Where) {
      const bool elf = !name.ends_with(".py");
      return std::optional{ProgramFile{name, elf ? ProgramFile::Kind::elf : ProgramFile::Kind::other, true}};
    };
    return make_plan(values, {program, "a"}, false, machine);
  };
  using Modules = std::vector<std::string>;
  REQUIRE(with("torch", {})->preload == Modules{"torch"});
  REQUIRE(with(" torch , my.models_2,Äpfel", {})->preload == Modules{"torch", "my.models_2", "Äpfel"});
  REQUIRE(with("torch", {{"module", "1"}}, {}, "pkg")->preload == Modules{"torch"});
  for (const char* value : {"", "torch,", "a..b", ".a", "1a", "a b", "a;b", "a-b", "torch,os.path.", "$x"}) {
    CHECK(with(value, {}).error().message() ==
          fmt::format("--preload={} is no comma list of Python modules, for instance torch,my.models", value));
  }
  CHECK(with("torch", {}, {}, "prog").error().message() ==
        "--preload is for programs that Python runs, and prog is started itself (ELF file)");
  CHECK(with("torch", {{"no-python", "1"}}, {}, "prog").error().message() ==
        "--preload is for programs that Python runs, and prog is started itself (--no-python)");
  CHECK(plan({}).preload.empty());
  const auto each = with("torch", {}, {}, "of${local_rank}/x.py");
  CHECK(each->preload.empty());
  CHECK(each->warnings.back() ==
        "--preload: of${local_rank}/x.py is another program for each worker; workers are started without it");
  SECTION("threads that are bound when a library is loaded would all be bound alike") {
    const auto bound = with("torch", {{"numa-binding", "node"}}, {{"OMP_PROC_BIND", "close"}});
    if (!bound) return;  // the machine has no nodes
    CHECK(bound->preload.empty());
    CHECK(bound->warnings.back().starts_with("--preload: with --numa-binding and OMP_PROC_BIND "));
  }
}

}  // namespace torchup
