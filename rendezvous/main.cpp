// torchupd: the rendezvous daemon.

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "rendezvous/core/wording.hpp"
#include "rendezvous/net/agent_sessions.hpp"
#include "rendezvous/net/asio.hpp"
#include "rendezvous/net/coordinator.hpp"
#include "rendezvous/net/http.hpp"
#include "rendezvous/net/log.hpp"
#include "rendezvous/net/notify.hpp"
#include "rendezvous/net/state_directory.hpp"
#include "rendezvous/net/store_server.hpp"
#include "rendezvous/net/token.hpp"

namespace torchup {
namespace {

constexpr const char* about = R"(torchupd: the place where the processes of distributed PyTorch jobs meet.

It serves PyTorch's TCPStore protocol, so that any PyTorch program (torch 2.4 and newer) can use it as its store
without a change, and outlives every job.)";

constexpr const char* examples = R"(
Examples
  torchupd                                  loopback, port 29400
  torchupd --bind :: --port 29400           every address of this machine, IPv4 and IPv6
  torchupd --bind 10.0.0.1 --port 0         any free port; read it from the line "torchupd: ready on ..."
  torchupd --bind :: --state-dir /var/lib/torchupd   jobs survive its end

  Python   torch.distributed.TCPStore("node0", 29400, is_master=False)
  torchrun --rdzv-backend=c10d --rdzv-endpoint=node0:29400 ...
  curl     http://localhost:29400/status    also /healthz and /metrics (Prometheus)

With --state-dir this process may be ended, killed and replaced while jobs run: agents come back within seconds, nothing
is restarted, and what was counted stays counted. Nothing is told to an agent that would not survive. A file that is
damaged or of another version ends the start with 65. The store's keys are not kept: PyTorch's clients do not reconnect,
and workers meet at stores of their own agents.

Once it listens it prints one line on stdout, "torchupd: ready on ADDRESS:PORT", and tells systemd. Everything else goes
to stderr. SIGTERM and SIGINT: no newcomers; it ends when the last client of the store has gone or the grace is over. A second
signal ends it at once.

TCPStore knows no authentication: whoever reaches the port can read and write every key. Choose --bind accordingly.
)";

struct Settings {
  std::string bind = "localhost";
  std::uint16_t port = 29400;
  StoreLimits store;
  ConnectionLimits connections;
  double handshake_s = 30, request_s = 120, stalled_s = 60, silence_s = 90, grace_s = 30;
  std::string token_file, state_dir;
  int agents_max = RendezvousSettings{}.agents_max;
  bool store_only = false;
  LogOptions log{.program = "torchupd"};
  std::string torchrun_store = "first";
};

/// Refuses words that `read` cannot read.
template <class T>
CLI::Validator readable_by(Result<T> (*read)(std::string_view)) {
  return {[read](std::string& word) {
            const auto value = read(word);
            return value ? std::string{} : value.error().message();
          },
          ""};
}

/// Fills `settings`. A number: the process ends with it.
std::optional<int> read_arguments(int argc, char** argv, Settings& settings) {
  CLI::App app{about, "torchupd"};
  app.footer(examples);
  app.get_formatter()->column_width(34);
  app.add_option("--bind", settings.bind,
                 "Numeric address to listen on; \"::\" is all of them, \"localhost\" the loopback of both families")
      ->capture_default_str();
  app.add_option("--port", settings.port, "0: any free one")->capture_default_str();
  app.add_option("--max-connections", settings.connections.connections_max, "Newcomers beyond are closed")
      ->capture_default_str();
  app.add_option("--max-keys", settings.store.keys_max, "Keys and queues together")->capture_default_str();
  app.add_option("--max-bytes", settings.store.bytes_max, "All keys, values and queue elements; 512MB, 8GB …")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--max-request-bytes", settings.connections.request_bytes_max, "One request while it arrives")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--max-arriving-bytes", settings.connections.arriving_bytes_max,
                 "Unfinished requests of all connections")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--max-handshake", settings.handshake_s, "Seconds from connecting to the first five bytes")
      ->capture_default_str();
  app.add_option("--max-request", settings.request_s, "Seconds from a request's first byte to its last")
      ->capture_default_str();
  app.add_option("--max-stalled", settings.stalled_s, "Seconds that answers may lie unread")->capture_default_str();
  app.add_option("--max-silence", settings.silence_s, "Seconds without a sign of a peer's machine (TCP keep-alive)")
      ->capture_default_str();
  app.add_option("--grace", settings.grace_s, "Seconds that connections have to go after SIGTERM")
      ->capture_default_str();
  app.add_option("--token-file", settings.token_file,
                 "Secret that torchup's agents must prove; without it TORCHUP_TOKEN, else none");
  app.add_option(
      "--state-dir", settings.state_dir,
      "Folder where jobs of torchup's agents are kept, so that they go on when this process is ended and started "
      "again; made where it is missing");
  app.add_option("--max-agents", settings.agents_max, "Of one job")
      ->check(CLI::Range(1, nodes_max))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--log-level", [&](const std::string& word) { settings.log.level = *read_log_level(word); },
         "What is logged, and what is worse: debug, info, warning, error")
      ->check(readable_by(read_log_level))
      ->default_str("info");
  app.add_option_function<std::string>(
         "--log-format", [&](const std::string& word) { settings.log.format = *read_log_format(word); },
         "text: for people; json: an object in each line, with time, level, job and peer")
      ->check(readable_by(read_log_format))
      ->default_str("text");
  app.add_option(
         "--torchrun-store", settings.torchrun_store,
         "Where workers of jobs with torchrun's agents meet, and MASTER_ADDR points: \"first\", on group rank 0's "
         "node, as under torchrun; or \"here\", so that group rank 0's node may be lost too")
      ->check(CLI::IsMember({"first", "here"}))
      ->capture_default_str();
  app.add_flag("--store-only", settings.store_only, "Neither agents nor HTTP pages on the port");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

