// torchupd: the rendezvous daemon.

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "rendezvous/cli.hpp"
#include "rendezvous/core/text/wording.hpp"
#include "rendezvous/net/daemon/daemon.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/log.hpp"
#include "rendezvous/net/io/notify.hpp"
#include "rendezvous/net/io/standard_descriptors.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {
namespace {

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
  Ending(asio::io_context& loop, Daemon& daemon, Duration grace, Log& log)
      : loop_{loop}, daemon_{daemon}, grace_{grace}, log_{log}, signals_{loop, SIGTERM, SIGINT}, timer_{loop} {
    wait();
  }

 private:
  void wait() {
    signals_.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      if (std::exchange(draining_, true)) return loop_.stop();
      notify_service_manager("STOPPING=1");
      log_.tell(fmt::format("ending; {} connections have {} to go", daemon_.connection_count(), seconds(grace_)));
      daemon_.drain([this] { loop_.stop(); });
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
  asio::signal_set signals_;
  asio::steady_timer timer_;
  bool draining_ = false;
};

Duration duration_of(double count) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>{count});
}

/// The jobs' secret: of the command line, the service manager, or the environment.
Result<std::string> read_job_token(const std::string& file) {
  std::string token = take_token_variable();
  if (!file.empty()) return read_token_file(file);
  if (auto given = read_credential("token"); !given || !given->empty()) return given;
  if (token.empty()) return token;
  return checked_token(std::move(token), "TORCHUP_TOKEN");
}

int serve(DaemonCommand settings, Log& log) {
  auto token = read_job_token(settings.token_file);
  if (!token) {
    log.tell({LogLevel::error, token.error().message()});
    return 2;
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
  asio::io_context loop{1};
  const Log::LoopUse log_use = log.use(loop);
  Daemon daemon{loop, std::move(daemon_settings), log};
  if (const auto exit_code = daemon.start()) return *exit_code;
  Ending ending{loop, daemon, duration_of(settings.grace_s), log};  // whoever reads that we are ready may end us
  std::cout << "torchupd: ready on " << daemon.address() << std::endl;
  notify_service_manager("READY=1");
  daemon.run();
  daemon.end();
  return 0;
}

}  // namespace
}  // namespace torchup

int main(int argc, char** argv) {
  torchup::fill_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);  // whoever read our log may end; the jobs do not. Nothing is started that inherits it
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);  // what a large answer took goes back to the system
  torchup::DaemonCommand settings;
  if (const auto code = torchup::read_arguments(argc, argv, settings)) return *code;
  torchup::Log log{settings.log};
  try {
    return torchup::serve(std::move(settings), log);
  } catch (const std::exception& error) {
    log.tell({torchup::LogLevel::error, fmt::format("internal fault: {}", error.what())});
    return 70;
  }
}
