// torchupd: the rendezvous daemon.

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/etcd/etcd_conf.hpp"
#include "rendezvous/core/text/endpoint_list.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/agent/standby.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/daemon/daemon.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/log.hpp"
#include "rendezvous/net/io/notify.hpp"
#include "rendezvous/net/io/password.hpp"
#include "rendezvous/net/io/standard_descriptors.hpp"
#include "rendezvous/net/io/token.hpp"

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
  curl     http://localhost:29400/v1/jobs   also /status and /metrics (Prometheus); /healthz and /readyz are open
  browser  http://localhost:29400/          the jobs, as they run

With --state-dir this process may be ended, killed and replaced while jobs run: agents come back within seconds, nothing
is restarted, and what was counted stays counted. Nothing is told to an agent that would not survive. A file that is
damaged or of another version ends the start with 65. The store's keys are not kept: PyTorch's clients do not reconnect,
and workers meet at stores of their own agents.

Once it listens it prints one line on stdout, "torchupd: ready on ADDRESS:PORT", and tells systemd. Everything else goes
to stderr. SIGTERM and SIGINT: no newcomers; it ends when the last client of the store has gone or the grace is over. A second
signal ends it at once.

TCPStore knows no authentication. Without a token and --allow whoever reaches the port can read and write every key:
choose --bind accordingly. With a token agents prove it, and clients of the store must come from this machine, from where
a member of a job is, or from --allow; torchrun's agents, which cannot prove it, have no part in jobs then.
)";