nlohmann::ordered_json job_json(const JobView& job) {
  nlohmann::ordered_json page{{"phase", job.phase},
                              {"round", job.round.value()},
                              {"min_nodes", job.min_nodes},
                              {"max_nodes", job.max_nodes},
                              {"restart_count", job.restart_count},
                              {"membership_changes", job.membership_changes},
                              {"world_size", job.world_size},
                              {"master", job.master},
                              {"waits_for", job.waits_for},
                              {"last", job.last},
                              {"nodes", nlohmann::ordered_json::array()}};
  if (job.max_nodes == 0) {  // what only torchrun's agents know
    for (const char* name : {"min_nodes", "max_nodes", "restart_count", "membership_changes"}) page.erase(name);
  }
  for (const JobView::Node& node : job.nodes) {
    nlohmann::ordered_json row{{"host", node.host}, {"state", node.state}};
    if (!node.reason.empty()) row["reason"] = node.reason;
    if (node.group_rank) row["group_rank"] = node.group_rank->value();
    if (node.torchruns) row["agent"] = "torchrun";
    if (node.local_world_size > 0) row["local_world_size"] = node.local_world_size;
    page["nodes"].push_back(std::move(row));
  }
  if (job.verdict) page["verdict"] = {{"exit_code", job.verdict->exit_code}, {"reason", job.verdict->reason}};
  return page;
}

std::string status_json(const StoreServerStatus& status, const Coordinator& coordinator) {
  nlohmann::ordered_json page{{"connections", status.connections}, {"keys", status.keys},
                              {"queues", status.queues},           {"bytes", status.bytes},
                              {"waiting", status.waiting},         {"arriving_bytes", status.arriving_bytes},
                              {"accepted", status.accepted},       {"refused", status.refused},
                              {"requests", status.requests}};
  page["jobs"] = nlohmann::ordered_json::object();
  for (const auto& [run_id, job] : coordinator.jobs()) page["jobs"][run_id.value()] = job_json(job);
  return page.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string metrics(const StoreServerStatus& status) {
  std::string text;
  const auto add = [&](const std::string& name, const char* type, const char* help, std::uint64_t value) {
    text += "# HELP torchup_store_" + name + " " + help + "\n# TYPE torchup_store_" + name + " " + type +
            "\ntorchup_store_" + name + " " + std::to_string(value) + "\n";
  };
  add("connections", "gauge", "TCPStore clients connected now.", status.connections);
  add("keys", "gauge", "Plain keys in the store.", status.keys);
  add("queues", "gauge", "Queues in the store.", status.queues);
  add("bytes", "gauge", "Bytes of keys, values and queue elements.", status.bytes);
  add("waiting", "gauge", "Clients with an open wait or barrier.", status.waiting);
  add("arriving_bytes", "gauge", "Memory held by unfinished requests.", status.arriving_bytes);
  add("accepted_total", "counter", "Connections accepted.", status.accepted);
  add("refused_total", "counter", "Connections closed for what they sent or at a limit.", status.refused);
  add("requests_total", "counter", "Requests served.", status.requests);
  return text;
}

/// Each connection is a descriptor: take as many as we may have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// The two steps of ending: nobody new, then nobody at all.
class Ending {
 public:
  Ending(asio::io_context& loop, StoreServer& server, Duration grace, Log& log)
      : loop_{loop}, server_{server}, grace_{grace}, log_{log}, signals_{loop, SIGTERM, SIGINT}, timer_{loop} {
    wait();
  }

 private:
  void wait() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      if (std::exchange(draining_, true)) return loop_.stop();
      notify_service_manager("STOPPING=1");
      log_.tell(fmt::format("ending; {} connections have {} to go", server_.status().connections, seconds(grace_)));
      server_.drain([this] { loop_.stop(); });
      timer_.expires_after(grace_);
      timer_.async_wait([this](const boost::system::error_code& cancelled) {
        if (!cancelled) loop_.stop();
      });
      wait();
    });
  }

  asio::io_context& loop_;
  StoreServer& server_;
  Duration grace_;
  Log& log_;
  asio::signal_set signals_;
  asio::steady_timer timer_;
  bool draining_ = false;
};

