#include "rendezvous/cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <utility>

#include "rendezvous/core/membership/job_codec.hpp"
#include "rendezvous/core/ops/version_answer.hpp"
#include "rendezvous/core/text/roff.hpp"

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

void add_place(CLI::App& app, DaemonCommand& settings) {
  app.add_option("--bind", settings.daemon.bind,
                 "Numeric address to listen on; \"::\" is all of them, \"localhost\" the loopback of both families")
      ->capture_default_str();
  app.add_option("--port", settings.port, "0: any free one")->capture_default_str();
}

void add_limits(CLI::App& app, DaemonCommand& settings) {
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

void add_trust(CLI::App& app, DaemonCommand& settings) {
  app.add_option("--token-file", settings.token_file,
                 "Secret that torchup's agents must prove; without it systemd's credential \"token\", else "
                 "TORCHUP_TOKEN, else none");
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

void add_jobs(CLI::App& app, DaemonCommand& settings) {
  app.add_option(
      "--state-dir", settings.daemon.state_dir,
      "Folder where jobs of torchup's agents are kept, so that they go on when this process is ended and started "
      "again; made where it is missing");
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
      ->excludes(events);
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

/// How this program ends.
constexpr std::array<std::pair<const char*, const char*>, 5> ends{{
    {"0", "after a signal, or what was asked for is printed"},
    {"2", "command line refused, a token that is none, or an address that is none of this machine"},
    {"65", "the state directory is not fit: damaged, of another version, in use, or not its user's alone"},
    {"67", "it cannot listen: the port is taken"},
    {"70", "internal fault"},
}};

void describe(CLI::App& app, DaemonCommand& settings) {
  std::string footer = examples;
  footer += "\nExit codes\n";
  for (const auto& [code, meaning] : ends) footer += fmt::format("  {:<4}{}\n", code, meaning);
  app.footer(footer);
  app.get_formatter()->column_width(34);
  add_place(app, settings);
  add_limits(app, settings);
  add_trust(app, settings);
  add_jobs(app, settings);
  add_log(app, settings.log);
  CLI::Option* const version = app.add_flag("--version", settings.version, "Print the version and end");
  app.add_flag("--json", settings.version_as_json, "With --version: an object of JSON")->needs(version);
}

std::string manual_entry(const CLI::Option& option) {
  std::string text = fmt::format(".TP\n\\fB{}\\fR", roff("--" + option.get_lnames().front()));
  if (option.get_items_expected_max() > 0) text += " \\fIVALUE\\fR";
  text += "\n" + roff(option.get_description());
  const std::string by_default = option.get_default_str();
  return text + (by_default.empty() ? "" : fmt::format(" (default {})", roff(by_default))) + "\n";
}

}  // namespace

std::optional<int> read_arguments(int argc, char** argv, DaemonCommand& settings) {
  CLI::App app{about, "torchupd"};
  describe(app, settings);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!settings.version) return std::nullopt;
  const auto schemas = {SchemaNumber{"state_schema", static_cast<int>(job_format_version)}};
  std::fputs(version_answer("torchupd", settings.version_as_json, schemas).c_str(), stdout);
  return 0;
}

std::string daemon_manual(std::string_view version) {
  DaemonCommand settings;
  CLI::App app{about, "torchupd"};
  describe(app, settings);
  std::string text =
      fmt::format(R"(.TH TORCHUPD 8 "" "torchup {}" "System administration"
.SH NAME
torchupd \- the place where the processes of distributed PyTorch jobs meet
.SH SYNOPSIS
.B torchupd
[\fIoptions\fR]
.SH DESCRIPTION
{}
.SH OPTIONS
)",
                  roff(version), roff(std::string_view{about}.substr(std::string_view{about}.find("It serves"))));
  for (const CLI::Option* option : app.get_options()) text += manual_entry(*option);
  text += ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : ends) text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", code, roff(meaning));
  // Each paragraph of the help is one here.
  std::string_view rest{examples};
  rest.remove_prefix(rest.find("With --state-dir"));
  text += ".SH NOTES\n";
  while (!rest.empty()) {
    const std::size_t end = rest.find("\n\n");
    text += roff(rest.substr(0, end)) + (end == std::string_view::npos ? "" : "\n.PP\n");
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 2);
  }
  return text + R"(.SH ENVIRONMENT
.TP
\fBTORCHUP_TOKEN\fR
the secret, where neither \-\-token\-file nor systemd has one.
.TP
\fBCREDENTIALS_DIRECTORY\fR
set by systemd: its file token is the secret, where \-\-token\-file names none. White space alone is none.
.TP
\fBTORCHUP_RUNTIME_DIR\fR
the folder of the control socket (default /tmp/torchup\-UID).
.SH FILES
.TP
/etc/torchup/token
the secret of the systemd service torchupd: root's, mode 0600.
.TP
/etc/default/torchupd
TORCHUPD_OPTIONS of that service.
.SH SEE ALSO
torchup(1), torchupctl(1)
)";
}

}  // namespace torchup