struct Settings {
  DaemonSettings daemon;
  std::string state_etcd, etcd_conf, advertise;
  std::uint16_t port = 29400;
  double handshake_s = 10, request_s = 120, stalled_s = 60, silence_s = 90, grace_s = 30;
  std::string token_file;
  std::string read_token_file;
  bool no_control_socket = false;
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

// Beyond these a limit is a slip of the finger, and its arithmetic would overflow.
constexpr double shortest_s = 0.001, longest_s = 31'536'000;  ///< a year
constexpr std::size_t count_max = std::size_t{1} << 31;
constexpr std::size_t bytes_max = std::size_t{1} << 50;

/// Refuses what is no number of seconds from `least` to longest_s: CLI::Range lets "nan" pass.
CLI::Validator seconds_from(double least) {
  return {[least](std::string& word) {
            double value = 0;
            const bool number = CLI::detail::lexical_cast(word, value);
            return number && value >= least && value <= longest_s
                       ? std::string{}
                       : fmt::format("{} is not a number of seconds from {} to {}", word, least, longest_s);
          },
          "SECONDS"};
}

/// Refuses what is no whole number from 1 to `most`.
CLI::Validator at_most(std::size_t most) {
  return {[most](std::string& word) {
            std::size_t value = 0;
            const bool number = word.find('-') == std::string::npos && CLI::detail::lexical_cast(word, value);
            return number && value >= 1 && value <= most ? std::string{}
                                                         : fmt::format("{} is not a number from 1 to {}", word, most);
          },
          ""};
}

void add_bytes(CLI::App& app, const char* name, std::size_t& bytes, const char* what) {
  app.add_option(name, bytes, what)
      ->transform(CLI::AsSizeValue(false))
      ->check(at_most(bytes_max))
      ->capture_default_str();
}

void add_count(CLI::App& app, const char* name, std::size_t& count, const char* what) {
  app.add_option(name, count, what)->check(at_most(count_max))->capture_default_str();
}

void add_seconds(CLI::App& app, const char* name, double& value, double least, const char* what) {
  app.add_option(name, value, what)->check(seconds_from(least))->capture_default_str();
}

void add_place(CLI::App& app, Settings& settings) {
  app.add_option("--bind", settings.daemon.bind,
                 "Numeric address to listen on; \"::\" is all of them, \"localhost\" the loopback of both families")
      ->capture_default_str();
  app.add_option("--port", settings.port, "0: any free one")->capture_default_str();
}

void add_limits(CLI::App& app, Settings& settings) {
  ConnectionLimits& connections = settings.daemon.connections;
  add_count(app, "--max-connections", connections.connections_max, "Newcomers beyond are closed");
  add_count(app, "--max-keys", settings.daemon.store.keys_max, "Keys and queues together");
  add_bytes(app, "--max-bytes", settings.daemon.store.bytes_max, "All keys, values and queue elements; 512MB, 8GB …");
  add_bytes(app, "--max-request-bytes", connections.request_bytes_max, "One request while it arrives");
  add_bytes(app, "--max-arriving-bytes", connections.arriving_bytes_max,
            "Requests of all connections that are not served yet");
  add_bytes(app, "--max-reply-bytes", connections.reply_bytes_max, "Unsent answers of one connection");
  add_bytes(app, "--max-unread-bytes", connections.unread_bytes_max, "Memory for unsent answers of all connections");
  add_seconds(app, "--max-handshake", settings.handshake_s, shortest_s,
              "Seconds from connecting to the first five bytes");
  add_seconds(app, "--max-request", settings.request_s, shortest_s, "Seconds from a request's first byte to its last");
  add_seconds(app, "--max-stalled", settings.stalled_s, shortest_s, "Seconds that answers may lie unread");
  add_seconds(app, "--max-silence", settings.silence_s, shortest_s,
              "Seconds without a sign of a peer's machine (TCP keep-alive)");
  add_seconds(app, "--grace", settings.grace_s, 0, "Seconds that connections have to go after SIGTERM");
}

void add_trust(CLI::App& app, Settings& settings) {
  app.add_option(
      "--token-file", settings.token_file,
      "Secret that torchup's agents must prove; without it TORCHUP_TOKEN, else $CREDENTIALS_DIRECTORY/token, else "
      "none");
  auto* const cert =
      app.add_option("--tls-cert", settings.daemon.tls_cert,
                     "Certificate (PEM, with those between it and its authority) for https on the same port");
  auto* const key = app.add_option("--tls-key", settings.daemon.tls_key,
                                   "Its private key (PEM); both files are read again "
                                   "when they change");
  cert->needs(key);
  key->needs(cert);
  app.add_option("--read-token-file", settings.read_token_file,
                 "Another secret: who sends it over HTTP may see jobs, and steer none");
  app.add_option("--status-host", settings.daemon.host_names,
                 "Names that Host may be over HTTP without a token, beside addresses, localhost and this machine's own")
      ->delimiter(',');
  app.add_flag("--no-control-socket", settings.no_control_socket,
               "No unix socket for torchupctl in $TORCHUP_RUNTIME_DIR (/tmp/torchup-UID)");
  app.add_option_function<std::string>(
         "--allow", [&settings](const std::string& list) { settings.daemon.allowed = *SourceList::read(list); },
         "Addresses and networks (10.0.0.0/24,fd00::7) from which clients of the store, and agents where there is no "
         "token, may come; this machine always may, and where there is a token members of its jobs")
      ->check(readable_by(&SourceList::read));
}

void add_jobs(CLI::App& app, Settings& settings) {
  app.add_option(
      "--state-dir", settings.daemon.state_dir,
      "Folder where jobs of torchup's agents are kept, so that they go on when this process is ended and started "
      "again; made where it is missing");
  CLI::Option* const etcd =
      app.add_option("--state-etcd", settings.state_etcd,
                     "etcd's members, HOST[:PORT],... (3.4 or newer): one of several torchupd is active at a time, "
                     "jobs are kept there, "
                     "and go on with another when it ends; agents name all of them in --rdzv-endpoint");
  etcd->excludes(app.get_option("--state-dir"));
  app.add_option("--etcd-conf", settings.etcd_conf,
                 "KEY=VALUE,...: protocol, cacert, cert, key, etcd_prefix (/torchup), user, password_file (else "
                 "TORCHUP_ETCD_PASSWORD)")
      ->needs(etcd);
  app.add_option("--advertise", settings.advertise,
                 "HOST[:PORT] that agents are sent to when this one is active (default: our address towards etcd)")
      ->needs(etcd);
  app.add_option("--max-agents", settings.daemon.agents_max, "Of one job")
      ->check(CLI::Range(1, nodes_max))
      ->capture_default_str();
  app.add_option(
         "--torchrun-store", settings.torchrun_store,
         "Where workers of jobs with torchrun's agents meet, and MASTER_ADDR points: \"first\", on group rank 0's "
         "node, as under torchrun; or \"here\", so that group rank 0's node may be lost too")
      ->check(CLI::IsMember({"first", "here"}))
      ->capture_default_str();
  CLI::Option* const events = app.add_option(
      "--events", settings.daemon.events_file,
      "File to which what happens to all jobs is appended, an object of JSON in each line, with run_id and seq");
  app.add_flag("--store-only", settings.daemon.store_only, "Neither agents nor HTTP pages on the port")
      ->excludes(events)
      ->excludes(etcd);
}

void add_log(CLI::App& app, LogOptions& log) {
  app.add_option_function<std::string>(
         "--log-level", [&log](const std::string& word) { log.level = *read_log_level(word); },
         "What is logged, and what is worse: debug, info, warning, error")
      ->check(readable_by(read_log_level))
      ->default_str("info");
  app.add_option_function<std::string>(
         "--log-format", [&log](const std::string& word) { log.format = *read_log_format(word); },
         "text: for people; json: an object in each line, with time, level, job and peer")
      ->check(readable_by(read_log_format))
      ->default_str("text");
}

/// Fills `settings`. A number: the process ends with it.
std::optional<int> read_arguments(int argc, char** argv, Settings& settings) {
  CLI::App app{about, "torchupd"};
  app.footer(examples);
  app.get_formatter()->column_width(34);
  add_place(app, settings);
  add_limits(app, settings);
  add_trust(app, settings);
  add_jobs(app, settings);
  add_log(app, settings.log);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
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
  /// `standby`: the seat is given back first; null: there is none.
  Ending(asio::io_context& loop, Daemon& daemon, Duration grace, Log& log, Standby* standby)
      : loop_{loop}, daemon_{daemon}, grace_{grace}, log_{log}, standby_{standby}, signals_{loop, SIGTERM, SIGINT},
        timer_{loop} {
    wait();
  }

 private:
  void wait() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      if (std::exchange(draining_, true)) return loop_.stop();
      notify_service_manager("STOPPING=1");
      log_.tell(fmt::format("ending; {} connections have {} to go", daemon_.connection_count(), seconds(grace_)));
      if (standby_) {
        standby_->leave([this] { daemon_.drain([this] { loop_.stop(); }); });
      } else {
        daemon_.drain([this] { loop_.stop(); });
      }
      timer_.expires_after(grace_);
      timer_.async_wait([this](const boost::system::error_code& cancelled) {
        if (!cancelled) loop_.stop();
      });
      wait();
    });
  }

  asio::io_context& loop_;
  Daemon& daemon_;
  Duration grace_;
  Log& log_;
  Standby* standby_;
  asio::signal_set signals_;
  asio::steady_timer timer_;
  bool draining_ = false;
};