Duration duration_of(double count) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>{count});
}

/// The jobs' secret.
Result<std::string> read_token(const Settings& settings) {
  std::string token = take_token_variable();
  if (!settings.token_file.empty()) return read_token_file(settings.token_file);
  return token;
}

int serve(const Settings& settings, Log& log) {
  const auto token = read_token(settings);
  if (!token) {
    log.tell({LogLevel::error, token.error().message()});
    return 2;
  }
  raise_descriptor_limit();
  asio::io_context loop{1};
  RendezvousSettings rules;
  rules.agents_max = settings.agents_max;
  const Log::LoopUse log_use = log.use(loop);
  Coordinator coordinator{loop, log.sink(), rules};
  std::unique_ptr<StateDirectory> state;
  if (!settings.state_dir.empty()) {
    auto opened = StateDirectory::open(loop, settings.state_dir);
    auto kept = opened ? coordinator.keep_state(**opened) : Result<>{opened.error()};
    if (!kept) {
      log.tell({LogLevel::error, kept.error().message()});
      return 65;
    }
    state = std::move(*opened);
  }
  AgentSessions agents{loop, coordinator, {.token = *token, .log = log.sink()}};
  StoreServer* store = nullptr;
  HttpOptions pages;
  pages.pages = {
      {"/healthz", {"text/plain; charset=utf-8", [] { return std::string{"ok\n"}; }}},
      {"/metrics", {"text/plain; version=0.0.4; charset=utf-8", [&] { return metrics(store->status()); }}},
      {"/status", {"application/json", [&] { return status_json(store->status(), coordinator); }}},
  };
  HttpService http{loop, std::move(pages)};

  StoreServerOptions options;
  options.bind = settings.bind;
  options.port = Port{settings.port};
  options.limits = settings.store;
  options.connections = settings.connections;
  options.connections.handshake_max = duration_of(settings.handshake_s);
  options.connections.request_max = duration_of(settings.request_s);
  options.connections.stalled_max = duration_of(settings.stalled_s);
  options.connections.silent_peer_max = duration_of(settings.silence_s);
  options.log = log.sink();
  if (!settings.store_only)
    options.other_language = [&](unsigned char first_byte, UniqueFd& socket) {
      if (begins_agent(first_byte)) {
        agents.serve(std::move(socket));
      } else if (begins_http(first_byte)) {
        http.serve(std::move(socket));
      } else {
        return false;
      }
      return true;
    };
  StoreServer server{loop, std::move(options)};
  store = &server;
  if (const auto port = server.listen(); !port) {
    log.tell({LogLevel::error, port.error().message()});
    return port.error().code == errc::bad_value ? 2 : 67;
  }
  coordinator.admit_torchrun(server, {.bind = settings.bind, .common_place = settings.torchrun_store == "here"});
  std::cout << "torchupd: ready on " << server.address() << std::endl;
  notify_service_manager("READY=1");
  Ending ending{loop, server, duration_of(settings.grace_s), log};
  loop.run();
  coordinator.release_state();
  return 0;
}

}  // namespace
}  // namespace torchup

int main(int argc, char** argv) {
  torchup::Settings settings;
  if (const auto code = torchup::read_arguments(argc, argv, settings)) return *code;
  torchup::Log log{settings.log};
  try {
    return torchup::serve(settings, log);
  } catch (const std::exception& error) {
    log.tell({torchup::LogLevel::error, fmt::format("internal fault: {}", error.what())});
    return 70;
  }
}
