#include "launcher/core/fan_out/fan_out_options.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "launcher/core/fan_out/fan_out_result.hpp"

using namespace torchup;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

namespace {

struct Given {
  OptionValues options;
  std::map<std::string, std::string> variables = {}, files = {};

  explicit Given(const std::map<std::string, std::string>& values) {
    for (const auto& [name, value] : values) options.set(name, value);
  }
  [[nodiscard]] Result<FanOutPlan> read() const {
    FanOutFacts facts;
    facts.scheduler.variable = [this](std::string_view name) -> std::optional<std::string> {
      const auto found = variables.find(std::string{name});
      return found == variables.end() ? std::nullopt : std::optional{found->second};
    };
    facts.scheduler.file = [this](const std::string& path, std::size_t) -> Result<std::string> {
      const auto found = files.find(path);
      if (found == files.end()) return system_error(ENOENT, path);
      return found->second;
    };
    facts.scheduler.host = "login";
    facts.environment = {"A=1", "HOME=/home/me"};
    facts.directory = "/srv";
    facts.program = "/opt/torchup";
    facts.version = "1";
    return read_fan_out(options, facts);
  }
  [[nodiscard]] std::string refusal() const {
    const auto plan = read();
    return plan ? "" : plan.error().message();
  }
};

Words names_of(const FanOutPlan& plan) {
  Words names;
  for (const Host& host : plan.settings.hosts) names.push_back(host.name);
  return names;
}

bool names(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

}  // namespace

TEST_CASE("hosts come from an option, a file or a scheduler", "[unit][fan_out]") {
  REQUIRE_FALSE(asks_for_hosts(Given{{{"nnodes", "2"}}}.options));
  REQUIRE(asks_for_hosts(Given{{{"hosts", ""}}}.options));
  SECTION("the list") {
    const auto plan = Given{{{"hosts", "gpu[1-2]:4,me@c"}}}.read();
    REQUIRE(names_of(*plan) == Words{"gpu1", "gpu2", "me@c"});
    REQUIRE(plan->hosts_from == "--hosts");
    const LinkPlan first = link_plan(*plan, plan->settings.hosts[0], 0);
    REQUIRE((first.name == "gpu1" && first.workers == 4 && first.node == 0));
    const LinkPlan last = link_plan(*plan, plan->settings.hosts[2], 2);
    REQUIRE((last.name == "c" && last.workers == 0 && last.node == 2));
  }
  SECTION("a file") {
    Given given{{{"hostfile", "list"}}};
    REQUIRE(names(given.refusal(), "--hostfile: list"));
    given.files["list"] = "a slots=2 addr=10.0.0.1\nb\n";
    const auto plan = given.read();
    REQUIRE(names_of(*plan) == Words{"a", "b"});
    REQUIRE(link_plan(*plan, plan->settings.hosts[0], 0).address == "10.0.0.1");
    given.files["list"] = "a\nb color=red\n";
    REQUIRE(names(given.refusal(), "list:2"));
  }
  SECTION("a batch job") {
    Given given{{{"hosts", "auto"}}};
    REQUIRE(names(given.refusal(), "--hosts=auto"));
    given.variables = {{"LSB_JOBID", "7"}, {"LSB_MCPU_HOSTS", "c1 4 c2 4"}};
    const auto plan = given.read();
    REQUIRE(names_of(*plan) == Words{"c1", "c2"});
    REQUIRE(plan->hosts_from == "LSB_MCPU_HOSTS");
  }
  SECTION("what is asked again and again") {
    const auto plan = Given{{{"host-discovery", "./alive.sh"}, {"host-cooldown", "0.5..20"}}}.read();
    REQUIRE(plan->discovery == HostDiscovery{"./alive.sh", 1s});
    REQUIRE((plan->settings.discovers && plan->settings.hosts.empty()));
    REQUIRE((plan->settings.cooldown_min == 500ms && plan->settings.cooldown_max == 20s));
  }
}

TEST_CASE("what does not go with a list of hosts is refused", "[unit][fan_out]") {
  REQUIRE(names(Given{{{"hosts", "a"}, {"hostfile", "b"}}}.refusal(), "--hosts and --hostfile"));
  REQUIRE(names(Given{{{"hosts", "a"}, {"host-discovery", "b"}}}.refusal(), "--host-discovery"));
  for (const char* option : {"standalone", "node-rank", "master-addr", "no-capture", "local-addr", "rehearse-nodes"}) {
    REQUIRE(names(Given{{{"hosts", "a"}, {option, "1"}}}.refusal(), std::string{"--"} + option));
  }
  REQUIRE(names(Given{{{"hosts", "a"}, {"rdzv-backend", "static"}}}.refusal(), "--rdzv-backend=static"));
  REQUIRE(names(Given{{{"hosts", "a,-oProxyCommand=x"}}}.refusal(), "-oProxyCommand"));
  REQUIRE(names(Given{{{"hosts", ""}}}.refusal(), "--hosts"));
  REQUIRE(names(Given{{{"hosts", "a"}, {"ssh", "ssh 'x"}}}.refusal(), "--ssh"));
  REQUIRE(names(Given{{{"hosts", "a"}, {"remote-torchup", "my torchup"}}}.refusal(), "--remote-torchup"));
  REQUIRE(names(Given{{{"hosts", "a"}, {"export", "A,,B"}}}.refusal(), "--export"));
  for (const char* wrong : {"", "x", "20..10", "0..10", "1..x"}) {
    REQUIRE(names(Given{{{"host-discovery", "x"}, {"host-cooldown", wrong}}}.refusal(), "--host-cooldown"));
  }
  REQUIRE(names(Given{{{"host-discovery", "x"}, {"discovery-interval", "0"}}}.refusal(), "--discovery-interval"));
  REQUIRE(names(Given{{{"host-discovery", ""}}}.refusal(), "--host-discovery"));
  Given step{{{"hosts", "a"}}};
  step.variables = {{"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_RANK", "0"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
  REQUIRE(names(step.refusal(), "openmpi"));
  step.options.set("scheduler", "none");
  REQUIRE(step.refusal().empty());
}

TEST_CASE("agents are told what the front was told, but for its own", "[unit][fan_out]") {
  Given given{{{"hosts", "me@b,a"},
               {"max-restarts", "3"},
               {"ssh", "ssh -x"},
               {"events", "e"},
               {"token-file", "t"},
               {"nnodes", "1:2"},
               {"log-dir", "/l"}}};
  given.options.set("module", "");
  const auto plan = given.read();
  REQUIRE((plan->agents.wants_events && !plan->agents.wants_result && plan->agents.own_coordinator));
  REQUIRE((plan->agents.directory == "/srv" && plan->agents.environment == Words{"A=1"}));
  Words words = agent_arguments(given.options, *plan, "torchup", "1:2");
  REQUIRE(Words(words.begin(), words.begin() + 3) == Words{"torchup", "--nnodes=1:2", "--expect-hosts=b,a"});
  std::sort(words.begin() + 3, words.end());
  REQUIRE(Words(words.begin() + 3, words.end()) == Words{"--log-dir=/l", "--max-restarts=3", "--module"});
  LinkPlan agent = plan->agents;
  agent.arguments = {"torchup", "--module"};
  agent.program = {"train", "--x"};
  REQUIRE(words_of(agent) == Words{"torchup", "--module", "--", "train", "--x"});
}

TEST_CASE("a directory is one of this machine's names", "[unit][fan_out]") {
  const auto directory = [](const std::string& given) {
    return Given{{{"hosts", "a"}, {"chdir", given}}}.read()->agents.directory;
  };
  REQUIRE(Given{{{"hosts", "a"}}}.read()->agents.directory == "/srv");
  REQUIRE(directory("/data") == "/data");
  REQUIRE(directory("runs/7") == "/srv/runs/7");
}

TEST_CASE("with a meeting point elsewhere the front has no coordinator", "[unit][fan_out]") {
  const Given given{{{"hosts", "a"}, {"rdzv-endpoint", "store:29400"}}};
  const auto plan = given.read();
  REQUIRE_FALSE(plan->settings.own_coordinator);
  const Words words = agent_arguments(given.options, *plan, "torchup", "1");
  REQUIRE(std::ranges::find(words, "--rdzv-endpoint=store:29400") != words.end());
}

TEST_CASE("the front's result is that of all hosts", "[unit][fan_out]") {
  using nlohmann::json;
  const json none = json::parse(fan_out_result(67, {}));
  REQUIRE((none["exit_code"] == 67 && none["hosts"].empty() && none["schema"] == 1));
  const std::string text = "{\n \"exit_code\": 1,\n \"run_id\": \"r\"\n}\n";
  const json read = json::parse(fan_out_result(0, {{"a", "half {"}, {"b", text}, {"c", "{\n \"old\": 1\n}\n" + text}}));
  REQUIRE((read["exit_code"] == 0 && read["run_id"] == "r" && read["hosts"].size() == 2));
  REQUIRE((read["hosts"][0]["host"] == "b" && read["hosts"][1]["host"] == "c"));
  REQUIRE_FALSE(read["hosts"][1].contains("old"));
}

TEST_CASE("the front's result is not told by a host that has left", "[unit][fan_out]") {
  using nlohmann::json;
  const std::string left = "{\n \"reason\": \"left\"\n}\n", over = "{\n \"reason\": \"over\"\n}\n";
  const json read = json::parse(fan_out_result(0, {{"a", left, true}, {"b", "half {"}, {"c", over}, {"d", left}}));
  REQUIRE((read["reason"] == "over" && read["hosts"].size() == 3 && read["hosts"][0]["host"] == "a"));
  REQUIRE(json::parse(fan_out_result(143, {{"a", left, true}, {"b", over, true}}))["reason"] == "left");
}