Duration duration_of(double count) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>{count});
}

/// The jobs' secret.
Result<std::string> read_job_token(const std::string& file) {
  std::string token = take_token_variable();
  if (!file.empty()) return read_token_file(file);
  if (token.empty()) return read_credential_token();
  return checked_token(std::move(token), "TORCHUP_TOKEN");
}

/// What --state-etcd and --etcd-conf say. Errors: with the option's name.
Result<StandbySettings> read_etcd(const Settings& settings) {
  StandbySettings wanted;
  auto members = parse_endpoints(settings.state_etcd, etcd_default_port);
  if (!members) return fail(errc::bad_value, "--state-etcd: " + members.error().context);
  wanted.etcd.members = *std::move(members);
  auto items = etcd::split_conf(settings.etcd_conf);
  auto conf = items ? etcd::read_conf(*items) : Result<etcd::Conf>{items.error()};
  if (!conf) return fail(errc::bad_value, "--etcd-conf: " + conf.error().context);
  if (!items->empty()) {
    return fail(errc::bad_value,
                fmt::format("--etcd-conf: '{}' is no key of it; there are protocol, cacert, cert, key, "
                            "etcd_prefix, user and password_file",
                            items->begin()->first));
  }
  wanted.etcd.https = conf->protocol == "https";
  wanted.etcd.files = {conf->ca_file, conf->cert_file, conf->key_file};
  if (wanted.etcd.https) {  // what cannot be read is told before anybody is served
    if (auto opened = EtcdTls::open(wanted.etcd.files); !opened) {
      return Error{opened.error().code, "--etcd-conf: " + opened.error().context};
    }
  }
  wanted.prefix = conf->prefix;
  wanted.etcd.user = conf->user;
  if (!conf->user.empty()) {
    auto password = read_etcd_password(conf->password_file);
    if (!password) return password.error();
    wanted.etcd.password = *std::move(password);
  }
  if (!settings.advertise.empty()) {
    auto advertised = parse_endpoint(settings.advertise, Port{0});
    if (!advertised) return fail(errc::bad_value, "--advertise: " + advertised.error().context);
    wanted.advertised = *std::move(advertised);
  }
  return wanted;
}

int serve(Settings settings, Log& log) {
  auto token = read_job_token(settings.token_file);
  if (!token) {
    log.tell({LogLevel::error, token.error().message()});
    return 2;
  }
  if (!token->empty() || !settings.daemon.tls_cert.empty()) {
    if (auto prepared = prepare_proofs(); !prepared) {
      log.tell({LogLevel::error, prepared.error().message()});
      return 2;
    }
  }
  auto read_token =
      settings.read_token_file.empty() ? Result<std::string>{std::string{}} : read_token_file(settings.read_token_file);
  if (!read_token) {
    log.tell({LogLevel::error, read_token.error().message()});
    return 2;
  }
  raise_descriptor_limit();
  DaemonSettings& daemon_settings = settings.daemon;
  daemon_settings.read_token = *std::move(read_token);
  daemon_settings.control_socket = !settings.no_control_socket;
  daemon_settings.port = Port{settings.port};
  daemon_settings.token = *std::move(token);
  daemon_settings.torchrun_store_here = settings.torchrun_store == "here";
  daemon_settings.connections.handshake_max = duration_of(settings.handshake_s);
  daemon_settings.connections.request_max = duration_of(settings.request_s);
  daemon_settings.connections.stalled_max = duration_of(settings.stalled_s);
  daemon_settings.connections.silent_peer_max = duration_of(settings.silence_s);
  std::optional<StandbySettings> several;
  if (!settings.state_etcd.empty()) {
    auto read = read_etcd(settings);
    if (!read) {
      log.tell({LogLevel::error, read.error().message()});
      return 2;
    }
    several = *std::move(read);
    several->token = daemon_settings.token;
    several->bind = daemon_settings.bind;
  }
  asio::io_context loop{1};
  const Log::LoopUse log_use = log.use(loop);
  Daemon daemon{loop, std::move(daemon_settings), log};
  if (several) daemon.coordinator().stand_by({});  // before the first agent comes
  if (const auto exit_code = daemon.start()) return *exit_code;
  int result = 0;
  std::optional<Standby> standby;
  if (several) {
    several->port = [&daemon] { return daemon.port(); };
    several->log = log.sink();
    several->stands = [&log](const std::string& line) {
      log.tell(line);
      notify_service_manager("STATUS=" + line);
    };
    several->unusable = [&](const Error& error) {
      log.tell({LogLevel::error, error.message()});
      result = exit_code::unfit;
      loop.stop();
    };
    standby.emplace(loop, daemon.coordinator(), *std::move(several));
  }
  // Whoever reads that we are ready may end us.
  Ending ending{loop, daemon, duration_of(settings.grace_s), log, standby ? &*standby : nullptr};
  std::cout << "torchupd: ready on " << daemon.address() << std::endl;
  notify_service_manager("READY=1");
  if (standby) standby->start();
  daemon.run();
  standby.reset();
  daemon.end();
  return result;
}

}  // namespace
}  // namespace torchup

int main(int argc, char** argv) {
  torchup::fill_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // whoever read our log may end; the jobs do not. Nothing is started that inherits it
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what a large answer took goes back to the system
  torchup::Settings settings;
  if (const auto code = torchup::read_arguments(argc, argv, settings)) return *code;
  torchup::Log log{settings.log};
  try {
    return torchup::serve(std::move(settings), log);
  } catch (const std::exception& error) {
    log.tell({torchup::LogLevel::error, fmt::format("internal fault: {}", error.what())});
    return 70;
  }
}
